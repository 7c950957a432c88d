# SPDX-License-Identifier: Apache-2.0
"""The page's account of temporal rounds: who had which visit, and how far each one moved the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from medflare.core.run_record import RoundRecord, RunRecord
from medflare.reporting.html import Html, details, figure, legend, paragraph, safe, table
from medflare.reporting.page_results import site_colours
from medflare.reporting.plots import COLOURS, Points, line_chart
from medflare.reporting.plots_shares import share_chart
from medflare.reporting.svg import number
from medflare.reporting.tables import curve_name

BEFORE = "before the round"
LISTED, MISSED = 120, 12
"""Exchanges in the table of all; absences that are named."""
LEAD = (
    "A round goes through the visits one after the other: each is an exchange of updates, trained on that "
    "visit alone. A site without examples of a visit takes part with nothing."
)
MEANING = (
    "α is how far an exchange moves the model towards the mean of the sites that have the visit. β is what "
    "the model at the end of a round is made of: the visits' means, and what is left of the model before it."
)
UNSEEN = (
    "Updates were summed under masks: how many examples of a visit a site has is not known here, only that "
    "it trained on some."
)


def exchanges(record: RunRecord) -> Html:
    """Visits of temporal rounds; nothing for a run whose rounds are one exchange."""
    rounds = [entry for entry in record.rounds if entry.exchanges]
    if not rounds:
        return Html("")
    sites = sorted(
        {s for entry in rounds for visit in entry.exchanges for s in (*visit.accepted, *visit.absent)}
    )
    parts = [paragraph(LEAD), _last(rounds, sites), _missed(rounds), _convergence(record, rounds)]
    return Html("".join([*parts, _coefficients(rounds), _all(rounds, sites)]))


# ---- who took part -----------------------------------------------------------------------------------------


def _last(rounds: Sequence[RoundRecord], sites: Sequence[str]) -> Html:
    """The visits of the last round that came to its end, site by site."""
    whole = max(len(entry.exchanges) for entry in rounds)
    entry = [entry for entry in rounds if len(entry.exchanges) == whole][-1]
    rows = [[f"visit {t}", *_row(visit, sites)] for t, visit in enumerate(entry.exchanges, 1)]
    hidden = any("terms" in visit.protection for visit in entry.exchanges)
    caption = f"Round {entry.round + 1}: training examples of each visit" + (
        "" if hidden else ", and its weight"
    )
    why = paragraph(UNSEEN, "why") if hidden else ""
    return Html(table(["", *sites, *_head(entry.exchanges)], rows, caption=caption + ".") + why)


def _head(visits: Sequence[RoundRecord]) -> list[str]:
    return [
        "training loss",
        *(["α"] if any("alpha" in v.checks for v in visits) else []),
        "step of the model",
    ]


def _row(visit: RoundRecord, sites: Sequence[str]) -> list[object]:
    cells: list[object] = [_cell(visit, site) for site in sites]
    told = [visit.mean.get("train_loss"), visit.checks.get("alpha"), visit.checks.get("update_norm")]
    if "alpha" not in visit.checks:
        del told[1]
    return cells + ["–" if value is None else number(value) for value in told]


def _cell(visit: RoundRecord, site: str) -> Html:
    """What a site had of a visit."""
    if site not in visit.accepted:
        return Html("<small>absent</small>" if site in visit.absent else "–")
    if "terms" in visit.protection:
        return Html("trained" if visit.metrics.get(site) else "<small>no examples</small>")
    if not visit.accepted[site]:
        return Html("<small>no examples</small>")
    weight = visit.rule.get("weights", {}).get(site)
    small = "" if weight is None else f"<small>w = {number(weight)}</small>"
    return Html(f"{visit.accepted[site]:,}{small}")


def _missed(rounds: Sequence[RoundRecord]) -> Html:
    """Who was missing from which visit, and why."""
    found = [
        f"Round {entry.round + 1}, visit {t}, {site}: {why}"
        for entry in rounds
        for t, visit in enumerate(entry.exchanges, 1)
        for site, why in sorted(visit.absent.items())
    ]
    if not found:
        return Html("")
    lines = "".join(f"<li>{safe(words)}</li>" for words in found[:MISSED])
    more = f"<li>and {len(found) - MISSED} more</li>" if len(found) > MISSED else ""
    inside = f'<ul class="notes">{lines}{more}</ul>'
    return details(f"Sites missing from a visit: {len(found)}", inside, opened=len(found) <= MISSED)


def _all(rounds: Sequence[RoundRecord], sites: Sequence[str]) -> Html:
    """Every exchange as a line, of a long run the last ones."""
    found = [(entry.round + 1, t, visit) for entry in rounds for t, visit in enumerate(entry.exchanges, 1)]
    shown = found[-LISTED:]
    rows = [[f"round {r}", t, *_row(visit, sites)] for r, t, visit in shown]
    head = ["", "visit", *sites, *_head([visit for _, _, visit in shown])]
    words = "All exchanges" if len(shown) == len(found) else f"The last {LISTED} of {len(found)} exchanges"
    return details(words, table(head, rows))


# ---- curves ------------------------------------------------------------------------------------------------


def _visits(count: int) -> dict[str, str]:
    """Name of a visit -> CSS class."""
    return {f"visit {t}": f"s{(t - 1) % (COLOURS - 1)}" for t in range(1, count + 1)}


def _convergence(record: RunRecord, rounds: Sequence[RoundRecord]) -> Html:
    """Validation and training loss by exchanges, in which runs of different workflows can be compared."""
    size = max(len(entry.exchanges) for entry in rounds)
    sites = {s: c for s, c in site_colours(record).items() if any(s in entry.metrics for entry in rounds)}
    colours, name = {**sites, "mean": "all"}, _measure(record)
    points: dict[str, Points] = {
        who: [
            ((entry.round + 1) * size, values[name])
            for entry in rounds
            if name in (values := entry.mean if who == "mean" else entry.metrics.get(who, {}))
        ]
        for who in colours
    }
    points = {who: found for who, found in points.items() if found}
    often = min((b[0] - a[0] for p in points.values() for a, b in pairwise(p)), default=size)
    curve = line_chart(points, colours, curve_name(name).split(",")[0], "exchange", often)
    visits = _visits(size)
    loss: dict[str, Points] = {
        who: [
            (visit.round + 1, visit.mean["train_loss"])
            for entry in rounds
            for visit in entry.exchanges[t : t + 1]
            if "train_loss" in visit.mean
        ]
        for t, who in enumerate(visits)
    }
    training = line_chart(loss, visits, "loss", "exchange", size)
    remark = f"{size} exchanges are a round"
    first = figure(curve_name(name)[:1].upper() + curve_name(name)[1:], curve, remark)
    second = figure("Training loss, visit by visit", training, "mean of the sites that have the visit")
    return Html(
        "<h3>Convergence over exchanges</h3>"
        f'<div class="charts"><div>{legend(colours) if curve else ""}{first}</div>'
        f"<div>{legend(visits)}{second}</div></div>"
    )


def _measure(record: RunRecord) -> str:
    """The curve that decides about the best round, or the validation loss."""
    return record.best_metric or "val_loss"


def _coefficients(rounds: Sequence[RoundRecord]) -> Html:
    """α of every visit and β over rounds, where the rule learns them."""
    told = [entry for entry in rounds if entry.rule.get("alpha") and entry.rule.get("beta")]
    if not told:
        return Html("")
    visits = _visits(len(told[-1].rule["alpha"]))
    alpha: dict[str, Points] = {
        name: [(entry.round + 1, float(entry.rule["alpha"][t])) for entry in told]
        for t, name in enumerate(visits)
    }
    learnt = "learnt from validation" if any("slopes" in entry.rule for entry in told) else ""
    parts = {BEFORE: "s7", **visits}
    beta = {name: [float(entry.rule["beta"][t]) for entry in told] for t, name in enumerate(parts)}
    first = figure("α, the step of each visit", line_chart(alpha, visits, "α"), learnt)
    shares = share_chart([entry.round + 1 for entry in told], beta, parts, "β")
    second = figure("β, what a round's model is made of", shares, "adds up to 1")
    numbers = [
        [entry.round + 1, *map(number, entry.rule["alpha"]), *map(number, entry.rule["beta"])]
        for entry in told[-LISTED:]
    ]
    head = ["round", *(f"α, {name}" for name in visits), *(f"β, {name}" for name in parts)]
    return Html(
        "<h3>Weights of the visits</h3>"
        + paragraph(MEANING, "why")
        + legend(parts)
        + f'<div class="charts">{first}{second}</div>'
        + details("α and β as numbers", table(head, numbers))
    )
