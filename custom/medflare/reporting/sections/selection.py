# SPDX-License-Identifier: Apache-2.0
"""Section of a page: sites selected to train, their probabilities and latencies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.run_record import RoundRecord, RunRecord
from medflare.reporting.charts.drawing import Drawing
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import MISSING, duration, number, number_or_missing
from medflare.reporting.sections import graph_distances
from medflare.reporting.sections.series import LISTED, exchanges_of, listed_caption, site_colours
from medflare.reporting.views import Disclosure, Figure, Legend, Table

CLOCKS = {"simulated": "s0", "real": "s1"}
SOLUTION = ("expected_slowest", "divergence", "variance")
"""Keys of a planning rule's report on the round that it planned."""


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `selection.html`.

    Returns:
        None where no rule sampled clients and the sites compared no knowledge graphs.
    """
    sampled = [entry for entry in exchanges_of(record) if entry.rule.get("drawn")]
    graphs = graph_distances.view(record.preparation)
    if not sampled:
        return {"sampled": None, "graphs": graphs} if graphs else None
    sites = {site for entry in sampled for site in entry.rule.get("odds", {})}
    colours = {site: style for site, style in site_colours(record).items() if site in sites}
    return {"sampled": _sampled(record, sampled, colours), "graphs": graphs}


def _sampled(record: RunRecord, sampled: Sequence[RoundRecord], colours: Legend) -> dict[str, Any]:
    """Return the charts and tables of a run whose rule sampled clients."""
    odds, ages = (_chart(sampled, colours, name) for name in ("odds", "ages"))
    return {
        "vanished": any(entry.rule.get("vanished") for entry in sampled),
        "legend": colours,
        "figures": [
            Figure(title="Odds of a draw", drawing=odds, remark="of each of the draws of a round"),
            Figure(title="Rounds since a site trained", drawing=ages),
            Figure(
                title="Seconds a site takes",
                drawing=_seconds(sampled, colours),
                remark="computing and transfer together",
            ),
            Figure(
                title="Time passed",
                drawing=_clocks(record),
                remark="minutes, at the end of each round",
                legend=CLOCKS,
            ),
        ],
        "by_site": _by_site(sampled, list(colours)),
        "by_round": Disclosure(summary="Every draw", table=_by_round(sampled)),
        "weights": Disclosure(summary="Weights of the drawn sites", table=_weights(sampled, list(colours))),
    }


def _chart(sampled: Sequence[RoundRecord], colours: Legend, name: str) -> Drawing | None:
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in sampled:
        for site, value in entry.rule.get(name, {}).items():
            series.setdefault(site, []).append((entry.round + 1, float(value)))
    return line_chart(series, colours, name)


def _seconds(sampled: Sequence[RoundRecord], colours: Legend) -> Drawing | None:
    """Return the server's estimate after each round, of every site that it has timed."""
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in sampled:
        for site, latency in entry.rule.get("latencies", {}).items():
            if site in colours:
                seconds = latency["compute"] + latency["transfer"]
                series.setdefault(site, []).append((entry.round + 1, seconds))
    return line_chart(series, colours, "seconds")


def _clocks(record: RunRecord) -> Drawing | None:
    """Return the simulated clock beside the real one; None without a simulated one."""
    series: dict[str, list[tuple[float, float]]] = {"simulated": [], "real": []}
    passed = 0.0
    for entry in record.rounds:
        passed += entry.seconds
        if entry.simulated_seconds is not None:
            series["simulated"].append((entry.round + 1, entry.simulated_seconds / 60))
            series["real"].append((entry.round + 1, passed / 60))
    return line_chart(series, CLOCKS, "minutes, simulated and real")


def _by_site(sampled: Sequence[RoundRecord], sites: Sequence[str]) -> Table:
    last = sampled[-1].rule
    rows = []
    for site in sites:
        draws = sum(entry.rule["drawn"].get(site, 0) for entry in sampled)
        vanished = sum(site in entry.rule.get("vanished", ()) for entry in sampled)
        rounds = sum(site in entry.rule["drawn"] for entry in sampled) - vanished
        odds = f"{100 * last.get('odds', {}).get(site, 0):.1f} %"
        longest_wait = max(entry.rule.get("ages", {}).get(site, 0) for entry in sampled)
        latency = _latency(last.get("latencies", {}).get(site))
        rows.append([site, draws, rounds, vanished, odds, longest_wait, *latency])
    head = ["site", "draws", "rounds", "vanished", "odds", "longest wait", "computing, s", "transfer, s"]
    caption = "Odds and seconds after the last round."
    return Table(head=[*head, "9 of 10 rounds within, s"], rows=rows, caption=caption)


def _latency(latency: Mapping[str, float] | None) -> list[str]:
    """Return computing, transfer, and the sum of their 90 % quantiles."""
    parts = ("compute", "transfer")
    if not latency:
        return [MISSING, MISSING, MISSING]
    return [*(number(latency[part]) for part in parts), number(sum(latency[f"{part}_q90"] for part in parts))]


def _by_round(sampled: Sequence[RoundRecord]) -> Table:
    rows = []
    for entry in sampled[-LISTED:]:
        draws = [f"{s} ×{count}" if count > 1 else s for s, count in sorted(entry.rule["drawn"].items())]
        solution = entry.rule.get("solution")
        planned = [number(solution[name]) if solution else MISSING for name in SOLUTION]
        simulated = entry.simulated_seconds
        clocks = [duration(entry.seconds), MISSING if simulated is None else duration(simulated)]
        vanished = ", ".join(entry.rule.get("vanished", ())) or MISSING
        rows.append([entry.round + 1, ", ".join(draws), vanished, *planned, *clocks])
    head = ["round", "drawn", "vanished", "slowest expected, s", "divergence", "variance"]
    caption = listed_caption(sampled)
    return Table(head=[*head, "took", "simulated clock"], rows=rows, caption=caption, left=3)


def _weights(sampled: Sequence[RoundRecord], sites: Sequence[str]) -> Table:
    rows = [
        [entry.round + 1, *(number_or_missing(entry.rule["importance"].get(site)) for site in sites)]
        for entry in sampled[-LISTED:]
    ]
    return Table(head=["round", *sites], rows=rows, caption=listed_caption(sampled))
