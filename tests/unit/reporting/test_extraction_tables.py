# SPDX-License-Identifier: Apache-2.0
"""Tables of extraction scores: what stands where, and how wide."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.run_record import ComparisonRecord, Estimate
from medflare.evaluation.extraction_metrics import evaluate_extraction
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.reporting.extraction_tables import comparison_table, overview, type_table
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import ScoreRow, columns_of


def shown(table: Table, width: int = 100) -> list[str]:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return [line.rstrip() for line in console.export_text().splitlines()]


def estimate(value: float, half: float = 0.05) -> Estimate:
    return Estimate(value=value, low=value - half, high=value + half)


def row(site: str, role: str, **metrics: Estimate) -> ScoreRow:
    facts: dict[str, Any] = {
        "task": "extraction",
        "method": "m",
        "adapter": "personalised",
        "split": "test",
        "studies": 12,
    }
    return ScoreRow(site=site, role=role, metrics=metrics, **facts)


def perfect() -> ScoredDocument:
    heads = [EntityMention("problem", ((9 * i, 9 * i + 4),)) for i in range(7)]
    links = [
        Link(head, EntityMention(name, ((70 + i, 71 + i),)))
        for i, name in enumerate(MODIFIER_TYPES)
        for head in heads[:1]
    ]
    return ScoredDocument(
        note_id="n", site="s", adapter="generic", gold_entities=heads, predicted_entities=heads,
        gold_links=links, links_gold_heads=links,
    )  # fmt: skip


def test_the_widest_values_fit_a_hundred_columns() -> None:
    scored = evaluate_extraction(
        [perfect(), perfect().model_copy(update={"note_id": "another"})], replicates=10
    )
    lines = shown(type_table(scored, "re_gold", "site-1, generic", MODIFIER_TYPES))
    assert "…" not in "".join(lines)
    result = next(line for line in lines if "reference_range" in line)
    assert result.split() == ["reference_range", "2", *["100.0", "100.0", "100.0", "[100.0,", "100.0]"] * 2]
    full = {name: Estimate(value=1, low=1, high=1) for name in ("ner_strict_f1", "ner_lenient_f1")}
    full |= {name: full["ner_strict_f1"] for name in ("re_gold_strict_f1", "re_e2e_strict_f1")}
    assert "…" not in "".join(shown(overview([row("hospital-of-the-north", "participant", **full)])))


def test_types_without_marks_and_predictions_are_left_out() -> None:
    scored = evaluate_extraction(
        [perfect(), perfect().model_copy(update={"note_id": "another"})], replicates=10
    )
    lines = shown(type_table(scored, "ner", "all sites, generic", ENTITY_TYPES))
    assert lines[0] == "all sites, generic: entities"
    assert [line.split("  ")[0].strip() for line in lines if "100.0" in line] == [
        "all types", "mean over types", "type ignored", "problem",
    ]  # fmt: skip


def test_sites_that_took_part_and_unseen_ones_are_told_apart() -> None:
    rows = [row("a", "participant", ner_strict_f1=estimate(0.5)), row("b", "unseen")]
    text = "\n".join(shown(overview(rows)))
    assert "personalised, took part" in text
    assert "personalised, unseen" in text
    assert "45.0–55.0" in text


def test_comparisons_say_what_was_subtracted_and_how_sure_it_is() -> None:
    item = ComparisonRecord(
        metric="re_e2e_strict_f1", site="a", ours="generic", theirs="none",
        value=0.062, low=-0.01, high=0.13, p=0.0512,
    )  # fmt: skip
    lines = shown(comparison_table([item], "zero-shot.jsonl"))
    assert "ours minus zero-shot.jsonl" in lines[0]
    assert lines[4].split("  ")[-2:] == ["+6.2 [-1.0, +13.0]", "0.051"]
    assert "RE end to end strict F1" in lines[4]
    assert "not corrected" in " ".join(lines)


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("ner_strict_f1", "NER strict F1"),
        ("ner_lenient_untyped_precision", "NER lenient untyped P"),
        ("re_e2e_macro_strict_recall", "RE end to end macro strict R"),
        ("parse_failure_rate", "unreadable outputs"),
    ],
)
def test_display_names(metric: str, name: str) -> None:
    assert display_name(metric) == name


def test_the_page_and_the_run_table_choose_the_four_headline_scores() -> None:
    metrics = dict.fromkeys(("re_e2e_strict_f1", "ner_strict_f1", "ner_strict_f1/drug"), estimate(0.5))
    assert columns_of([row("a", "participant", **metrics)]) == ["ner_strict_f1", "re_e2e_strict_f1"]
