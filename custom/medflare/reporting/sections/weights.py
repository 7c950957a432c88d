# SPDX-License-Identifier: Apache-2.0
"""Section on the weights of sites' updates in every round, from the aggregation rule's report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import number, number_or_missing
from medflare.reporting.sections.series import site_colours
from medflare.reporting.views import Cell, Figure, Table

Series = dict[str, list[tuple[float, float]]]
"""Site -> (round counted from 1, number)."""


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the weight of every site's update, and the loss behind it where the rule reports one.

    Returns:
        None where no rule reports weights, or where rounds have visits: these have a section of their own.
    """
    weights, losses = _reported(record, "weights"), _reported(record, "losses")
    if not any(weights.values()) or any(entry.exchanges for entry in record.rounds):
        return None
    colours = {site: style for site, style in site_colours(record).items() if site in weights}
    loss_chart = line_chart(losses, colours, "loss")
    rounds = sorted({x for points in weights.values() for x, _ in points})
    rows = [[int(place), *(_cell(weights, losses, site, place) for site in colours)] for place in rounds]
    caption = "Weights" + (", and the losses below them." if loss_chart else ".")
    return {
        "by_loss": loss_chart is not None,
        "legend": colours,
        "figures": [
            Figure(
                title="Weight of a site's update",
                drawing=line_chart(weights, colours, "weight"),
                remark="the weights of a round add up to 1",
            ),
            Figure(
                title="Loss behind the weight",
                drawing=loss_chart,
                remark="of the site's model, on validation data",
            ),
        ],
        "table": Table(head=["round", *colours], rows=rows, caption=caption),
    }


def _reported(record: RunRecord, name: str) -> Series:
    """Return the numbers that the aggregation rule reports of each site under `name`."""
    series: Series = {}
    for entry in record.rounds:
        values = entry.rule.get(name)
        for site, value in sorted(values.items()) if isinstance(values, Mapping) else ():
            if isinstance(value, int | float):
                series.setdefault(site, []).append((entry.round + 1, float(value)))
    return series


def _cell(weights: Series, losses: Series, site: str, place: float) -> Cell:
    weight, loss = (dict(series.get(site, ())).get(place) for series in (weights, losses))
    return Cell(text=number_or_missing(weight), small="" if loss is None else number(loss))
