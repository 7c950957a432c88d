# SPDX-License-Identifier: Apache-2.0
"""Curves of the training: one chart per metric, with every site and the example-weighted mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import number_or_missing, sentence_case
from medflare.reporting.metric_names import PHASES, curve_name
from medflare.reporting.sections import weights
from medflare.reporting.sections.series import site_colours
from medflare.reporting.views import Figure, Table

SHOWN_AT_ONCE = 6
FIRST = (
    *("loss", "label_f1", "bleu_4", "rouge_l", "cider"),
    *("ner_strict_f1", "re_gold_strict_f1", "re_e2e_strict_f1", "parse_failure_rate", "loss_hcl"),
)
"""Order of the charts; further scores follow, then further loss terms."""
NOT_A_CURVE = ("seconds", "steps", "examples")


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `training.html`; None where nothing was measured and no rule reports weights."""
    curves, weighted = curves_view(record), weights.view(record)
    return {"curves": curves, "weights": weighted} if curves or weighted else None


def curves_view(record: RunRecord) -> dict[str, Any] | None:
    """Return the charts of all metrics of the rounds and their means as numbers; None without metrics."""
    entries = [values for r in record.rounds for values in (*r.metrics.values(), r.mean)]
    names = sorted(filter(_is_curve, dict.fromkeys(n for values in entries for n in values)), key=_importance)
    if not names:
        return None
    colours = {s: k for s, k in site_colours(record).items() if any(s in r.metrics for r in record.rounds)}
    colours["mean"] = "all"
    charts = [_figure(record, name, colours) for name in names]
    rows = [
        [entry.round + 1, *(number_or_missing(entry.mean.get(name)) for name in names)]
        for entry in record.rounds
    ]
    caption = "Means over sites, weighted by examples."
    return {
        "legend": colours,
        "figures": charts[:SHOWN_AT_ONCE],
        "more": charts[SHOWN_AT_ONCE:],
        "contrastive": any("hcl" in name for name in names),
        "means": Table(head=["round", *map(curve_name, names)], rows=rows, caption=caption),
    }


def _is_curve(metric: str) -> bool:
    return not any(metric == word or metric.endswith("_" + word) for word in NOT_A_CURVE)


def _importance(metric: str) -> tuple[int, str]:
    """Return a sort key: validation scores and the language loss first, further loss terms last."""
    bare = next((metric.removeprefix(p) for p in PHASES if metric.startswith(p)), metric)
    return (FIRST.index(bare) if bare in FIRST else len(FIRST) + ("loss" in bare), metric)


def _figure(record: RunRecord, name: str, colours: Mapping[str, str]) -> Figure:
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in record.rounds:
        for site, values in {**entry.metrics, "mean": entry.mean}.items():
            if name in values:
                series.setdefault(site, []).append((entry.round + 1, values[name]))
    title = curve_name(name)
    return Figure(title=sentence_case(title), drawing=line_chart(series, colours, title.split(",")[0]))
