# SPDX-License-Identifier: Apache-2.0
"""The page's account of what sites did beside training: what they agreed on first, and their secure sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.html import Html, details, duration, facts, figure, paragraph, table
from medflare.reporting.plots import line_chart
from medflare.reporting.svg import number

LISTED = 60
"""Sums in the table, the last ones; those that went wrong are all there."""
ALIKE = (
    "Nothing in the profiles differs between patients, so the mixture tells nobody apart and there was "
    "nothing to make a patient's own factors from."
)
PHASES = (
    "Before training, the sites of an exchange agree on keys and hand each other shares of their secrets. "
    "Each then sends its update under masks; once enough of them have confirmed who is in the sum, the masks "
    "are taken off the sum and off nothing else."
)


def preparation(record: RunRecord) -> Html:
    """What the sites agreed on before round 1; nothing where that was nothing."""
    mixture = record.preparation.get("mixture")
    return _mixture(mixture) if mixture else Html("")


def _mixture(told: Mapping[str, Any]) -> Html:
    """Federated EM over the patients' profiles."""
    weights, curve = told.get("weights", []), told.get("likelihoods", [])
    informative = bool(told.get("informative", True))
    shown = {
        "components left": f"{told.get('components')} of {len(weights)}",
        "iterations": told.get("iterations"),
        "tells patients apart": "yes" if informative else "no",
        "largest share of patients": f"{100 * max(weights, default=0):.0f} %",
    }
    if curve:
        shown["log-likelihood per patient"] = f"{number(curve[0])} at first, {number(curve[-1])} at last"
    points = [(float(place), float(value)) for place, value in enumerate(curve, 1)]
    picture = line_chart({"all sites": points}, {"all sites": "s0"}, "log-likelihood", "iteration")
    rows = [[place, f"{100 * share:.1f} %"] for place, share in enumerate(weights, 1) if share > 0]
    lead = "Fitted over all sites before round 1, from sums alone; small components were merged."
    return Html(
        "<h3>Mixture of patients' profiles</h3>"
        + paragraph(lead)
        + ("" if informative else paragraph(ALIKE, "why"))
        + f'<div class="charts"><div>{facts(shown)}</div>'
        + figure("Mean log-likelihood", picture, "must not fall, but for a merged component")
        + "</div>"
        + details("Shares of the components", table(["component", "patients"], rows, kind="compact"))
    )


def protocol(record: RunRecord) -> Html:
    """The secure sum of every exchange, as far as the protection reports one."""
    found: list[tuple[str, dict[str, Any]]] = []
    for entry in record.rounds:
        if entry.exchanges:
            visits = enumerate(entry.exchanges, 1)
            found += [(f"round {entry.round + 1}, visit {t}", visit.protection) for t, visit in visits]
        else:
            found.append((f"round {entry.round + 1}", entry.protection))
    found = [(name, told) for name, told in found if told]
    if not found:
        return Html("")
    masked = any("terms" in told for _, told in found)
    return _masked(found) if masked else _encrypted(found)


def _masked(found: Sequence[tuple[str, dict[str, Any]]]) -> Html:
    """Phases of masked sums: keys, opening, who was lost."""
    odd = [item for item in found if _trouble(item[1])]
    shown = [item for item in found if item in odd or item in found[-LISTED:]]
    rows = [
        [
            name,
            f"{len(told.get('sites', ()))} of {len(told['terms']['sites'])}",
            told["terms"]["threshold"],
            "–" if "weight" not in told else number(told["weight"]),
            _seconds(told, "keys_seconds"),
            _seconds(told, "open_seconds"),
            _trouble(told) or "none",
        ]
        for name, told in shown
    ]
    terms = found[-1][1]["terms"]
    total = sum(told.get("keys_seconds", 0) + told.get("open_seconds", 0) for _, told in found)
    summary = {
        "sums": len(found),
        "not opened": sum("failed" in told for _, told in found),
        "seconds of the protocol": duration(total),
        "numbers a site sends": f"{terms['narrow']:,} of {terms['bits']} bits, {terms['wide'] + 1:,} of 64",
        "what a site weighs by": terms["weighing"],
    }
    head = ["", "in the sum", "needed", "weight", "keys and shares", "opening", "lost or blamed"]
    return Html(
        paragraph(PHASES)
        + facts(summary)
        + details(f"{len(rows)} of {len(found)} sums", table(head, rows), opened=len(rows) <= 12)
    )


def _encrypted(found: Sequence[tuple[str, dict[str, Any]]]) -> Html:
    """Sums of ciphertexts, which the server never reads."""
    last = found[-1][1]
    why = "Updates were added as ciphertexts. The server holds no key: only the sites read the sum."
    shown = {
        "sums": len(found),
        "weight of the last": number(float(last.get("weight", 0))),
        "groups of equal weight": last.get("groups", "–"),
    }
    return Html(paragraph(why) + facts(shown))


def _seconds(told: Mapping[str, Any], key: str) -> str:
    return f"{told[key]:.2f} s" if key in told else "–"


def _trouble(told: Mapping[str, Any]) -> str:
    """Who was lost or blamed and why, and why a sum could not be opened."""
    named = {**told.get("lost", {}), **told.get("blamed", {})}
    words = [f"{site}: {why}" for site, why in sorted(named.items())]
    return "; ".join([*words, *([str(told["failed"])] if "failed" in told else [])])
