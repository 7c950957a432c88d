# SPDX-License-Identifier: Apache-2.0
"""Notes annotated with INCEpTION or another UIMA tool: CAS files as XMI 1.0, one note a file.

An element with `begin` and `end` and a label is an entity, one with `Governor` and `Dependent` a link from
the first to the second. Of several views `_InitialView` is read. Read are layers of a project (`custom`,
`webanno.custom`) and DKPro's NamedEntity; `select: {layer: [...]}` names others. Labels stand in `label`,
`value` or what `columns: {label: ...}` names. UIMA counts offsets in UTF-16 units; they become code points.
A sub-folder named train, dev, val or test gives the split.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from medflare.core.errors import DataError
from medflare.data.readers.annotated import annotation_files, checked_note, code_point_offsets, split_of
from medflare.data.readers.common import SourceRecords
from medflare.data.records import Entity, Note, RecordError, Relation
from medflare.data.settings.cohort import CohortConfig

XMI_ID = "{http://www.omg.org/XMI}id"
SOFA = "uima.cas.Sofa"
INITIAL_VIEW = "_InitialView"
OWN_LAYERS = ("custom.", "webanno.custom.")
NAMED_ENTITY = "de.tudarmstadt.ukp.dkpro.core.api.ner.type.NamedEntity"
LABELS = ("label", "value")

Element = tuple[str, Mapping[str, str]]
"""Type of a feature structure, as UIMA names it, and its features."""


def read(config: CohortConfig) -> SourceRecords:
    """Read every .xmi file below `config.root`."""
    if unknown := sorted(set(config.columns) - {"label"} | set(config.select) - {"layer"}):
        raise DataError(f"{config.root}: '{unknown[0]}' is no field; 'columns' has label, 'select' layer.")
    labels, layers = _texts(config.columns.get("label")) or LABELS, _texts(config.select.get("layer"))
    source, left_out = SourceRecords(), Counter[str]()
    for path in annotation_files(config.root, ".xmi"):
        record = path.relative_to(config.root).with_suffix("").as_posix()
        with source.skipping(record):
            note = _note(_elements(path, record), record, labels, layers, left_out, bool(config.tasks))
            source.places[record] = f"{record}.xmi"
            source.notes.append(note)
    source.left_out = dict(+left_out)
    return source


def _texts(value: object) -> tuple[str, ...]:
    return () if value is None else tuple(map(str, value)) if isinstance(value, list) else (str(value),)


def _elements(path: Path, record: str) -> list[Element]:
    """Return the feature structures of a file in its order.

    Raises:
        RecordError: it cannot be read, is no XML, or declares entities, with which a small file could fill
            the memory.
    """
    try:
        content = path.read_bytes()
        if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
            raise RecordError("malformed file", f"{record}.xmi: has a document type, which no CAS has")
        root = ET.fromstring(content)
    except OSError as error:
        raise RecordError("unreadable file", f"{record}.xmi: {error.strerror or error}") from None
    except ET.ParseError as error:
        raise RecordError("malformed file", f"{record}.xmi: is no XML: {error}") from None
    return [(_type_name(item.tag), item.attrib) for item in root]


def _type_name(tag: str) -> str:
    """Return `custom.Span` for `{http:///custom.ecore}Span`."""
    space, _, name = tag.rpartition("}")
    package = space.removeprefix("{http:///").removesuffix(".ecore").replace("/", ".")
    return f"{package}.{name}" if package else name


def _note(
    elements: list[Element],
    record: str,
    labels: tuple[str, ...],
    layers: tuple[str, ...],
    left_out: Counter[str],
    annotated: bool,
) -> Note:
    where = f"{record}.xmi"
    sofa, text = _first_view([item for name, item in elements if name == SOFA], where, left_out)
    offsets = code_point_offsets(text)
    entities, relations = list[Entity](), list[Relation]()
    for layer, item in elements if annotated else ():
        if not (layer in layers if layers else layer.startswith(OWN_LAYERS) or layer == NAMED_ENTITY):
            continue
        label = next((item[name] for name in labels if item.get(name)), "")
        if "Governor" in item and "Dependent" in item:
            relations.append(Relation(label=label or layer, head=item["Governor"], tail=item["Dependent"]))
        elif not label:
            left_out["span without label"] += 1
        elif item.get("sofa") == sofa:
            span = _span(item, offsets, where)
            entities.append(Entity(entity_id=item.get(XMI_ID, ""), label=label, spans=(span,)))
    known = {entity.entity_id for entity in entities}
    linked = [relation for relation in relations if {relation.head, relation.tail} <= known]
    left_out["link of a span without label"] += len(relations) - len(linked)
    return checked_note(
        record,
        text,
        where,
        split=split_of(Path(record).parts[:-1]),
        entities=entities,
        relations=linked,
    )


def _first_view(sofas: list[Mapping[str, str]], where: str, left_out: Counter[str]) -> tuple[str, str]:
    """Return id and text of the view that annotations of a document belong to; others are counted.

    Raises:
        RecordError: the file has no text, or several and none is UIMA's initial view.
    """
    texts = [item for item in sofas if item.get("sofaString") is not None]
    chosen = texts if len(texts) == 1 else [item for item in texts if item.get("sofaID") == INITIAL_VIEW]
    if len(chosen) != 1:
        detail = f"{where}: has {len(texts)} texts (Sofa), expected one, or one named {INITIAL_VIEW}"
        raise RecordError("malformed file", detail)
    left_out["further view"] += len(sofas) - 1
    return chosen[0].get(XMI_ID, ""), chosen[0]["sofaString"]


def _span(item: Mapping[str, str], offsets: list[int], where: str) -> tuple[int, int]:
    try:
        start, end = int(item["begin"]), int(item["end"])
        if not 0 <= start <= end < len(offsets):
            raise IndexError
        return offsets[start], offsets[end]
    except (KeyError, ValueError, IndexError):
        found = f"{item.get('begin')}:{item.get('end')}"
        detail = f"{where}: {item.get(XMI_ID, 'a span')} at {found}, the text has {len(offsets) - 1} units"
        raise RecordError("offset outside text", detail) from None
