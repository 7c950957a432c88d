# SPDX-License-Identifier: Apache-2.0
"""The page's account of who was chosen to train, why, how long they took, and how unlike the sites are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.run_record import RoundRecord, RunRecord
from medflare.reporting.html import (
    Html,
    details,
    duration,
    figure,
    heat_table,
    legend,
    paragraph,
    table,
)
from medflare.reporting.page_results import site_colours
from medflare.reporting.plots import line_chart
from medflare.reporting.svg import number

LISTED = 60
"""Rounds in a table, the last ones."""
CLOCKS = {"simulated": "s0", "real": "s1"}
WEIGHTS = (
    "A site that was drawn trains once, and its update counts by its share of the data over how often it is "
    "drawn on average: the rarer, the more. In expectation the step is that of all sites."
)
COMPARED = (
    "Before round 1 pairs of sites learnt how many triples both have, by private set intersection. The "
    "server passed on messages that it cannot read, and was told the sizes."
)
LEAST_EIGENVALUE = -0.001
"""Of 1 − D: below it is more than rounding."""
NO_GRAPHS = (
    "Sizes of real graphs give none below 0: a site told false sizes, or pairs that were not compared are "
    "not as far apart as the others are. It does not say which site, and not every lie shows."
)
OTHER_VOCABULARY = (
    "Warning: {} made the graph with another vocabulary, or another setting `align`, than most sites. The "
    "same thing may have another name there and distances be too large. Give all sites the same files."
)
WAITED = "A drawn site that gave no answer adds nothing; nobody takes its part, and its wait goes on."


def selection(record: RunRecord) -> Html:
    """Draws, odds, weights, ages and seconds; nothing where no rule chose who trains."""
    chosen = [entry for entry in flat_rounds(record) if entry.rule.get("drawn")]
    apart = _apart(record.preparation)
    if not chosen:
        return apart
    colours = {site: kind for site, kind in site_colours(record).items() if site in _sites(chosen)}
    charts = [
        figure("Odds of a draw", _chart(chosen, colours, "odds"), "of each of the draws of a round"),
        figure("Rounds since a site trained", _chart(chosen, colours, "ages")),
        figure("Seconds a site takes", _seconds(chosen, colours), "computing and transfer together"),
        figure("Time passed", _clocks(record), "minutes, at the end of each round"),
    ]
    lost = paragraph(WAITED, "why") if any(entry.rule.get("vanished") for entry in chosen) else ""
    return Html(
        paragraph(WEIGHTS, "why")
        + lost
        + legend(colours)
        + f'<div class="charts">{"".join(charts)}</div>'
        + _by_site(chosen, colours)
        + details("Every draw", _by_round(chosen))
        + details("Weights of the drawn sites", _weights(chosen, colours))
        + apart
    )


def flat_rounds(record: RunRecord) -> list[RoundRecord]:
    """Rounds, or the exchanges of rounds that have several."""
    return [each for entry in record.rounds for each in (entry.exchanges or [entry])]


def _sites(chosen: Sequence[RoundRecord]) -> list[str]:
    return sorted({site for entry in chosen for site in entry.rule.get("odds", {})})


def _chart(chosen: Sequence[RoundRecord], colours: Mapping[str, str], name: str) -> str:
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in chosen:
        for site, value in entry.rule.get(name, {}).items():
            series.setdefault(site, []).append((entry.round + 1, float(value)))
    return line_chart(series, colours, name)


def _seconds(chosen: Sequence[RoundRecord], colours: Mapping[str, str]) -> str:
    """What the server believes after each round, of every site it has seen."""
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in chosen:
        for site, told in entry.rule.get("latencies", {}).items():
            series.setdefault(site, []).append((entry.round + 1, told["compute"] + told["transfer"]))
    return line_chart({s: points for s, points in series.items() if s in colours}, colours, "seconds")


def _clocks(record: RunRecord) -> str:
    """The simulated clock beside the real one; nothing without a simulated one."""
    series: dict[str, list[tuple[float, float]]] = {"simulated": [], "real": []}
    passed = 0.0
    for entry in record.rounds:
        passed += entry.seconds
        if entry.simulated_seconds is not None:
            series["simulated"].append((entry.round + 1, entry.simulated_seconds / 60))
            series["real"].append((entry.round + 1, passed / 60))
    if not series["simulated"]:
        return ""
    return legend(CLOCKS) + line_chart(series, CLOCKS, "minutes, simulated and real")


def _by_site(chosen: Sequence[RoundRecord], colours: Mapping[str, str]) -> Html:
    last = chosen[-1].rule
    rows = []
    for site in colours:
        drawn = sum(entry.rule["drawn"].get(site, 0) for entry in chosen)
        gone = sum(site in entry.rule.get("vanished", ()) for entry in chosen)
        seen = last.get("latencies", {}).get(site, {})
        rows.append(
            [
                site,
                drawn,
                sum(site in entry.rule["drawn"] for entry in chosen) - gone,
                gone,
                f"{100 * last.get('odds', {}).get(site, 0):.1f} %",
                max(entry.rule.get("ages", {}).get(site, 0) for entry in chosen),
                *(number(seen[part]) if seen else "–" for part in ("compute", "transfer")),
                number(sum(seen[f"{part}_q90"] for part in ("compute", "transfer"))) if seen else "–",
            ]
        )
    head = ["site", "draws", "rounds", "vanished", "odds", "longest wait", "computing, s", "transfer, s"]
    return table([*head, "9 of 10 rounds within, s"], rows, caption="Odds and seconds after the last round.")


def _by_round(chosen: Sequence[RoundRecord]) -> Html:
    rows = [
        [
            entry.round + 1,
            ", ".join(f"{s} ×{c}" if c > 1 else s for s, c in sorted(entry.rule["drawn"].items())),
            ", ".join(entry.rule.get("vanished", ())) or "–",
            *_solved(entry.rule.get("solution")),
            duration(entry.seconds),
            "–" if entry.simulated_seconds is None else duration(entry.simulated_seconds),
        ]
        for entry in chosen[-LISTED:]
    ]
    head = ["round", "drawn", "vanished", "slowest expected, s", "divergence", "variance"]
    return table([*head, "took", "simulated clock"], rows, caption=_caption(chosen), left=3)


def _solved(solution: Mapping[str, Any] | None) -> list[str]:
    names = ("expected_slowest", "divergence", "variance")
    return [number(solution[name]) if solution else "–" for name in names]


def _weights(chosen: Sequence[RoundRecord], colours: Mapping[str, str]) -> Html:
    rows = [
        [
            entry.round + 1,
            *(
                number(w) if (w := entry.rule["importance"].get(site)) is not None else "–"
                for site in colours
            ),
        ]
        for entry in chosen[-LISTED:]
    ]
    return table(["round", *colours], rows, caption=_caption(chosen))


def _caption(chosen: Sequence[RoundRecord]) -> str:
    return f"The last {LISTED} of {len(chosen)} rounds." if len(chosen) > LISTED else ""


def _apart(preparation: Mapping[str, Any]) -> Html:
    """How far the sites' knowledge graphs lie apart, by whichever way the rule learnt it."""
    sketches, exact = preparation.get("sketches"), preparation.get("exact")
    return Html((_distances(sketches) if sketches else "") + (_exact(exact) if exact else ""))


def _exact(told: Mapping[str, Any]) -> Html:
    """Whose graphs were compared exactly, which pairs were not, and how far they lie apart."""
    rows = [
        [site, f"{facts['texts']:,}", f"{facts['elements']:,}", "empty" if facts["empty"] else ""]
        for site, facts in told["sites"].items()
    ]
    rows += [[site, "–", "not told", why] for site, why in told["without"].items()]
    body = "<h3>Exact sizes of knowledge graphs</h3>" + paragraph(COMPARED, "why")
    body += table(["site", "texts", "triples", ""], rows, left=1) + _other_vocabulary(told)
    shared = [[" and ".join(item["sites"]), f"{item['shared']:,}", ""] for item in told["pairs"]]
    shared += [[" and ".join(item["sites"]), "–", item["why"]] for item in told["not_compared"]]
    moved = f"{told['bytes']['from_sites']:,} bytes left the sites, in {duration(told['seconds'])}."
    if shared:
        body += details("Every pair", table(["pair", "triples shared", ""], shared, caption=moved, left=1))
    if "distances" not in told:
        return Html(body)
    caption = (
        "Distances in percent, 1 minus the Jaccard similarity. A pair that was not compared is as far apart "
        "as the others are on average."
    )
    return Html(body + _matrix(told["distances"], caption) + _eigenvalue(told["smallest_eigenvalue"]))


def _matrix(distances: Mapping[str, Any], caption: str) -> Html:
    """How far each site lies from each other."""
    order = distances["order"]
    return heat_table(["", *order], list(zip(order, distances["matrix"], strict=True)), caption=caption)


def _eigenvalue(least: float) -> Html:
    """Whether the distances can be those of graphs."""
    found = f"The smallest eigenvalue of the similarities is {number(least)}."
    if least >= LEAST_EIGENVALUE:
        return paragraph(f"{found} It is not below 0, as it must be for real graphs.", "why")
    return paragraph(f"Warning: {found} {NO_GRAPHS}")


def _other_vocabulary(told: Mapping[str, Any]) -> Html:
    """Names the sites whose graph cannot well be compared with the others'."""
    sites = told.get("other_vocabulary", ())
    return paragraph(OTHER_VOCABULARY.format(", ".join(sites))) if sites else Html("")


def _distances(told: Mapping[str, Any]) -> Html:
    """Who sent a sketch of its knowledge graph, and how far the graphs lie apart."""
    rows = [
        [site, f"{facts['texts']:,}", f"{facts['bytes']:,} B", "empty" if facts["empty"] else ""]
        for site, facts in told["sites"].items()
    ]
    rows += [[site, "–", "none", why] for site, why in told["without"].items()]
    body = "<h3>Sketches of knowledge graphs</h3>" + table(["site", "texts", "sent", ""], rows, left=1)
    body += _other_vocabulary(told)
    if told["renewed"]:
        later = [
            [item["exchange"] + 1, item["site"], f"{item['texts']:,}", _moved(item)]
            for item in told["renewed"]
        ]
        head = ["before round", "site", "texts", "distance from the one before"]
        body += table(head, later, caption="Sent again, because the site's data had grown.")
    if "distances" not in told:
        return Html(body)
    caption = (
        "Distances in percent, 1 minus the estimated Jaccard similarity. A site without a sketch is as far "
        "from all others as those are from each other."
    )
    return Html(body + _matrix(told["distances"], caption))


def _moved(item: Mapping[str, Any]) -> str:
    return number(item["moved"]) if "moved" in item else "–"
