# SPDX-License-Identifier: Apache-2.0
"""One note as every annotation tool exports it, and small FHIR and OMOP exports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import cohort_folders
import note_folders as folders

TEXT = "𝛽 test: severe pain.\nNo fever."
PAIN, SEVERE, FEVER, NO = (15, 19), (8, 14), (24, 29), (21, 23)
SPANS = [("1", "problem", PAIN), ("2", "severity", SEVERE), ("3", "problem", FEVER), ("4", "negation", NO)]
LINKS = [("1", "2"), ("3", "4")]


def units(offset: int) -> int:
    """The offset in UTF-16 units: the first letter of TEXT takes two."""
    return offset + (offset > 0)


def label_studio(root: Path, count: Callable[[int], int] = units, **changes: Any) -> Path:
    result = [
        {
            "id": f"r{name}",
            "type": "labels",
            "value": {"start": count(s), "end": count(e), "text": TEXT[s:e], "labels": [label]},
        }
        for name, label, (s, e) in SPANS
    ]
    result += [
        {"type": "relation", "from_id": "r1", "to_id": "r2", "direction": "right", "labels": ["hasAttr"]},
        {"type": "relation", "from_id": "r4", "to_id": "r3", "direction": "left", "labels": ["hasAttr"]},
    ]
    data = {"text": TEXT, "patient_id": "p1", "split": "dev"}
    task = {"id": 7, "data": data, "annotations": [{"result": result, "was_cancelled": False}]} | changes
    folders.write(root / "export.json", json.dumps([task]))
    return root


def label_studio_min(root: Path) -> Path:
    """The same note as JSON-MIN, which has no links."""
    spans = [{"start": units(s), "end": units(e), "text": TEXT[s:e], "labels": [n]} for _, n, (s, e) in SPANS]
    task = {"id": 7, "text": TEXT, "patient_id": "p1", "split": "dev", "label": spans, "annotator": 1}
    times = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "lead_time": 9.2}
    folders.write(root / "export.json", json.dumps([task | {"annotation_id": 3} | times]))
    return root


def doccano(root: Path) -> Path:
    entities = [
        {"id": int(name), "label": label, "start_offset": s, "end_offset": e} for name, label, (s, e) in SPANS
    ]
    relations = [{"id": 1, "from_id": int(a), "to_id": int(b), "type": "hasAttr"} for a, b in LINKS]
    row = {"id": 7, "text": TEXT, "entities": entities, "relations": relations, "patient_id": "p1"}
    return folders.jsonl(root, row | {"split": "dev"})


def prodigy(root: Path) -> Path:
    spans = {
        name: {"start": s, "end": e, "label": label, "token_start": number, "token_end": number}
        for number, (name, label, (s, e)) in enumerate(SPANS)
    }
    relations = [
        {"head": 0, "child": 0, "head_span": spans[a], "child_span": spans[b], "label": "hasAttr"}
        for a, b in LINKS
    ]
    meta = {"patient_id": "p1", "split": "dev"}
    kept = {
        "_task_hash": 7,
        "text": TEXT,
        "spans": list(spans.values()),
        "relations": relations,
        "meta": meta,
        "answer": "accept",
        "tokens": [{"text": "severe", "start": 8, "end": 14, "id": 0, "ws": True}],
    }
    others = [{"text": "Another.", "spans": [], "answer": answer} for answer in ("reject", "ignore")]
    folders.write(root / "out.jsonl", "\n".join(json.dumps(row) for row in (kept, *others)))
    return root


def cas_xmi(
    root: Path, head: str = "", text: str = TEXT, layer: str = "custom:Span", further: str = ""
) -> Path:
    spans = "".join(
        f'<{layer} xmi:id="{name}" sofa="9" begin="{units(s)}" end="{units(e)}" label="{label}"/>'
        for name, label, (s, e) in SPANS
    )
    links = "".join(
        f'<custom:Relation xmi:id="{a}{b}" sofa="9" Governor="{a}" Dependent="{b}" label="x"/>'
        for a, b in LINKS
    )
    quoted = quoteattr(text, {"\n": "&#10;"})
    sofa = f'<cas:Sofa xmi:id="9" sofaNum="1" sofaID="_InitialView" sofaString={quoted}/>'
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>{head}<xmi:XMI xmlns:xmi="http://www.omg.org/XMI" '
        'xmlns:cas="http:///uima/cas.ecore" xmlns:custom="http:///custom.ecore" '
        'xmlns:pos="http:///de/tudarmstadt/ukp/dkpro/core/api/lexmorph/type/pos.ecore" xmi:version="2.0">'
        f'<pos:POS xmi:id="50" sofa="9" begin="0" end="2" value="NN"/>{spans}{links}{further}{sofa}</xmi:XMI>'
    )
    folders.write(root / "dev" / "n1.xmi", body)
    return root


def resource(kind: str = "DocumentReference", status: str = "current", **more: Any) -> dict[str, Any]:
    return {"resourceType": kind, "id": "d1", "status": status, "subject": {"reference": "Patient/7"}, **more}


NOTE = [{"NOTE_ID": 1, "PERSON_ID": 7, "NOTE_TEXT": "Severe pain. No fever."}]
CONCEPT = [{"concept_id": 10, "domain_id": "Condition"}, {"concept_id": 11, "domain_id": "Unit"}]
TERMS = [
    {"note_nlp_id": 1, "note_id": 1, "offset": "7", "lexical_variant": "pain", "note_nlp_concept_id": 10},
    {"note_nlp_id": 2, "note_id": 1, "offset": "16", "lexical_variant": "fever", "note_nlp_concept_id": 10},
    {"note_nlp_id": 3, "note_id": 1, "offset": "13", "lexical_variant": "No", "note_nlp_concept_id": 12},
]
TABLES = {"NOTE": NOTE, "NOTE_NLP": TERMS, "CONCEPT": CONCEPT}


def as_csv(root: Path) -> Path:
    for name, rows in TABLES.items():
        cohort_folders.write_csv(root / f"{name}.csv", rows)
    return root
