# SPDX-License-Identifier: Apache-2.0
"""Section on the distances of the sites' knowledge graphs, from sketches or exact intersection sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.reporting.formatting import MISSING, duration, number
from medflare.reporting.views import Disclosure, HeatTable, Table, heat_table

LEAST_EIGENVALUE = -0.001
"""Of the matrix of similarities: a value below this one is more than rounding."""
_ESTIMATED = (
    "Distances in percent, 1 minus the estimated Jaccard similarity. A site without a sketch is as far "
    "from all others as those are from each other."
)
_EXACT = (
    "Distances in percent, 1 minus the Jaccard similarity. A pair that was not compared is as far apart "
    "as the others are on average."
)


def view(preparation: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the data of `graph_distances.html`; None where the sites compared no graphs.

    Args:
        preparation: of a run record; `sketches` or `exact` is what the comparison reports.
    """
    sketches, exact = preparation.get("sketches"), preparation.get("exact")
    if not sketches and not exact:
        return None
    return {
        "sketches": _sketches(sketches) if sketches else None,
        "exact": _exact(exact) if exact else None,
    }


def _sketches(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return which site sent a sketch of its knowledge graph, and the distances."""
    rows = [
        [site, f"{facts['texts']:,}", f"{facts['bytes']:,} B", "empty" if facts["empty"] else ""]
        for site, facts in report["sites"].items()
    ]
    rows += [[site, MISSING, "none", why] for site, why in report["without"].items()]
    renewed = [
        [
            item["exchange"] + 1,
            item["site"],
            f"{item['texts']:,}",
            number(item["moved"]) if "moved" in item else MISSING,
        ]
        for item in report["renewed"]
    ]
    head = ["before round", "site", "texts", "distance from the one before"]
    caption = "Sent again, because the site's data had grown."
    return {
        "sites": Table(head=["site", "texts", "sent", ""], rows=rows),
        "other_vocabulary": _other_vocabulary(report),
        "renewed": Table(head=head, rows=renewed, caption=caption) if renewed else None,
        "matrix": _matrix(report, _ESTIMATED),
    }


def _exact(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return whose graphs were compared exactly, which pairs were not, and the distances."""
    rows = [
        [site, f"{facts['texts']:,}", f"{facts['elements']:,}", "empty" if facts["empty"] else ""]
        for site, facts in report["sites"].items()
    ]
    rows += [[site, MISSING, "not told", why] for site, why in report["without"].items()]
    pairs = [[" and ".join(item["sites"]), f"{item['shared']:,}", ""] for item in report["pairs"]]
    pairs += [[" and ".join(item["sites"]), MISSING, item["why"]] for item in report["not_compared"]]
    caption = f"{report['bytes']['from_sites']:,} bytes left the sites, in {duration(report['seconds'])}."
    table = Table(head=["pair", "triples shared", ""], rows=pairs, caption=caption)
    matrix = _matrix(report, _EXACT)
    return {
        "sites": Table(head=["site", "texts", "triples", ""], rows=rows),
        "other_vocabulary": _other_vocabulary(report),
        "pairs": Disclosure(summary="Every pair", table=table) if pairs else None,
        "matrix": matrix,
        "eigenvalue": number(report["smallest_eigenvalue"]) if matrix else "",
        "plausible": matrix is None or report["smallest_eigenvalue"] >= LEAST_EIGENVALUE,
    }


def _other_vocabulary(report: Mapping[str, Any]) -> str:
    """Return the sites whose graph cannot well be compared with the others'."""
    return ", ".join(report.get("other_vocabulary", ()))


def _matrix(report: Mapping[str, Any], caption: str) -> HeatTable | None:
    """Return how far each site lies from each other; None where no two were compared."""
    if "distances" not in report:
        return None
    order, matrix = report["distances"]["order"], report["distances"]["matrix"]
    return heat_table(["", *order], list(zip(order, matrix, strict=True)), caption=caption)
