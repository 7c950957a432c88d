# SPDX-License-Identifier: Apache-2.0
"""Temporal rounds: which site had which visit, and how far each exchange moved the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from medflare.core.run_record import RoundRecord, RunRecord
from medflare.reporting.charts.bars import share_chart
from medflare.reporting.charts.drawing import COLOURS, colours_of
from medflare.reporting.charts.lines import Points, line_chart
from medflare.reporting.formatting import MISSING, number, number_or_missing, sentence_case
from medflare.reporting.metric_names import curve_name
from medflare.reporting.sections.series import site_colours
from medflare.reporting.views import Cell, Disclosure, Figure, Legend, Table

BEFORE = "before the round"
"""Name of the share that β leaves to the model before the round."""
LISTED, NAMED_ABSENCES = 120, 12
"""Exchanges in the table of all; absences that are named."""


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `temporal.html`; None for a run whose rounds are one exchange."""
    rounds = [entry for entry in record.rounds if entry.exchanges]
    if not rounds:
        return None
    visits = [visit for entry in rounds for visit in entry.exchanges]
    sites = sorted({site for visit in visits for site in (*visit.accepted, *visit.absent)})
    return {
        **_last_round(rounds, sites),
        **_absences(rounds),
        "convergence": _convergence(record, rounds),
        "weights": _weights(rounds),
        "all": _all_exchanges(rounds, sites),
    }


# ---- who took part -----------------------------------------------------------------------------------------


def _last_round(rounds: Sequence[RoundRecord], sites: Sequence[str]) -> dict[str, Any]:
    """Return the visits of the last complete round, site by site."""
    complete = max(len(entry.exchanges) for entry in rounds)
    entry = [entry for entry in rounds if len(entry.exchanges) == complete][-1]
    masked = any("terms" in visit.protection for visit in entry.exchanges)
    rows = [[f"visit {t}", *_row(visit, sites)] for t, visit in enumerate(entry.exchanges, 1)]
    weight = "" if masked else ", and its weight"
    caption = f"Round {entry.round + 1}: training examples of each visit{weight}."
    table = Table(head=["", *sites, *_head(entry.exchanges)], rows=rows, caption=caption)
    return {"last": table, "masked": masked}


def _head(visits: Sequence[RoundRecord]) -> list[str]:
    alpha = ["α"] if any("alpha" in visit.checks for visit in visits) else []
    return ["training loss", *alpha, "step of the model"]


def _row(visit: RoundRecord, sites: Sequence[str]) -> list[object]:
    """Return what every site had of a visit, the loss, α where the rule has it, and the update's norm."""
    alpha = [visit.checks["alpha"]] if "alpha" in visit.checks else []
    numbers = [visit.mean.get("train_loss"), *alpha, visit.checks.get("update_norm")]
    return [*(_cell(visit, site) for site in sites), *map(number_or_missing, numbers)]


def _cell(visit: RoundRecord, site: str) -> Cell:
    """Return the examples that a site had of a visit, and its weight."""
    no_examples = Cell(small="no examples")
    if site not in visit.accepted:
        return Cell(small="absent") if site in visit.absent else Cell(text=MISSING)
    if "terms" in visit.protection:  # a masked sum: the server does not learn on how many examples
        return Cell(text="trained") if visit.metrics.get(site) else no_examples
    if not visit.accepted[site]:
        return no_examples
    weight = visit.rule.get("weights", {}).get(site)
    small = "" if weight is None else f"w = {number(weight)}"
    return Cell(text=f"{visit.accepted[site]:,}", small=small)


def _absences(rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return which site was missing from which visit, and why."""
    lines = [
        f"Round {entry.round + 1}, visit {t}, {site}: {why}"
        for entry in rounds
        for t, visit in enumerate(entry.exchanges, 1)
        for site, why in sorted(visit.absent.items())
    ]
    more = [f"and {len(lines) - NAMED_ABSENCES} more"] if len(lines) > NAMED_ABSENCES else []
    return {"absences": len(lines), "absence_lines": lines[:NAMED_ABSENCES] + more}


def _all_exchanges(rounds: Sequence[RoundRecord], sites: Sequence[str]) -> Disclosure:
    """Return every exchange as a line, of a long run the last ones."""
    every = [(entry.round + 1, t, visit) for entry in rounds for t, visit in enumerate(entry.exchanges, 1)]
    shown = every[-LISTED:]
    rows = [[f"round {r}", t, *_row(visit, sites)] for r, t, visit in shown]
    head = ["", "visit", *sites, *_head([visit for _, _, visit in shown])]
    last = f"The last {LISTED} of {len(every)} exchanges"
    title = "All exchanges" if len(shown) == len(every) else last
    return Disclosure(summary=title, table=Table(head=head, rows=rows))


# ---- curves ------------------------------------------------------------------------------------------------


def _visit_colours(count: int) -> dict[str, str]:
    """Return name of a visit -> CSS class; the last colour is left to the model before the round."""
    return colours_of([f"visit {t}" for t in range(1, count + 1)], COLOURS - 1)


def _convergence(record: RunRecord, rounds: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return validation and training loss by exchanges, in which runs of different workflows compare."""
    size = max(len(entry.exchanges) for entry in rounds)
    sites = {s: c for s, c in site_colours(record).items() if any(s in entry.metrics for entry in rounds)}
    colours: Legend = {**sites, "mean": "all"}
    metric = record.best_metric or "val_loss"
    series = {name: points for name in colours if (points := _validation(rounds, name, metric, size))}
    often = min((b[0] - a[0] for points in series.values() for a, b in pairwise(points)), default=size)
    title = curve_name(metric)
    validation = line_chart(series, colours, title.split(",")[0], "exchange", often)
    visits = _visit_colours(size)
    losses = {name: _training(rounds, t) for t, name in enumerate(visits)}
    training = line_chart(losses, visits, "loss", "exchange", size)
    return {
        "sites": colours if validation else {},
        "validation": Figure(
            title=sentence_case(title), drawing=validation, remark=f"{size} exchanges are a round"
        ),
        "visits": visits,
        "training": Figure(
            title="Training loss, visit by visit",
            drawing=training,
            remark="mean of the sites that have the visit",
        ),
    }


def _validation(rounds: Sequence[RoundRecord], name: str, metric: str, size: int) -> Points:
    """Return (exchange, value) of a site's metric, or of the mean."""
    return [
        ((entry.round + 1) * size, values[metric])
        for entry in rounds
        if metric in (values := entry.mean if name == "mean" else entry.metrics.get(name, {}))
    ]


def _training(rounds: Sequence[RoundRecord], place: int) -> Points:
    """Return (exchange, mean training loss) of one visit of every round."""
    visits = [visit for entry in rounds for visit in entry.exchanges[place : place + 1]]
    return [(v.round + 1, v.mean["train_loss"]) for v in visits if "train_loss" in v.mean]


def _weights(rounds: Sequence[RoundRecord]) -> dict[str, Any] | None:
    """Return α of every visit and β over rounds; None where the rule does not learn them."""
    entries = [entry for entry in rounds if entry.rule.get("alpha") and entry.rule.get("beta")]
    if not entries:
        return None
    visits = _visit_colours(len(entries[-1].rule["alpha"]))
    parts = {BEFORE: f"s{COLOURS - 1}", **visits}
    alpha: dict[str, Points] = {
        name: [(entry.round + 1, float(entry.rule["alpha"][t])) for entry in entries]
        for t, name in enumerate(visits)
    }
    beta = {name: [float(entry.rule["beta"][t]) for entry in entries] for t, name in enumerate(parts)}
    learnt = "learnt from validation" if any("slopes" in entry.rule for entry in entries) else ""
    shares = share_chart([entry.round + 1 for entry in entries], beta, parts, "β")
    rows = [
        [entry.round + 1, *map(number, entry.rule["alpha"]), *map(number, entry.rule["beta"])]
        for entry in entries[-LISTED:]
    ]
    head = ["round", *(f"α, {name}" for name in visits), *(f"β, {name}" for name in parts)]
    return {
        "legend": parts,
        "figures": [
            Figure(title="α, the step of each visit", drawing=line_chart(alpha, visits, "α"), remark=learnt),
            Figure(title="β, what a round's model is made of", drawing=shares, remark="adds up to 1"),
        ],
        "numbers": Disclosure(summary="α and β as numbers", table=Table(head=head, rows=rows)),
    }
