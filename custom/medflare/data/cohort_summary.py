# SPDX-License-Identifier: Apache-2.0
"""Facts about a cohort for people, run records and `medflare cohort inspect`: counts, never a patient."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.inventory import TYPES
from medflare.data.cohort import Cohort
from medflare.data.notes.windows import split_note
from medflare.data.records import SPLITS, Note, Skipped, Study, Summary
from medflare.data.text_facts import question_facts, summary_facts, words_per_report
from medflare.data.visits.visit_facts import visit_facts

EXAMPLES = 3


def summarise(cohort: Cohort) -> dict[str, Any]:
    """Return JSON-ready counts of patients, studies, images, notes, labels, words and skipped records."""
    studies, notes = cohort.studies, cohort.notes
    patients = {study.patient_id for study in studies}
    texts: list[Note | Summary] = [*notes, *cohort.summaries]
    return {
        "name": cohort.name,
        "patients": len(patients | {text.patient_id for text in texts if text.patient_id}),
        "studies": len(studies),
        "images": sum(len(study.images) for study in studies),
        "notes": len(notes),
        "questions": len(cohort.questions),
        "summaries": len(cohort.summaries),
        "entities": dict(Counter(e.label for note in notes for e in note.entities).most_common()),
        "relations": dict(Counter(r.label for note in notes for r in note.relations).most_common()),
        "annotation": annotation_facts(cohort),
        "left_out": {} if notes else dict(+cohort.annotation.lines_left_out),
        "asked": question_facts(cohort.questions, cohort.texts),
        "summarised": summary_facts(cohort.summaries, cohort.texts),
        "splits": {split: _split_counts(cohort, split) for split in SPLITS},
        "patients_in_two_splits": cohort.moved,
        "labels": label_counts(studies),
        "reports_not_understood": sum(study.codes is not None and not any(study.codes) for study in studies),
        "words": words_per_report([study.report for study in studies]),
        "age": _availability([study.age is not None for study in studies]),
        "sex": dict(Counter(study.sex or "unknown" for study in studies).most_common()),
        "visits_per_patient": round(len(studies) / max(len(patients), 1), 2),
        "visits": visit_facts(studies, cohort.visits),
        "identifiers_replaced": dict(cohort.identifiers.most_common()),
        "records": cohort.records,
        "unusable": len({item.record for item in cohort.skipped}),
        "allowed": cohort.allowed / max(cohort.records, 1),
        "skipped": skipped_by_reason(cohort.skipped),
    }


def repeated_reports(cohort: Cohort) -> list[tuple[str, list[str]]]:
    """Return (text, ids of its records) of reports and notes that several patients share, commonest first.

    Real texts: for the hospital's own screen, never for a record that leaves.
    """
    records = [(study.report, study.patient_id, study.study_id) for study in cohort.studies]
    records += [(note.text, note.patient_id or note.note_id, note.note_id) for note in cohort.notes]
    patients, ids = defaultdict[str, set[str]](set), defaultdict[str, list[str]](list)
    for text, patient, record in records:
        patients[text].add(patient)
        ids[text].append(record)
    repeated = [(text, ids[text]) for text in ids if len(patients[text]) > 1]
    return sorted(repeated, key=lambda item: -len(item[1]))


def annotation_facts(cohort: Cohort) -> dict[str, Any]:
    """Return what the notes' annotation covers, what was not taken over, and what windows of a sentence lose.

    `modifiers` counts relations as "head > modifier"; empty where there are no notes.
    """
    if not cohort.notes:
        return {}
    links: Counter[str] = Counter()
    for note in cohort.notes:
        types = {entity.entity_id: entity.label for entity in note.entities}
        links.update(f"{types[r.head]} > {types[r.tail]}" for r in note.relations)
    covered = {
        name for note in cohort.notes for name in (TYPES if note.annotated is None else note.annotated)
    }
    return {
        "tasks": dict(Counter(task for note in cohort.notes for task in note.tasks).most_common()),
        "annotated": [name for name in TYPES if name in covered],
        "modifiers": dict(links.most_common()),
        "source": cohort.annotation.to_json(),
        "windows": window_losses(cohort.notes),
    }


def window_losses(notes: Sequence[Note], sentences_per_window: int = 1) -> dict[str, int]:
    """Return the number of windows of so many sentences, and the annotation that fits in none of them."""
    windowed = [split_note(note, sentences_per_window) for note in notes]
    return {
        "sentences_per_window": sentences_per_window,
        "windows": sum(len(item.windows) for item in windowed),
        "entities_cut": sum(item.entities_cut for item in windowed),
        "relations_lost": sum(item.relations_lost for item in windowed),
        "relations_total": sum(item.relations_total for item in windowed),
    }


def label_counts(studies: Sequence[Study]) -> dict[str, dict[str, int]]:
    """Return condition -> code name -> studies; empty where nothing is labelled."""
    coded = [study.codes for study in studies if study.codes is not None]
    if not coded:
        return {}
    counts = [Counter(column) for column in zip(*coded, strict=True)]
    return {
        condition: {code.name.lower(): counts[index][code] for code in Code}
        for index, condition in enumerate(CONDITIONS)
    }


def skipped_by_reason(skipped: Sequence[Skipped]) -> dict[str, dict[str, Any]]:
    """Return reason -> count and the first few examples, most frequent reason first."""
    groups: dict[str, list[Skipped]] = defaultdict(list)
    for item in skipped:
        groups[item.reason].append(item)
    return {
        reason: {
            "count": len(items),
            "examples": [f"{item.record}: {item.detail}" for item in items[:EXAMPLES]],
        }
        for reason, items in sorted(groups.items(), key=lambda pair: -len(pair[1]))
    }


def _split_counts(cohort: Cohort, split: str) -> dict[str, int]:
    studies = cohort.split(split)
    texts: list[Note | Summary] = [*cohort.notes, *cohort.summaries]
    written = {text.patient_id for text in texts if text.split == split and text.patient_id}
    return {
        "patients": len({study.patient_id for study in studies} | written),
        "studies": len(studies),
        "images": sum(len(study.images) for study in studies),
        "notes": sum(note.split == split for note in cohort.notes),
        "questions": sum(question.split == split for question in cohort.questions),
        "summaries": sum(summary.split == split for summary in cohort.summaries),
    }


def _availability(known: Sequence[bool]) -> dict[str, int]:
    return {"known": sum(known), "unknown": len(known) - sum(known)}
