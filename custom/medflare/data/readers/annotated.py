# SPDX-License-Identifier: Apache-2.0
"""Shared parts of readers of annotated notes: files, splits, and checks of spans and links."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.tables import listing
from medflare.data.records import Entity, Note, RecordError, Relation, Span
from medflare.data.splits import split_name

QUOTED = 40
"""Characters of an annotation that a message repeats at most."""


def annotation_files(root: Path, *suffixes: str) -> list[Path]:
    """Return every file below `root` with one of `suffixes`, sorted.

    Names that begin with a dot are not part of a corpus (.stats_cache, ._n1.txt of a Mac's disk).

    Raises:
        DataError: there is none.
    """
    if not root.is_dir():
        raise DataError(f"{root}: no such folder. Check 'root' in site.yaml.")
    named = (path for path in root.rglob("*") if path.suffix in suffixes and path.name[0] != ".")
    files = sorted(path for path in named if path.is_file())
    if not files:
        wanted = " and ".join(suffixes)
        raise DataError(f"{root}: expected {wanted} files; the folder holds {listing(root)}. Check 'root'.")
    return files


def split_of(parts: Iterable[str]) -> str:
    """Return the split that a name on a file's path stands for ("dev" -> "val"), "" where none does."""
    return next((name for part in parts if (name := split_name(part))), "")


def read_text(path: Path) -> str:
    """Return the file's text, code point by code point: line ends and a byte order mark stay as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        detail = f"{path.name}, byte {error.start}: is not UTF-8; save the file as UTF-8"
        raise RecordError("not UTF-8", detail) from None
    except OSError as error:
        raise RecordError("unreadable file", f"{path.name}: {error.strerror or error}") from None


def check_text(text: str, where: str) -> None:
    """Raise RecordError where a note has no words."""
    if not text.strip("\ufeff \t\r\n\f\v"):
        raise RecordError("empty note", f"{where}, offset 0: the note has no text")


def check_spans(name: str, spans: Sequence[Span], length: int, where: str) -> None:
    """Raise RecordError where an annotation has no span, or one that is empty or leaves the text."""
    if not spans:
        raise RecordError("malformed entity", f"{where}: {name} has no span")
    for start, end in spans:
        if not 0 <= start < end <= length:
            detail = f"{where}: {name} at {start}:{end}, the text has {length} characters"
            raise RecordError("offset outside text", detail)


def surface_text(text: str, spans: Iterable[Span]) -> str:
    """Return what an annotation reads: its fragments joined by a space, runs of white space as one space."""
    return " ".join(" ".join(text[start:end] for start, end in spans).split())


def check_surface(name: str, spans: Sequence[Span], text: str, written: str, where: str) -> None:
    """Raise RecordError where the text at `spans` is not what the annotation file says it is.

    White space counts as one space, since BRAT writes line ends as spaces and joins fragments by one.
    """
    wanted, present = " ".join(written.split()), surface_text(text, spans)
    if present == wanted:
        return
    start, end = spans[0][0], spans[-1][1]
    near = _nearest(text, wanted, start)
    hint = (
        f"; those words stand at {near}, perhaps text and annotation are of two versions" if near >= 0 else ""
    )
    detail = (
        f"{where}: {name} at {start}:{end} should read '{_short(wanted)}', the text has '{_short(present)}'"
    )
    raise RecordError("text mismatch", detail + hint)


def check_ids(names: Iterable[str], where: str) -> None:
    """Raise RecordError where two annotations of a note have one id."""
    ids_so_far: set[str] = set()
    for name in names:
        if name in ids_so_far:
            raise RecordError("duplicated id", f"{where}: {name} is the id of two annotations")
        ids_so_far.add(name)


def check_ends(relation: Relation, known: Collection[str], where: str) -> None:
    """Raise RecordError where a relation links what is no entity of the note."""
    missing = sorted({relation.head, relation.tail} - set(known))
    if missing:
        detail = f"{where}: {relation.label} names {', '.join(missing)}"
        raise RecordError("relation without entity", detail)


def checked_note(
    record: str,
    text: str,
    where: str,
    *,
    split: str = "",
    patient_id: str = "",
    entities: Iterable[Entity] = (),
    relations: Iterable[Relation] = (),
) -> Note:
    """Return a note of an annotation tool's export, after checking that its marks fit its text.

    Args:
        split: as the export writes it; "" where it has none.

    Raises:
        RecordError: no text, an unknown split, a span outside the text, an id used twice, or a relation
            without its entities.
    """
    check_text(text, where)
    known_split = split_name(split) if split else ""
    if known_split is None:
        raise RecordError("unknown split", f"{where}: split {split!r} is none of train, val, test")
    entities, relations = tuple(entities), tuple(relations)
    check_ids((entity.entity_id for entity in entities), where)
    for entity in entities:
        check_spans(entity.entity_id, entity.spans, len(text), where)
    known = {entity.entity_id for entity in entities}
    for relation in relations:
        check_ends(relation, known, where)
    return Note(
        note_id=record,
        text=text,
        patient_id=patient_id or record,
        split=known_split or "",
        entities=entities,
        relations=relations,
    )


def code_point_offsets(text: str) -> list[int]:
    """Return, for each offset in UTF-16 units (Java, JavaScript), the offset in code points.

    Returns:
        A list of one entry per unit and one for the end. Inside a pair of units it is the pair's code point.
    """
    offsets = list[int]()
    for index, letter in enumerate(text):
        offsets += [index] * (2 if ord(letter) > 0xFFFF else 1)
    return [*offsets, len(text)]


def describe_entity(entity: Entity) -> str:
    """Return an entity's id and offsets, for messages."""
    return f"{entity.entity_id} at {entity.spans[0][0]}:{entity.spans[-1][1]}"


def _short(text: str) -> str:
    return text if len(text) <= QUOTED else f"{text[:QUOTED]}..."


def _nearest(text: str, wanted: str, start: int) -> int:
    """Return the offset of the occurrence of `wanted` that is nearest to `start`, -1 where there is none."""
    before, after = text.rfind(wanted, 0, start + len(wanted)), text.find(wanted, start)
    if before < 0 or after < 0:
        return max(before, after)
    return before if start - before <= after - start else after
