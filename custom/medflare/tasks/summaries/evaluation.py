# SPDX-License-Identifier: Apache-2.0
"""Scores summaries of a site's texts, during a run and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medflare.core.json_lines import write_lines
from medflare.core.run_record import EvaluationRecord
from medflare.data.load import load_cohort
from medflare.data.records import Summary
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.summary_metrics import WrittenSummary, evaluate_summaries
from medflare.tasks.scoring import (
    AdapterKind,
    Role,
    adapter_kind,
    evaluation_record,
    open_on_site,
    records_of_split,
)
from medflare.tasks.summaries.summariser import Summariser
from medflare.tasks.summaries.summariser_folder import load_summariser

Scorers = Mapping[str, str | Path] | None


def write_summaries(
    summariser: Summariser, summaries: Sequence[Summary], site: str, adapter: AdapterKind
) -> list[WrittenSummary]:
    """Return every text with the summary that the model wrote."""
    return [
        WrittenSummary(
            summary_id=summary.summary_id,
            patient_id=summary.patient_id,
            site=site,
            adapter=adapter,
            source=summary.source,
            reference=summary.target,
            generated=generated.text,
            group=summary.group,
            ended=generated.ended,
            cut=generated.cut,
        )
        for summary, generated in zip(summaries, summariser.write(summaries), strict=True)
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
    """Summarise texts, write the summaries to a file and score them."""
    summaries_written = write_summaries(summariser, summaries, site, adapter)
    path = write_lines(folder / f"predictions_{adapter}.jsonl", summaries_written)
    scored = evaluate_summaries(summaries_written, scorers=scorers, seed=seed)
    return evaluation_record(scored, path, len(summaries_written), site, role, adapter)


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
    """Score a result folder on a site's split.

    Args:
        adapter: the site's own `personalised` folder instead of the result's adapter, or None.
        scorers: optional scorer -> folder of its weights, instead of those in site.yaml.
    """
    summariser = open_on_site(load_summariser, result, site, adapter)
    summaries = records_of_split(load_cohort(site).summaries, split, site.name, "summary")
    chosen = dict(site.scorers) if scorers is None else scorers
    return score_summaries(
        summariser, summaries, site.name, role, adapter_kind(adapter), folder, seed, chosen
    )
