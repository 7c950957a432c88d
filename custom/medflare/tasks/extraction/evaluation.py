# SPDX-License-Identifier: Apache-2.0
"""Entities and modifiers extracted from the notes of a site, and their scores."""

from __future__ import annotations

from medflare.data.patients import named_patient
from medflare.evaluation.extraction_metrics import QUICK, evaluate_extraction
from medflare.evaluation.extraction_statistics import statistic_names
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.extraction.result_folder import open_result
from medflare.tasks.scoring import TextRecords

NOTES = TextRecords(
    record_name="note",
    records=lambda cohort: cohort.notes,
    load=open_result,
    predict=Predictor.documents,
    evaluate=lambda documents, _, seed: evaluate_extraction(documents, seed=seed),
    quick=QUICK,
    patient=lambda note: named_patient(note.patient_id, note.note_id),
    metrics=statistic_names(),
)
score_result = NOTES.score_result
