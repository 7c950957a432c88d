# SPDX-License-Identifier: Apache-2.0
"""FHIR resources of what a model wrote, as JSON that is valid in R4B and in R5.

Every resource is preliminary, bears the security label AIAST ("Artificial Intelligence asserted"), names the
model as a contained Device, and says that it is a draft. Elements that R4B and R5 do not share are not used.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from medflare.core.origin import DRAFT, MARKS, Origin
from medflare.data.records import Note

Resource = dict[str, Any]
STATUS = "preliminary"
AI_ASSERTED = {
    "system": "http://terminology.hl7.org/CodeSystem/v3-ObservationValue",
    "code": "AIAST",
    "display": "Artificial Intelligence asserted",
}
RADIOLOGY = {"system": "http://terminology.hl7.org/CodeSystem/v2-0074", "code": "RAD", "display": "Radiology"}
IMAGING_REPORT = {"system": "http://loinc.org", "code": "18748-4", "display": "Diagnostic imaging study"}
PRESENCE = {"positive": "present", "negative": "absent", "uncertain": "possible"}
"""Code of a finding -> what an Observation says of it."""
DEVICE = "model"
LONGEST_ID, DIGEST = 64, 12
"""Characters of a FHIR id, and of those that a digest has."""


def diagnostic_report(
    identity: str,
    report: str,
    findings: Mapping[str, str],
    origin: Origin,
    warnings: Iterable[str] = (),
    *,
    study: str = "",
    patient: str = "",
) -> Resource:
    """Return a draft as a DiagnosticReport with an Observation for each finding.

    Args:
        identity: the resource's id.
        findings: condition -> positive, negative or uncertain.
        study, patient: StudyInstanceUID and the hospital's number of the patient; "" leaves them out.
    """
    conclusion = "\n".join([f"{DRAFT} {origin.words}", *(f"! {text}" for text in warnings)])
    observations = [
        {
            "resourceType": "Observation",
            "id": f"finding-{number}",
            "status": STATUS,
            "code": {"text": name},
            "valueCodeableConcept": {"text": PRESENCE[code]},
            "device": {"reference": f"#{DEVICE}"},
        }
        for number, (name, code) in enumerate(findings.items(), start=1)
    ]
    resource: Resource = {
        **_head("DiagnosticReport", identity),
        "contained": [_device(origin), *observations],
        **({"identifier": [_study(study)]} if study else {}),
        "status": STATUS,
        "category": [{"coding": [RADIOLOGY]}],
        "code": {"coding": [IMAGING_REPORT]},
        **({"subject": _subject(patient)} if patient else {}),
        "result": [{"reference": f"#{item['id']}"} for item in observations],
        "conclusion": conclusion,
        "presentedForm": [_text(report, title=DRAFT)],
    }
    return resource if observations else {k: v for k, v in resource.items() if k != "result"}


def note_resources(note: Note, origin: Origin) -> list[Resource]:
    """Return a note as a DocumentReference, and an Observation for each of its marked entities.

    Modifiers are components of the Observation of their entity.
    """
    identity = resource_id(note.note_id)
    document: Resource = {
        "resourceType": "DocumentReference",
        "id": identity,
        "status": "current",
        "content": [{"attachment": _text(note.text)}],
    }
    entities = {entity.entity_id: entity for entity in note.entities}
    modifiers = {relation.tail for relation in note.relations}
    words = {
        name: " ".join(note.text[start:end] for start, end in entity.spans)
        for name, entity in entities.items()
    }
    observations = []
    for name, entity in entities.items():
        if name in modifiers:
            continue
        places = ", ".join(f"{start} to {end}" for start, end in entity.spans)
        parts = [
            {"code": {"text": entities[relation.tail].label}, "valueString": words[relation.tail]}
            for relation in note.relations
            if relation.head == name
        ]
        observations.append(
            {
                **_head("Observation", resource_id(f"{note.note_id}-{name}")),
                "contained": [_device(origin)],
                "status": STATUS,
                "code": {"text": entity.label},
                "valueString": words[name],
                "note": [{"text": f"{MARKS} Characters {places} of the text."}],
                "device": {"reference": f"#{DEVICE}"},
                "derivedFrom": [{"reference": f"DocumentReference/{identity}"}],
                **({"component": parts} if parts else {}),
            }
        )
    return [document, *observations]


def resource_id(name: str) -> str:
    """Return a name as FHIR allows an id: at most LONGEST_ID letters, digits, points and hyphens.

    What another name could become too ends with a digest of its own name: two patients' notes, "Möller 1" and
    "Müller 1" for instance, must not be one resource.
    """
    allowed = "".join(c if c.isascii() and (c.isalnum() or c in ".-") else "-" for c in name)
    if allowed == name and 0 < len(name) <= LONGEST_ID:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST]
    return f"{allowed[-(LONGEST_ID - DIGEST - 1) :]}-{digest}".lstrip("-")


def write_ndjson(path: Path, resources: Iterable[Resource]) -> Path:
    """Write resources one a line, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    lines = "".join(json.dumps(resource, ensure_ascii=False) + "\n" for resource in resources)
    scratch.write_text(lines, encoding="utf-8")
    os.replace(scratch, path)
    return path


def _head(kind: str, identity: str) -> Resource:
    return {"resourceType": kind, "id": identity, "meta": {"security": [AI_ASSERTED]}}


def _device(origin: Origin) -> Resource:
    return {
        "resourceType": "Device",
        "id": DEVICE,
        "manufacturer": "medflare",
        "modelNumber": origin.adapter,
        "note": [{"text": origin.words}],
    }


def _study(uid: str) -> Resource:
    return {"system": "urn:dicom:uid", "value": f"urn:oid:{uid}"}


def _subject(patient: str) -> Resource:
    return {"identifier": {"value": patient}}


def _text(text: str, **further: str) -> Resource:
    data = base64.b64encode(text.encode()).decode()
    return {"contentType": "text/plain; charset=utf-8", "data": data, **further}
