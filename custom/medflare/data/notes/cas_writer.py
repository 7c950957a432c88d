# SPDX-License-Identifier: Apache-2.0
"""Annotated notes as UIMA CAS in XMI 1.0, for INCEpTION and other tools: one file a note.

Spans are of the type `custom.Span`, links of `custom.Relation`; a project needs layers of these names, with a
string feature `label`. UIMA counts offsets in UTF-16 units. A discontinuous entity becomes one span from its
first to its last character, because a CAS annotation has one begin and one end.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET

from medflare.data.records import Note

XMI, CAS, CUSTOM = "http://www.omg.org/XMI", "http:///uima/cas.ecore", "http:///custom.ecore"
SOFA, FIRST = 1, 2
"""Numbers of the text's view and of the first annotation."""


def xmi(note: Note) -> bytes:
    """Return a note with its entities and relations as one XMI document.

    Characters that XML 1.0 cannot hold become spaces, so that offsets stay.
    """
    text = "".join(c if _allowed(c) else " " for c in note.text)
    units = [0]
    for character in text:
        units.append(units[-1] + (2 if ord(character) > 0xFFFF else 1))
    for prefix, space in (("xmi", XMI), ("cas", CAS), ("custom", CUSTOM)):
        ET.register_namespace(prefix, space)
    root = ET.Element(f"{{{XMI}}}XMI", {f"{{{XMI}}}version": "2.0"})
    ET.SubElement(root, f"{{{CAS}}}NULL", {_ID: "0"})
    numbers = {entity.entity_id: str(FIRST + place) for place, entity in enumerate(note.entities)}
    for entity in note.entities:
        begin, end = units[entity.spans[0][0]], units[entity.spans[-1][1]]
        _annotation(root, "Span", numbers[entity.entity_id], begin, end, label=entity.label)
    whole = {entity.entity_id: entity.spans for entity in note.entities}
    for place, link in enumerate(note.relations, start=FIRST + len(numbers)):
        # the span of a relation is that of its dependent, as WebAnno writes it
        begin, end = units[whole[link.tail][0][0]], units[whole[link.tail][-1][1]]
        ends = {"Governor": numbers[link.head], "Dependent": numbers[link.tail]}
        _annotation(root, "Relation", str(place), begin, end, label=link.label, **ends)
    sofa = {_ID: str(SOFA), "sofaNum": "1", "sofaID": "_InitialView", "mimeType": "text/plain"}
    ET.SubElement(root, f"{{{CAS}}}Sofa", sofa | {"sofaString": text})
    members = " ".join(str(FIRST + place) for place in range(len(numbers) + len(note.relations)))
    ET.SubElement(root, f"{{{CAS}}}View", {"sofa": str(SOFA), "members": members})
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


_ID = f"{{{XMI}}}id"


def _annotation(root: ET.Element, name: str, number: str, begin: int, end: int, **features: str) -> None:
    place = {_ID: number, "sofa": str(SOFA), "begin": str(begin), "end": str(end)}
    ET.SubElement(root, f"{{{CUSTOM}}}{name}", place | features)


def _allowed(character: str) -> bool:
    """Return whether XML 1.0 can hold a character."""
    code = ord(character)
    return code in (9, 10, 13) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000
