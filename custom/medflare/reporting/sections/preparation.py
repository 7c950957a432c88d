# SPDX-License-Identifier: Apache-2.0
"""Section on the preparation before round 1: the mixture of patients' profiles, fitted by federated EM."""

from __future__ import annotations

from typing import Any

from medflare.core.run_record import RunRecord
from medflare.reporting.charts.lines import line_chart
from medflare.reporting.formatting import number
from medflare.reporting.views import Disclosure, Figure, Table


def view(record: RunRecord) -> dict[str, Any] | None:
    """Return the data of `preparation.html`; None where nothing was agreed on."""
    mixture = record.preparation.get("mixture")
    if not mixture:
        return None
    weights, likelihoods = mixture.get("weights", []), mixture.get("likelihoods", [])
    informative = bool(mixture.get("informative", True))
    facts = {
        "components left": f"{mixture.get('components')} of {len(weights)}",
        **_lost(mixture),
        "iterations": mixture.get("iterations"),
        "tells patients apart": "yes" if informative else "no",
        "largest share of patients": f"{100 * max(weights, default=0):.0f} %",
    }
    if likelihoods:
        ends = f"{number(likelihoods[0])} at first, {number(likelihoods[-1])} at last"
        facts["log-likelihood per patient"] = ends
    points = [(float(place), float(value)) for place, value in enumerate(likelihoods, 1)]
    drawing = line_chart({"all sites": points}, {"all sites": "s0"}, "log-likelihood", "iteration")
    rows = [[place, f"{100 * share:.1f} %"] for place, share in enumerate(weights, 1) if share > 0]
    return {
        "informative": informative,
        "facts": facts,
        "figure": Figure(title="Mean log-likelihood", drawing=drawing, remark="must not fall"),
        "shares": Disclosure(
            summary="Shares of the components",
            table=Table(head=["component", "patients"], rows=rows, style="compact"),
        ),
    }


def _lost(mixture: dict[str, Any]) -> dict[str, Any]:
    """Return what became of the other components, and what q_p says of a profile; not in older records."""
    facts = {}
    if "merged" in mixture:
        facts["merged, of too few patients"] = mixture["merged"]
        facts["empty"] = mixture["empty"]
    if mixture.get("explained"):
        shares = (f"{100 * share:.0f} %" for share in mixture["explained"])
        facts["R² of each entry of a profile"] = ", ".join(shares)
    return facts
