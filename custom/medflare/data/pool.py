# SPDX-License-Identifier: Apache-2.0
"""Several sources as one cohort (the centralised baseline), and a few whole patients of a large one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from medflare.data.records import Note, Study
from medflare.data.splits import one_per_patient, stable_hash


def whole_patients(studies: Sequence[Study], limit: int, seed: int) -> list[Study]:
    """At most `limit` studies of whole patients (at least one patient), the same ones every time.

    The order of patients is independent of the one that splits them, so all splits are represented.
    """
    kept = chosen((study.patient_id for study in studies), limit, seed)
    return [study for study in studies if study.patient_id in kept]


def whole_patients_of_notes(notes: Sequence[Note], limit: int, seed: int) -> list[Note]:
    """At most `limit` notes, as whole_patients; a note without a patient is its own."""
    kept = chosen(map(owner, notes), limit, seed)
    return [note for note in notes if owner(note) in kept]


def chosen(patients: Iterable[str], limit: int, seed: int) -> set[str]:
    """Patients (one entry for each record of theirs) who have at most `limit` records together."""
    counts = Counter(patients)
    kept: set[str] = set()
    total = 0
    for patient in sorted(counts, key=lambda name: stable_hash(f"limit {name}", seed)):
        if total + counts[patient] <= limit or not kept:
            kept.add(patient)
            total += counts[patient]
    return kept


def owner(note: Note) -> str:
    """Whose note it is: the patient where the source names one, else the note itself."""
    return note.patient_id or note.note_id


def settle(studies: Sequence[Study]) -> tuple[list[Study], int]:
    """Pooled studies with ids that cannot collide and one split for each patient over all sources.

    Expects `extra["source"]` (number of the source) and `extra["home"]` (its folder): patients of one folder
    that is read twice are the same people, those of two folders are not. Returns how many patients had
    been in two splits, too.
    """
    homes = sorted({study.extra["home"] for study in studies})
    renamed = []
    for study in studies:
        mark = f"{homes.index(study.extra['home'])}/" if len(homes) > 1 else ""
        extra = {key: value for key, value in study.extra.items() if key != "home"}
        patient, record = mark + study.patient_id, f"{study.extra['source']}/{study.study_id}"
        renamed.append(replace(study, patient_id=patient, study_id=record, extra=extra))
    given, moved = one_per_patient((study.patient_id, study.split) for study in renamed)
    return [replace(study, split=given[study.patient_id]) for study in renamed], moved


def settle_notes(sources: Sequence[tuple[str, Sequence[Note]]]) -> tuple[list[Note], int]:
    """Pooled notes of (folder, notes), as `settle` does it: ids that cannot collide, one split a patient."""
    homes = sorted({home for home, _ in sources})
    renamed = []
    for number, (home, notes) in enumerate(sources):
        mark = f"{homes.index(home)}/" if len(homes) > 1 else ""
        for note in notes:
            renamed.append(replace(note, note_id=f"{number}/{note.note_id}", patient_id=mark + owner(note)))
    given, moved = one_per_patient((note.patient_id, note.split) for note in renamed)
    return [replace(note, split=given[note.patient_id]) for note in renamed], moved
