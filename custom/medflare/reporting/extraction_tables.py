# SPDX-License-Identifier: Apache-2.0
"""Tables of extraction scores: sites at a glance, one site by type, comparisons, and Markdown for documents.

Values are times 100, as papers print them, with 95 % bootstrap intervals over documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from medflare.core.run_record import ComparisonRecord, Estimate
from medflare.evaluation.extraction_matching import Counts
from medflare.evaluation.extraction_metrics import HEADLINE, ExtractionScores
from medflare.evaluation.extraction_statistics import MATCHES
from medflare.evaluation.label_metrics import RATIOS
from medflare.reporting.formatting import MISSING
from medflare.reporting.metric_names import display_name
from medflare.reporting.score_rows import SCALE, ScoreRow, difference, score_cell

CAPTION = "Times 100, with 95 % bootstrap intervals over documents, or patients where they are known."
ALONE = "p: two-sided permutation test of each row alone, not corrected for the number of rows."
TITLES = {
    "ner": "entities",
    "re_gold": "modifiers of given heads",
    "re_e2e": "modifiers, end to end",
}
GLANCE = (*HEADLINE, "parse_failure_rate")
ROLES = {"participant": "took part", "unseen": "unseen", "": ""}
HEADS = {
    "ner_strict_f1": "NER\nstrict F1",
    "ner_lenient_f1": "NER\nlenient F1",
    "re_gold_strict_f1": "RE\nstrict F1",
    "re_e2e_strict_f1": "RE e2e\nstrict F1",
    "parse_failure_rate": "unreadable\noutputs",
}


def overview(rows: Sequence[ScoreRow]) -> Table:
    """Return a table of one row for each site and adapter, the interval under its value; fits 100 columns."""
    table = _table(["site", "notes", *(HEADS.get(name, name) for name in GLANCE)])
    table.caption, table.caption_justify = Text(CAPTION), "left"
    for index, row in enumerate(rows):
        last = index + 1 < len(rows) and rows[index + 1].role != row.role
        about = ", ".join(filter(None, [row.adapter, ROLES[row.role]]))
        place = Text(row.site).append(f"\n{about}", style="dim")
        values = [_two_lines(row.metrics.get(name)) for name in GLANCE]
        table.add_row(place, str(row.studies), *values, end_section=last)
    return table


def _two_lines(estimate: Estimate | None) -> Text:
    if estimate is None:
        return Text(MISSING)
    value = Text(f"{SCALE * estimate.value:.1f}")
    if estimate.interval is None:
        return value
    low, high = (SCALE * end for end in estimate.interval)
    return value.append(f"\n{low:.1f}{MISSING}{high:.1f}", style="dim")


def type_table(scored: ExtractionScores, task: str, title: str, types: Iterable[str]) -> Table:
    """Return the table of a task by type: how many are marked, precision, recall and F1, strict and lenient.

    Args:
        task: one of extraction_statistics.TASKS.
        types: its rows in order; those neither marked nor predicted are left out.
    """
    heads = [name for match in MATCHES for name in (f"{match}\nP", "\nR", "\nF1")]
    table = _table(["\ntype", "\nmarked", *heads], title=f"{title}: {TITLES[task]}")
    rows = [("all types", "{task}_{match}_{ratio}", "{task}_{match}")]
    rows += [("mean over types", "{task}_macro_{match}_{ratio}", "")]
    rows += [("type ignored", "{task}_{match}_untyped_{ratio}", "{task}_{match}_untyped")]
    rows += [(t, f"{{task}}_{{match}}_{{ratio}}/{t}", f"{{task}}_{{match}}/{t}") for t in types]
    for place, (label, metric, totals) in enumerate(rows):
        counts = scored.counts.get(totals.format(task=task, match="strict"))
        if counts is not None and place > 2 and not any(counts):
            continue
        values = [
            _value(scored, metric.format(task=task, match=m, ratio=r), totals.format(task=task, match=m), r)
            for m in MATCHES
            for r in RATIOS
        ]
        table.add_row(label, "" if counts is None else str(counts.gold), *values, end_section=place == 2)
    return table


def _value(scored: ExtractionScores, metric: str, totals: str, ratio: str) -> str:
    """Return F1 with its interval, precision and recall without, so that both kinds of match fit."""
    if ratio == "f1":
        return score_cell(scored.estimates.get(metric)).text
    estimate, counts = scored.estimates.get(metric), scored.counts.get(totals, Counts(0, 0, 0))
    value = counts.ratios[RATIOS.index(ratio)] if estimate is None else estimate.value
    return f"{SCALE * value:.1f}"


def comparison_table(comparisons: Sequence[ComparisonRecord], other: str) -> Table:
    """Return the table of differences with interval and p-value; `other` names what was compared with."""
    table = _table(["site", "ours", "theirs", "score", "difference", "p"], lefts=4)
    table.title = f"ours minus {other}, on the same documents"
    table.caption, table.caption_justify = Text(ALONE), "left"
    for item in comparisons:
        change = difference(item.value, item.low, item.high).text
        table.add_row(item.site, item.ours, item.theirs, display_name(item.metric), change, f"{item.p:.3f}")
    return table


def _table(heads: Sequence[str], lefts: int = 1, title: str | None = None) -> Table:
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    for place, head in enumerate(heads):
        table.add_column(head, justify="left" if place < lefts else "right", no_wrap=True)
    return table
