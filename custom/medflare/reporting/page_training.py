# SPDX-License-Identifier: Apache-2.0
"""The page's account of the training: curves, how the sites differ, who took part, what was sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from medflare.core.run_record import RunRecord
from medflare.data.heterogeneity import jensen_shannon
from medflare.reporting.html import (
    Html,
    details,
    figure,
    heat_table,
    legend,
    paragraph,
    table,
)
from medflare.reporting.page_results import site_colours
from medflare.reporting.page_summary import arithmetic
from medflare.reporting.plots import line_chart, presence_chart, traffic_chart
from medflare.reporting.svg import byte_size, number
from medflare.reporting.tables import PHASES, curve_name

SHOWN_AT_ONCE = 6
HEADINGS = {"words": "words per report", "overlap": "shared vocabulary"}
EXTRACTION = ("ner_strict_f1", "re_gold_strict_f1", "re_e2e_strict_f1", "parse_failure_rate")
NOT_A_CURVE = ("seconds", "steps", "examples")


def _is_curve(metric: str) -> bool:
    return not any(metric == word or metric.endswith("_" + word) for word in NOT_A_CURVE)


def curves(record: RunRecord) -> Html:
    """One chart per metric: every site and the example-weighted mean."""
    names = dict.fromkeys(
        n for r in record.rounds for values in [*r.metrics.values(), r.mean] for n in values
    )
    ordered = sorted(filter(_is_curve, names), key=_importance)
    if not ordered:
        return Html("")
    colours = {s: k for s, k in site_colours(record).items() if any(s in r.metrics for r in record.rounds)}
    colours["mean"] = "all"
    charts = [_curve(record, name, colours) for name in ordered]
    body = legend(colours) + f'<div class="charts">{"".join(charts[:SHOWN_AT_ONCE])}</div>'
    if len(charts) > SHOWN_AT_ONCE:
        more = f'<div class="charts">{"".join(charts[SHOWN_AT_ONCE:])}</div>'
        body += details(f"{len(charts) - SHOWN_AT_ONCE} more curves", more)
    if any("hcl" in name for name in ordered):
        body += paragraph(
            "As the paper prints it, the contrastive loss leaves the positive pair out of its denominator; "
            "it is then not bounded by zero, and negative values are normal.",
            "why",
        )
    rows = [[entry.round + 1, *(_shown(entry.mean.get(name)) for name in ordered)] for entry in record.rounds]
    inside = table(
        ["round", *map(curve_name, ordered)], rows, caption="Means over sites, weighted by examples."
    )
    return Html(body + details("The means as numbers", inside))


def _importance(metric: str) -> tuple[int, str]:
    """Validation scores and the language loss first, further loss terms last."""
    bare = next((metric.removeprefix(p) for p in PHASES if metric.startswith(p)), metric)
    order = ["loss", "label_f1", "bleu_4", "rouge_l", "cider", *EXTRACTION, "loss_hcl"]
    return (order.index(bare) if bare in order else len(order) + ("loss" in bare), metric)


def _shown(value: float | None) -> str:
    return "–" if value is None else number(value)


def _curve(record: RunRecord, name: str, colours: Mapping[str, str]) -> Html:
    series: dict[str, list[tuple[float, float]]] = {}
    for entry in record.rounds:
        for site, values in {**entry.metrics, "mean": entry.mean}.items():
            if name in values:
                series.setdefault(site, []).append((entry.round + 1, values[name]))
    title = curve_name(name)
    return figure(title[:1].upper() + title[1:], line_chart(series, colours, title.split(",")[0]))


def sites(record: RunRecord, unit: str) -> Html:
    """Counts, prevalence of labels, report length and divergence, as far as the sites declared them.

    Args:
        unit: what a site counts, "studies" or "notes".
    """
    if not record.sites:
        return Html("")
    splits = list(dict.fromkeys(name for site in record.sites.values() for name in site.examples))
    declared = {name: _declared(name, site.heterogeneity) for name, site in sorted(record.sites.items())}
    numbers = {name: found for name, (found, _) in declared.items()}
    shares = {name: found for name, (_, found) in declared.items()}
    _with_divergence(record, numbers, shares)
    further = dict.fromkeys(key for found in numbers.values() for key in found)
    rows = [
        [
            name,
            *(f"{site.examples.get(split, 0):,}" for split in splits),
            *(_shown(numbers[name].get(key)) for key in further),
            ", ".join(f"{count} {why}" for why, count in site.skipped.items()) or "none",
        ]
        for name, site in sorted(record.sites.items())
    ]
    head = [
        "site",
        *(f"{split} {unit}" for split in splits),
        *(HEADINGS.get(k, k) for k in further),
        "skipped",
    ]
    note = (
        "Divergence: Jensen–Shannon, in bits, of a site's findings from the pool's; 0 is equal, 1 disjoint."
    )
    why = paragraph(note, "why") if "divergence" in further else ""
    return Html(table(head, rows) + why + _prevalence(shares))


def _declared(name: str, heterogeneity: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    """Single numbers, and condition -> share of studies that affirm it, of what a site declared.

    Read are the result of `cohort.heterogeneity.heterogeneity` (`rows`, `labels` by site) and a site's own
    share of it (numbers, and `labels` by condition). A site alone cannot know how far it is from the others,
    so divergence and overlap of a single row are left out.
    """
    rows = heterogeneity.get("rows")
    facts = heterogeneity if rows is None else next((r for r in rows if r.get("site") == name), {})
    labels = heterogeneity.get("labels", {})
    shares = labels.get(name, {}) if rows is not None else labels
    hidden = {"patients", "studies"} | (
        {"divergence", "overlap"} if rows is not None and len(rows) < 2 else set()
    )
    numbers = {k: float(v) for k, v in facts.items() if k not in hidden and isinstance(v, int | float)}
    return numbers, {str(k): float(v) for k, v in shares.items() if isinstance(v, int | float)}


def _with_divergence(
    record: RunRecord, numbers: dict[str, dict[str, float]], shares: dict[str, dict[str, float]]
) -> None:
    """Adds to `numbers` the divergence of the sites' shares where the sites could not tell it themselves."""
    names = [site for site in shares if shares[site]]
    if len(names) < 2 or any("divergence" in found for found in numbers.values()):
        return
    conditions = sorted(set.intersection(*(set(shares[site]) for site in names)))
    table_of = np.array([[shares[site][c] for c in conditions] for site in names])
    weights = np.array([sum(record.sites[site].examples.values()) or 1 for site in names], dtype=float)
    pool = (weights / weights.sum()) @ table_of
    both = np.stack([table_of, 1 - table_of], axis=-1), np.stack([pool, 1 - pool], axis=-1)[None]
    for site, value in zip(names, jensen_shannon(*both).mean(axis=-1), strict=True):
        numbers[site]["divergence"] = float(value)


def _prevalence(shares: Mapping[str, Mapping[str, float]]) -> Html:
    conditions = dict.fromkeys(c for values in shares.values() for c in values)
    if not conditions:
        return Html("")
    top = max(v for values in shares.values() for v in values.values())
    lines = [(condition, [shares[site].get(condition) for site in shares]) for condition in conditions]
    caption = "Studies whose report affirms the condition, per cent."
    body = heat_table(["condition", *shares], lines, caption=caption, top=top)
    return Html("<h3>Prevalence of findings</h3>" + body)


def participation(record: RunRecord) -> Html:
    """Who was there in which round, and why not."""
    if not record.rounds:
        return Html("")
    names = sorted({site for entry in record.rounds for site in [*entry.accepted, *entry.absent]})
    absent = {(site, e.round + 1): why for e in record.rounds for site, why in e.absent.items()}
    rows = []
    for site in names:
        reasons = Counter(e.absent[site] for e in record.rounds if site in e.absent)
        joined = sum(site in e.accepted for e in record.rounds)
        examples = next((e.accepted[site] for e in reversed(record.rounds) if site in e.accepted), 0)
        told = "; ".join(f"{why} ({_rounds_of(record, site, why)})" for why in reasons)
        rows.append([site, told or "never absent", f"{joined} of {len(record.rounds)}", f"{examples:,}"])
    picture = presence_chart([e.round + 1 for e in record.rounds], names, absent)
    return Html(
        figure("Updates accepted", picture, "filled: accepted; cross: absent or rejected")
        + table(["site", "absences", "rounds", "weight (examples)"], rows, left=2)
    )


def _rounds_of(record: RunRecord, site: str, why: str) -> str:
    found = [str(e.round + 1) for e in record.rounds if e.absent.get(site) == why]
    return (
        ("round " if len(found) == 1 else "rounds ") + ", ".join(found[:8]) + (" …" if len(found) > 8 else "")
    )


def traffic(record: RunRecord) -> Html:
    """Bytes counted from the messages, next to what arithmetic expects."""
    names = sorted({site for entry in record.rounds for site in entry.traffic})
    if not names:
        return Html("")
    table_of = {
        kind: {
            site: [getattr(e.traffic[site], kind) if site in e.traffic else 0 for e in record.rounds]
            for site in names
        }
        for kind in ("sent", "received")
    }
    colours = {site: kind for site, kind in site_colours(record).items() if site in names}
    colours |= {site: "s7" for site in names if site not in colours}
    picture = traffic_chart(
        [e.round + 1 for e in record.rounds], table_of["sent"], table_of["received"], colours
    )
    exchanges = max((len(entry.exchanges) for entry in record.rounds), default=0) or 1
    expected = record.expected_bytes_per_direction * exchanges
    rows = []
    for site in names:
        sent, received = table_of["sent"][site], table_of["received"][site]
        busy = sum(1 for count in sent if count) or 1
        rows.append(
            [
                site,
                byte_size(sum(sent)),
                byte_size(sum(received)),
                byte_size(sum(sent) / busy),
                byte_size(expected) if expected else "–",
                f"{sum(sent) / busy / expected:.3f}" if expected else "–",
            ]
        )
    head = ["site", "sent", "received", "sent per round", "expected", "sent / expected"]
    return Html(
        paragraph("Counted from the tensors in the messages themselves; only declared tensors travel.")
        + legend(colours)
        + figure("Bytes per round", picture, "above the line sent by the sites, below it received by them")
        + table(head, rows)
        + arithmetic(record)
    )
