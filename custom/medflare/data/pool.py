# SPDX-License-Identifier: Apache-2.0
"""Several sources as one cohort (the centralised baseline), and a few whole patients of a large one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from medflare.data.records import Note, Study
from medflare.data.splits import one_split_per_patient, stable_hash


def limit_studies(studies: Sequence[Study], limit: int, seed: int) -> list[Study]:
    """Return at most `limit` studies of whole patients (at least one patient), the same ones every time.

    The order of patients is independent of the one that splits them, so all splits are represented.
    """
    kept = choose_within_limit((study.patient_id for study in studies), limit, seed)
    return [study for study in studies if study.patient_id in kept]


def limit_notes(notes: Sequence[Note], limit: int, seed: int) -> list[Note]:
    """Return at most `limit` notes, as `limit_studies` does; a note without a patient counts as its own."""
    kept = choose_within_limit(map(patient_of_note, notes), limit, seed)
    return [note for note in notes if patient_of_note(note) in kept]


def choose_within_limit(patients: Iterable[str], limit: int, seed: int) -> set[str]:
    """Return patients who have at most `limit` records together; `patients` has one entry for each record."""
    counts = Counter(patients)
    kept: set[str] = set()
    total = 0
    for patient in sorted(counts, key=lambda name: stable_hash(f"limit {name}", seed)):
        if total + counts[patient] <= limit or not kept:
            kept.add(patient)
            total += counts[patient]
    return kept


def patient_of_note(note: Note) -> str:
    """Return the note's patient where the source names one, else the note's own id."""
    return note.patient_id or note.note_id


def pool_studies(studies: Sequence[Study]) -> tuple[list[Study], int]:
    """Pool studies of several sources: ids that cannot collide, and one split for each patient over all
    sources.

    Args:
        studies: with `extra["source"]` (number of the source) and `extra["home"]` (its folder). Patients of
            one folder that is read twice are the same people, those of two folders are not.

    Returns:
        The studies; how many patients had been in two splits.
    """
    folders = sorted({study.extra["home"] for study in studies})
    renamed = []
    for study in studies:
        prefix = f"{folders.index(study.extra['home'])}/" if len(folders) > 1 else ""
        extra = {key: value for key, value in study.extra.items() if key != "home"}
        patient, record = prefix + study.patient_id, f"{study.extra['source']}/{study.study_id}"
        renamed.append(replace(study, patient_id=patient, study_id=record, extra=extra))
    given, moved = one_split_per_patient((study.patient_id, study.split) for study in renamed)
    return [replace(study, split=given[study.patient_id]) for study in renamed], moved


def pool_notes(sources: Sequence[tuple[str, Sequence[Note]]]) -> tuple[list[Note], int]:
    """Pool the notes of (folder, notes) as `pool_studies` pools studies."""
    folders = sorted({folder for folder, _ in sources})
    renamed = []
    for number, (folder, notes) in enumerate(sources):
        prefix = f"{folders.index(folder)}/" if len(folders) > 1 else ""
        for note in notes:
            patient = prefix + patient_of_note(note)
            renamed.append(replace(note, note_id=f"{number}/{note.note_id}", patient_id=patient))
    given, moved = one_split_per_patient((note.patient_id, note.split) for note in renamed)
    return [replace(note, split=given[note.patient_id]) for note in renamed], moved
