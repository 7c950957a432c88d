# SPDX-License-Identifier: Apache-2.0
"""Clinical texts of a FHIR bulk export: NDJSON of DocumentReference, DiagnosticReport, Binary and Patient.

A text is the plain or HTML attachment of a resource (`content`, `presentedForm`; inline, or a Binary of the
export), else a report's `conclusion`, else its narrative. `select` filters by resourceType, status, category
and code (any coding, or its text). Resources that are superseded, entered in error or preliminary, as a
model's drafts are, are counted and left out unless `select` names a status. FHIR holds no marks of entities:
`tasks: []`. A Patient that another one replaces (`link`) counts as that one. R4 and R5. https://hl7.org/fhir/uv/bulkdata/
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from medflare.core.errors import DataError
from medflare.data.readers.annotated import check_text
from medflare.data.readers.common import SourceRecords
from medflare.data.readers.tables import TableRow, find_file, read_table
from medflare.data.records import Note, RecordError
from medflare.data.settings.cohort import CohortConfig

FILES = ("**/*.ndjson", "**/*.ndjson.gz")
PATIENT, BINARY = "Patient", "Binary"
READ = ("DocumentReference", "DiagnosticReport")
FINAL = frozenset({"current", "final", "amended", "corrected", "appended"})
SELECTABLE = frozenset({"resourceType", "status", "category", "code"})
CHARSETS = frozenset({"utf-8", "utf8", "us-ascii", "iso-8859-1", "iso-8859-15", "windows-1252", "utf-16"})
"""Named here, since Python has codecs that a hostile file could misuse (idna, unicode_escape)."""
PLAIN, HTML = ("text/plain",), ("text/html", "application/xhtml+xml")


class _Part(BaseModel):
    """A part of a resource; a server's further elements and extensions are ignored."""

    model_config = ConfigDict(extra="ignore", alias_generator=to_camel)


class _Attachment(_Part):
    content_type: str = ""
    data: str | None = None
    url: str | None = None


class _Content(_Part):
    attachment: _Attachment


class _Reference(_Part):
    reference: str = ""


class _Link(_Part):
    other: _Reference
    type: str = ""


class _Patient(_Part):
    """Fields of Patient that tell which records are of one person."""

    id: str = Field(min_length=1)
    link: list[_Link] = Field(default_factory=list)


class _Narrative(_Part):
    div: str = ""


class _Coding(_Part):
    code: str = ""


class _Concept(_Part):
    coding: list[_Coding] = Field(default_factory=list)
    text: str = ""

    @property
    def names(self) -> set[str]:
        return {coding.code for coding in self.coding} | {self.text}


class _Resource(_Part):
    """Fields of DocumentReference and DiagnosticReport that a note needs."""

    resource_type: str
    id: str = Field(min_length=1)
    status: str = ""
    subject: _Reference = _Reference()
    category: list[_Concept] = Field(default_factory=list)
    code: _Concept = _Concept()
    type: _Concept = _Concept()
    content: list[_Content] = Field(default_factory=list)
    presented_form: list[_Attachment] = Field(default_factory=list)
    conclusion: str = ""
    text: _Narrative = _Narrative()

    @property
    def attachments(self) -> list[_Attachment]:
        return [*(content.attachment for content in self.content), *self.presented_form]

    def matches(self, select: Mapping[str, Any]) -> bool:
        """Return whether the resource is one that a site's `select` keeps."""
        present = {
            "resourceType": {self.resource_type},
            "status": {self.status},
            "category": {name for concept in self.category for name in concept.names},
            "code": self.code.names | self.type.names,
        }
        return all(
            present[key] & {str(value) for value in (wanted if isinstance(wanted, list) else [wanted])}
            for key, wanted in select.items()
        )


def read(config: CohortConfig) -> SourceRecords:
    """Read `config.file`, or every .ndjson file below `config.root` (also .gz).

    Raises:
        DataError: there is none, `tasks` asks for annotation, or `select` names what cannot be selected by.
    """
    if config.tasks:
        raise DataError(f"{config.root}: FHIR holds texts without marks of entities; set 'tasks: []'.")
    if unknown := sorted(set(config.select) - SELECTABLE):
        raise DataError(f"{config.root}: 'select: {unknown[0]}' is none of {', '.join(sorted(SELECTABLE))}.")
    source, left_out = SourceRecords(), Counter[str]()
    rows = list(_rows(config, source))
    replaced = _replaced_patients(rows)
    binaries = defaultdict[str, list[TableRow]](list)
    for _, row in rows:
        if row.get("resourceType") == BINARY:
            binaries[f"{BINARY}/{row.get('id')}"].append(row)
    for where, row in rows:
        kind = str(row.get("resourceType") or "")
        if kind not in READ:
            left_out[f"resource {kind or 'without a type'}"] += kind not in (BINARY, PATIENT)
            continue
        with source.skipping(f"{kind}/{row.get('id') or where}"):
            try:
                resource = _Resource.model_validate(row)
            except ValidationError as error:
                place = ".".join(map(str, error.errors()[0]["loc"]))
                raise RecordError(
                    "malformed resource", f"{where}: {place}: {error.errors()[0]['msg']}"
                ) from None
            if not resource.matches(config.select):
                continue
            if resource.status not in FINAL and "status" not in config.select:
                left_out[f"{kind} {resource.status or 'without status'}"] += 1
                continue
            _add(source, resource, _text(resource, binaries, where), replaced, where)
    source.left_out = dict(+left_out)
    return source


def _replaced_patients(rows: list[tuple[str, TableRow]]) -> dict[str, str]:
    """Return Patient -> the one that replaces it, of records that a hospital merged."""
    replaced = {}
    for _, row in rows:
        if row.get("resourceType") == PATIENT:
            with suppress(ValidationError):  # a damaged Patient says nothing about others
                patient = _Patient.model_validate(row)
                for link in patient.link:
                    if link.type == "replaced-by":
                        replaced[f"{PATIENT}/{patient.id}"] = _patient(link.other.reference)
    return replaced


def _patient(reference: str) -> str:
    """Return `Patient/7` for a reference to it; any other reference as it is."""
    return _local(reference, PATIENT) or reference


def _local(reference: str, kind: str) -> str | None:
    """Return `<kind>/7` for a reference to it in any form: relative, absolute, or of one version."""
    parts = reference.split("/_history/")[0].rstrip("/").split("/")
    return "/".join(parts[-2:]) if parts[-2:-1] == [kind] else None


def _person(reference: str, replaced: Mapping[str, str]) -> str:
    """Return the patient that a resource belongs to, after merges; a circle of merges merges nobody."""
    first = person = _patient(reference)
    for _ in replaced:
        if person not in replaced:
            return person
        person = replaced[person]
    return first if person in replaced else person


def _add(
    source: SourceRecords, resource: _Resource, text: str, replaced: Mapping[str, str], where: str
) -> None:
    record = f"{resource.resource_type}/{resource.id}"
    if record in source.places:
        raise RecordError("duplicated id", f"{where}: the id of {source.places[record]}")
    check_text(text, where)
    source.places[record] = where
    person = _person(resource.subject.reference, replaced) or record
    source.notes.append(Note(note_id=record, text=text, patient_id=person, split="", tasks=()))


def _rows(config: CohortConfig, source: SourceRecords) -> Iterator[tuple[str, TableRow]]:
    """Yield (place, resource) of each line; lines that are no JSON object are skipped with their number."""
    first = find_file(config.root, FILES, config.file)
    whole = config.root.is_dir() and config.file is None
    paths = sorted({path for name in FILES for path in config.root.glob(name)}) if whole else [first]
    for path in paths:
        _, rows, unreadable = read_table(Path(path))
        source.skipped += unreadable
        for number, row in enumerate(rows, 1):
            yield f"{path.name}:{number}", row


def _text(resource: _Resource, binaries: Mapping[str, list[TableRow]], where: str) -> str:
    """Return the text of a resource: its first readable attachment, conclusion, or narrative."""
    others = []
    for attachment in resource.attachments:
        content_type = attachment.content_type.split(";")[0].strip().lower()
        data = attachment.data
        if data is None and attachment.url:
            binary = _binary(attachment.url, binaries, where)
            data, content_type = binary.get("data"), content_type or str(binary.get("contentType") or "")
        if content_type in (*PLAIN, *HTML) and isinstance(data, str):
            text = _decode(data, attachment.content_type, where)
            return _without_tags(text) if content_type in HTML else text
        others.append(f"{content_type or 'no type'}{'' if data else ' without data'}")
    text = resource.conclusion or _without_tags(resource.text.div)
    if not text.strip() and others:
        detail = f"{where}: {', '.join(others)}; expected text/plain or text/html, inline or as Binary"
        raise RecordError("unreadable attachment", detail)
    return text


def _binary(url: str, binaries: Mapping[str, list[TableRow]], where: str) -> TableRow:
    """Return the Binary that an address names; empty where the export has none, or it names something else.

    Raises:
        RecordError: the export has several of that id, which differ.
    """
    name = _local(url, BINARY)
    found = binaries.get(name, []) if name else []
    if any(row.get("data") != found[0].get("data") for row in found):
        raise RecordError("ambiguous attachment", f"{where}: {name} stands {len(found)} times, and differs")
    return found[0] if found else {}


def _decode(data: str, content_type: str, where: str) -> str:
    """Return the text of base64 data, which may be broken into lines, in the charset that its type names."""
    named = re.search(r"charset\s*=\s*\"?([\w.:-]+)", content_type, re.IGNORECASE)
    charset = named[1].lower() if named else "utf-8"
    try:
        if charset not in CHARSETS:
            raise LookupError
        return base64.b64decode("".join(data.split()), validate=True).decode(charset)
    except (binascii.Error, UnicodeDecodeError, LookupError):
        detail = f"{where}: data is not text of charset {charset} in base64"
        raise RecordError("unreadable attachment", detail) from None


class _TextOnly(HTMLParser):
    """Collects the text of an HTML fragment; a block element ends a line."""

    BLOCKS = frozenset({"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "table", "ul", "ol"})
    HIDDEN = frozenset({"script", "style"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts = list[str]()
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self.HIDDEN and self._hidden > 0
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.parts.append(data)


def _without_tags(html: str) -> str:
    parser = _TextOnly()
    parser.feed(html)
    parser.close()
    lines = (" ".join(line.split()) for line in "".join(parser.parts).split("\n"))
    return "\n".join(line for line in lines if line)
