# SPDX-License-Identifier: Apache-2.0
"""What each site's update counted in every round, by the aggregation rule's own report."""

from __future__ import annotations

from collections.abc import Mapping

from medflare.core.run_record import RunRecord
from medflare.reporting.html import Html, details, figure, legend, paragraph, table
from medflare.reporting.page_results import site_colours
from medflare.reporting.plots import line_chart
from medflare.reporting.svg import number

Told = dict[str, list[tuple[float, float]]]
"""Site -> (round counted from 1, number)."""


def weights(record: RunRecord) -> Html:
    """What each site's update counted in the mean, and the loss behind it where the rule tells one."""
    told = {name: _told_by_rule(record, name) for name in ("weights", "losses")}
    by_visit = any(entry.exchanges for entry in record.rounds)  # which have a section of their own
    if by_visit or not any(told["weights"].values()):
        return Html("")
    colours = {site: kind for site, kind in site_colours(record).items() if site in told["weights"]}
    shares = line_chart(told["weights"], colours, "weight")
    losses = line_chart(told["losses"], colours, "loss")
    first = figure("Weight of a site's update", shares, "the weights of a round add up to 1")
    second = figure("Loss behind the weight", losses, "of the site's model, on validation data")
    why = "The smaller the loss, the larger the weight; examples may count too." if losses else ""
    rows = [
        [int(place), *(_pair(told, site, place) for site in colours)]
        for place in sorted({x for points in told["weights"].values() for x, _ in points})
    ]
    caption = "Weights" + (", and the losses below them." if losses else ".")
    return Html(
        "<h3>Weights of the sites</h3>"
        + (paragraph(why, "why") if why else "")
        + legend(colours)
        + f'<div class="charts">{first}{second}</div>'
        + details("The weights as numbers", table(["round", *colours], rows, caption=caption))
    )


def _told_by_rule(record: RunRecord, name: str) -> Told:
    """Site -> (round counted from 1, number) of what the aggregation rule reports under `name`."""
    found: Told = {}
    for entry in record.rounds:
        values = entry.rule.get(name)
        for site, value in sorted(values.items()) if isinstance(values, Mapping) else ():
            if isinstance(value, int | float):
                found.setdefault(site, []).append((entry.round + 1, float(value)))
    return found


def _pair(told: Mapping[str, Mapping[str, list[tuple[float, float]]]], site: str, place: float) -> Html:
    weight, loss = (dict(told[name].get(site, ())).get(place) for name in ("weights", "losses"))
    small = f"<small>{number(loss)}</small>" if loss is not None else ""
    return Html(("–" if weight is None else number(weight)) + small)
