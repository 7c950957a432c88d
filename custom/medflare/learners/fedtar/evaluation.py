# SPDX-License-Identifier: Apache-2.0
"""Drafting and scoring the reports of visits: the numbers of a round, and the final test at a site.

Of each visit, then averaged over visits; tables average over sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch

from medflare.core.json_lines import write_lines
from medflare.core.metrics import MetricNames, Metrics
from medflare.core.run_record import EvaluationRecord
from medflare.core.sample_drafts import offer_drafts
from medflare.data.visit_samples import VisitSamples
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.report_metrics import METRICS, QUICK, quick_metrics
from medflare.evaluation.visit_metrics import change_statistics, evaluate_visits, follow_ups, visit_names
from medflare.labelling.labels import label_report
from medflare.models.report_generator import DecodingSettings
from medflare.tasks.prediction_files import relative_image
from medflare.tasks.reports.evaluation import evaluate_predictions, greedy
from medflare.tasks.scoring import ScoredSite


class VisitSettings(Protocol):
    """Method settings that this module reads."""

    @property
    def decoding(self) -> DecodingSettings: ...

    @property
    def visits(self) -> int:
        """T; later visits of a site are not used."""
        ...


class VisitLearner(Protocol):
    """Learner that drafts reports of visits, as far as this module needs it."""

    site: str
    seed: int
    samples: VisitSamples
    scorers: Mapping[str, str | Path]
    fewest: int

    @property
    def settings(self) -> VisitSettings: ...

    def draft(self, rows: list[int], decoding: DecodingSettings | None = None) -> list[str]:
        """Draft reports of `rows` with the state in use; by the settings' decoding where none is given."""
        ...

    def rows_loss(self, rows: list[int]) -> float:
        """Mean negative log-likelihood per report token."""
        ...


def visit_rows(learner: VisitLearner, split: str, limit: int | None) -> list[int]:
    """Return the rows of a split's visits 1..T; the first ones, where there are more than `limit`."""
    visits = learner.samples.visits
    used = [row for row in learner.samples.rows(split) if visits[row].number <= learner.settings.visits]
    return used[:limit]


CURVES_OF_CHANGES = ("change_f1", "change_moved_f1")


def names_of(visits: int) -> MetricNames:
    """Return the names of what `curve_metrics` and `finish_site` measure over so many visits."""
    tested = [*METRICS, *visit_names(visits)]
    return MetricNames(validation=["loss", *QUICK, *CURVES_OF_CHANGES], tested={"generic": tested})


def curve_metrics(learner: VisitLearner, split: str, limit: int | None) -> Metrics:
    """Return loss, quick report scores over all visits, and scores of changes; nothing without rows."""
    rows = visit_rows(learner, split, limit)
    if not rows:
        return Metrics()
    items = predictions(learner, rows, learner.draft(rows, greedy(learner.settings.decoding)), None)
    gold, predicted = [item.gold_codes for item in items], [item.predicted_codes for item in items]
    texts = [item.reference for item in items], [item.generated for item in items]
    offer_drafts([item.study_id for item in items], *texts)
    metrics = {"loss": learner.rows_loss(rows), **quick_metrics(*texts, gold, predicted)}
    changes = change_statistics(items) if len(follow_ups(items)) >= learner.fewest else {}
    for name in CURVES_OF_CHANGES:
        if name in changes:
            metrics[name] = changes[name].value
    return Metrics(metrics, len(rows))


def finish_site(
    learner: VisitLearner,
    folder: Path,
    limit: int | None,
    split: str = "test",
) -> list[EvaluationRecord]:
    """Return the quality over all visits of a split, of each visit and of the changes between them.

    Predictions are written into `folder`.
    """
    rows = visit_rows(learner, split, limit)
    if not rows:
        return []
    tested = ScoredSite(learner.site, "participant", "generic", folder, learner.seed)
    items = predictions(learner, rows, learner.draft(rows), tested.file)
    write_lines(tested.file, items)
    scored = evaluate_predictions(items, learner.scorers, learner.seed)
    scored = scored._replace(
        estimates=scored.estimates | evaluate_visits(items, fewest=learner.fewest, seed=learner.seed)
    )
    return [tested.record(scored, len(rows), split)]


def predictions(
    learner: VisitLearner, rows: Sequence[int], texts: Sequence[str], path: Path | None
) -> list[Prediction]:
    """Return one prediction for each row.

    Args:
        path: of the file they will stand in, for the images' relative paths.
    """
    samples, before = learner.samples, codes_before(learner.samples)
    items = []
    for row, text in zip(rows, texts, strict=True):
        visit = samples.visits[row]
        image = visit.study.images[0] if visit.study.images else None
        items.append(
            Prediction(
                study_id=visit.study.study_id,
                patient_id=visit.study.patient_id,
                site=learner.site,
                adapter="generic",
                reference=visit.study.report,
                generated=text,
                gold_codes=tuple(samples.codes[row].tolist()),
                predicted_codes=label_report(text),
                image=relative_image(image, path) if image is not None and path is not None else None,
                visit=visit.number,
                days=visit.gap,
                before_codes=before[row],
                prior=visit.prior or None,
            )
        )
    return items


def codes_before(samples: VisitSamples) -> list[tuple[int, ...] | None]:
    """Return for each row the 14 codes of the patient's visit before; None for their first one."""
    codes: list[list[int]] = torch.as_tensor(samples.codes).tolist()
    last: dict[int, tuple[int, ...]] = {}
    before: list[tuple[int, ...] | None] = []
    for owner, row_codes in zip(samples.owners, codes, strict=True):
        before.append(last.get(owner))
        last[owner] = tuple(row_codes)
    return before
