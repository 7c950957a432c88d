# SPDX-License-Identifier: Apache-2.0
"""How a site scores its own summaries, during a run and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medflare.core.json_lines import write_lines
from medflare.core.run_record import EvaluationRecord
from medflare.data.load import load_cohort
from medflare.data.records import Summary
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.summary_metrics import WrittenSummary, evaluate_summaries
from medflare.tasks.answer_result import load_summariser
from medflare.tasks.scoring import AdapterKind, Role, evaluation_record, kind_of, of_split, opened
from medflare.tasks.summaries.summaries import Summariser

Scorers = Mapping[str, str | Path] | None


def written(
    summariser: Summariser, summaries: Sequence[Summary], site: str, adapter: AdapterKind
) -> list[WrittenSummary]:
    """Every text with what the model made of it."""
    return [
        WrittenSummary(
            summary_id=summary.summary_id,
            patient_id=summary.patient_id,
            site=site,
            adapter=adapter,
            source=summary.source,
            reference=summary.target,
            generated=found.text,
            group=summary.group,
            ended=found.ended,
            cut=found.cut,
        )
        for summary, found in zip(summaries, summariser.write(summaries), strict=True)
    ]


def score_summaries(
    summariser: Summariser,
    summaries: Sequence[Summary],
    site: str,
    role: Role,
    adapter: AdapterKind,
    folder: Path,
    seed: int = 0,
    scorers: Scorers = None,
) -> EvaluationRecord:
    """Summarises texts, keeps the summaries in a file and scores them."""
    found = written(summariser, summaries, site, adapter)
    path = write_lines(folder / f"predictions_{adapter}.jsonl", found)
    scored = evaluate_summaries(found, scorers=scorers, seed=seed)
    return evaluation_record(scored, path, len(found), site, role, adapter)


def score_result(
    result: Path,
    site: SiteConfig,
    *,
    role: Role,
    adapter: Path | None,
    split: str,
    folder: Path,
    seed: int,
    scorers: Scorers = None,
) -> EvaluationRecord:
    """Tests a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
        scorers: optional scorer -> folder of its weights, instead of those in site.yaml.
    """
    summariser = opened(load_summariser, result, site, adapter)
    summaries = of_split(load_cohort(site).summaries, split, site.name, "summary")
    own = dict(site.scorers) if scorers is None else scorers
    return score_summaries(summariser, summaries, site.name, role, kind_of(adapter), folder, seed, own)
