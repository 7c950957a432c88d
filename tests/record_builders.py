# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind, made up: answered questions, written summaries, evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.run_record import Estimate, EvaluationRecord
from medflare.evaluation.question_metrics import AnsweredQuestion
from medflare.evaluation.summary_metrics import WrittenSummary


def answered(number: int, chosen: str, answer: str, group: str = "", **more: Any) -> AnsweredQuestion:
    """A question of three options, of which the chosen one scores best."""
    facts = {"site": "north", "adapter": "generic", "question": "Which <drug>?", "group": group, **more}
    return AnsweredQuestion(
        question_id=f"q{number}",
        options={"A": "aspirin", "B": "iron", "C": "zinc"},
        scores={"A": -3.0, "B": -3.0, "C": -3.0} | {chosen: -1.0},
        chosen=chosen,
        answer=answer,
        **facts,
    )


def written(number: int, reference: str, generated: str) -> WrittenSummary:
    """A summary of one patient; number 1 did not end."""
    return WrittenSummary(
        summary_id=f"s{number}",
        patient_id="p",
        site="north",
        adapter="generic",
        source="The <heart> ...",
        reference=reference,
        generated=generated,
        ended=number != 1,
    )


CUT = ("question cut at its front",)
QUESTIONS = [
    answered(1, "A", "A", "lung"),
    answered(2, "B", "A", "lung"),
    answered(3, "C", "C", "heart"),
    answered(4, "B", "B", "heart", cuts=CUT),
]
"""Four questions in two groups, the second answered wrongly."""
REFERENCES = ["Large left pleural effusion.", "No acute disease.", "Mild cardiomegaly with pulmonary edema."]
GENERATED = ["Left pleural effusion.", "No acute disease.", ""]


def written_for(references: list[str], generated: list[str]) -> list[WrittenSummary]:
    pairs = zip(references, generated, strict=True)
    return [written(number, *pair) for number, pair in enumerate(pairs)]


def evaluation(
    site: str, adapter: str, studies: int, metrics: Mapping[str, Estimate] | None = None, **more: Any
) -> EvaluationRecord:
    """The final test at a site that took part."""
    facts = {"role": "participant", "split": "test", "metrics": dict(metrics or {}), **more}
    return EvaluationRecord(site=site, adapter=adapter, studies=studies, **facts)
