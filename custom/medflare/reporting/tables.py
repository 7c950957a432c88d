# SPDX-License-Identifier: Apache-2.0
"""Result tables from run records: for the terminal, for Markdown and as JSON rows.

Rows are site x system, columns metrics; every cell is a value with its 95 % interval, times 100 as papers
print them. The best system of a site is bold; a footnote says where being best is not significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from medflare.core.run_record import ComparisonRecord, Estimate, RunRecord

NAMES: dict[str, str] = {
    "bleu_1": "BLEU-1",
    "bleu_2": "BLEU-2",
    "bleu_3": "BLEU-3",
    "bleu_4": "BLEU-4",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
    "sacrebleu": "sacreBLEU",
    **{f"r2gen_bleu_{n}": f"BLEU-{n}, R2Gen's rules" for n in range(1, 5)},
    "r2gen_rouge_l": "ROUGE-L, R2Gen's rules",
    "label_precision": "label P",
    "label_recall": "label R",
    "label_f1": "label F1",
    **{
        f"label_{kind}_{ratio}": f"{kind.removesuffix('5')} {short}{' (5)' if kind == 'micro5' else ''}"
        for kind in ("micro", "macro", "micro5")
        for ratio, short in (("precision", "P"), ("recall", "R"), ("f1", "F1"))
    },
    **{
        f"{task}_{kind}_{ratio}": f"{name} {kind.replace('_', ' ')} {short}"
        for task, name in (("ner", "NER"), ("re_gold", "RE"), ("re_e2e", "RE end to end"))
        for kind in [k for m in ("strict", "lenient") for k in (m, f"{m}_untyped", f"macro_{m}")]
        for ratio, short in (("precision", "P"), ("recall", "R"), ("f1", "F1"))
    },
    "cut_rate": "questions cut to fit",
    "margin": "margin of the right option, nats",
    "length_ratio": "words for a word of the reference",
    "change_f1": "change F1",
    "change_precision": "change P",
    "change_recall": "change R",
    "change_moved_f1": "change F1, moved",
    "change_macro_f1": "change macro F1",
    "change_opposite": "opposite change",
    "parse_failure_rate": "unreadable outputs",
    "duplicate_rate": "repeated items",
    "bertscore_f1": "BERTScore F1",
    "chexbert_f1": "CheXbert F1",
    "chexbert_micro_f1": "CheXbert micro F1",
    "radgraph_partial": "RadGraph F1",
    "ratescore": "RaTEScore",
}
LOSSES = {
    "loss": "language loss",
    "loss_specialised": "language loss, personal adapter",
    "loss_hcl": "contrastive loss",
    "loss_cls": "diagnosis loss",
    "loss_kd_generic": "distillation to the generic adapter",
    "loss_kd_specialised": "distillation to the personal adapter",
}
PHASES = {"train_": "training", "val_": "validation", "test_": "test"}
HEADLINE = (
    *("accuracy", "chance"),
    *("bleu_1", "bleu_4", "meteor", "rouge_l", "cider", "label_f1", "label_micro_f1", "label_macro_f1"),
    *("change_f1", "change_opposite"),
    *("ner_strict_f1", "ner_lenient_f1", "re_gold_strict_f1", "re_e2e_strict_f1"),
)
SCALE = 100.0
LEADING = ("site", "system")
CAPTION = "Times 100, with 95 % bootstrap intervals over studies."
EXTRACTION = ("ner_", "re_gold_", "re_e2e_")
UNITS = {"accuracy": "questions", "length_ratio": "summaries"}
"""Score that only runs of one kind have -> what they count."""
LESS_IS_BETTER = ("parse_failure_rate", "duplicate_rate", "change_opposite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One system on one site's split."""

    method: str
    site: str
    role: str
    adapter: str
    split: str
    studies: int
    metrics: dict[str, Estimate]
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def system(self) -> str:
        """What tables and comparisons call it."""
        return f"{self.method} {self.adapter}" if self.adapter != "none" else self.method

    def as_json(self) -> dict[str, Any]:
        """Plain types, values as fractions."""
        return {
            "site": self.site,
            "role": self.role,
            "system": self.system,
            "method": self.method,
            "adapter": self.adapter,
            "split": self.split,
            "studies": self.studies,
            "metrics": {name: item.model_dump() for name, item in self.metrics.items()},
            "skipped": dict(self.skipped),
        }


def display_name(metric: str) -> str:
    """The metric as papers write it; its own name where it has none."""
    return NAMES.get(metric, metric.replace("_", " "))


def curve_name(metric: str) -> str:
    """`val_bleu_4` -> `BLEU-4, validation`."""
    for prefix, phase in PHASES.items():
        if metric.startswith(prefix):
            return f"{curve_name(metric.removeprefix(prefix))}, {phase}"
    return LOSSES.get(metric) or NAMES.get(metric) or metric.replace("_", " ")


def unit_of(metrics: Iterable[str]) -> str:
    """What the scores count: `notes` of extraction, `questions`, `summaries`, else `studies`."""
    names = set(metrics)
    if any(name.startswith(EXTRACTION) for name in names):
        return "notes"
    return next((unit for telling, unit in UNITS.items() if telling in names), "studies")


def caption_of(rows: Sequence[Row]) -> str:
    """CAPTION with what was counted."""
    return CAPTION.replace("studies", _unit(rows))


def _unit(rows: Sequence[Row]) -> str:
    return unit_of(name for row in rows for name in row.metrics)


def rows_of(records: Iterable[RunRecord]) -> list[Row]:
    """Rows of all runs, sites together, participants before unseen ones."""
    rows = [
        Row(
            method=record.method,
            site=item.site,
            role=item.role,
            adapter=item.adapter,
            split=item.split,
            studies=item.studies,
            metrics=item.metrics,
            skipped=item.skipped_metrics,
        )
        for record in records
        for item in record.evaluations
    ]
    return sorted(rows, key=lambda row: (row.role == "unseen", row.site, row.split))


def columns_of(rows: Sequence[Row], wanted: Sequence[str] | None = None) -> list[str]:
    """The wanted metrics that at least one row has; HEADLINE, or all there are, without a wish."""
    present = dict.fromkeys(name for row in rows for name in row.metrics)
    chosen = [name for name in wanted or HEADLINE if name in present]
    return chosen or list(present)


def best_rows(rows: Sequence[Row], metric: str) -> set[int]:
    """Indices of the rows that are best on their site and split, where there is more than one system."""
    best: set[int] = set()
    for site, split in {(row.site, row.split) for row in rows}:
        here = [i for i, r in enumerate(rows) if (r.site, r.split) == (site, split) and metric in r.metrics]
        if len(here) > 1:
            best_of = min if metric in LESS_IS_BETTER else max
            top = best_of(rows[i].metrics[metric].value for i in here)
            best |= {i for i in here if rows[i].metrics[metric].value == top}
    return best


def cell(estimate: Estimate | None) -> str:
    """`40.2 [38.1, 42.0]`, or a dash."""
    if estimate is None:
        return "–"
    value, low, high = (SCALE * x for x in (estimate.value, estimate.low, estimate.high))
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def footnotes(rows: Sequence[Row], comparisons: Iterable[ComparisonRecord]) -> dict[tuple[int, str], str]:
    """(row, metric) of a best cell -> why it is not significantly better than another system there."""
    notes: dict[tuple[int, str], str] = {}
    for item in comparisons:
        if item.p < 0.05:
            continue
        for index in best_rows(rows, item.metric):
            row, sign = rows[index], 1 if rows[index].system == item.ours else -1
            if row.site != item.site or row.system not in (item.ours, item.theirs):
                continue
            other = item.theirs if sign == 1 else item.ours
            low, high = sorted((sign * item.low, sign * item.high))
            size = " ".join(
                [
                    "difference",
                    f"{SCALE * sign * item.value:+.1f}",
                    f"[{SCALE * low:+.1f}, {SCALE * high:+.1f}]",
                ]
            )
            notes[index, item.metric] = (
                f"{display_name(item.metric)} at {item.site}: {row.system} is not significantly better than "
                f"{other} ({size}, p = {item.p:.2g})."
            )
    return notes


@dataclass(frozen=True, slots=True)
class Cell:
    """What one place of the table says: `note` is the number of its footnote, 0 for none."""

    text: str
    best: bool = False
    note: int = 0


def grid_of(
    rows: Sequence[Row], metrics: Sequence[str], comparisons: Iterable[ComparisonRecord] = ()
) -> tuple[list[list[Cell]], list[str]]:
    """The cells of every row in the order of `metrics`, and the footnotes, first one numbered 1."""
    notes = {key: text for key, text in footnotes(rows, comparisons).items() if key[1] in metrics}
    numbers = {key: place for place, key in enumerate(notes, start=1)}
    best = {metric: best_rows(rows, metric) for metric in metrics}
    cells = [
        [
            Cell(cell(row.metrics.get(metric)), index in best[metric], numbers.get((index, metric), 0))
            for metric in metrics
        ]
        for index, row in enumerate(rows)
    ]
    return cells, list(notes.values())


def _leading(row: Row, several: bool = True) -> list[str]:
    """Site, system and studies; the adapter alone says which system where there is one method."""
    system = row.system if several or row.adapter == "none" else row.adapter
    return [row.site + (" (unseen)" if row.role == "unseen" else ""), system, str(row.studies)]


def results_table(
    rows: Sequence[Row],
    metrics: Sequence[str] | None = None,
    comparisons: Iterable[ComparisonRecord] = (),
    title: str = "",
) -> Table:
    """A rich table for the terminal: the interval stands under its value, notes below the table."""
    chosen = columns_of(rows, metrics)
    cells, notes = grid_of(rows, chosen, comparisons)
    numbered = [f"({place}) {text}" for place, text in enumerate(notes, start=1)]
    caption = Text("\n".join([caption_of(rows) + " Best of a site in bold.", *numbered]))
    table = Table(title=title or None, caption=caption, caption_justify="left", box=box.SIMPLE_HEAD)
    for place, name in enumerate([*LEADING, _unit(rows), *map(display_name, chosen)]):
        table.add_column(name, justify="left" if place < 2 else "right", no_wrap=True)
    several = len({row.method for row in rows}) > 1
    for index, (row, line) in enumerate(zip(rows, cells, strict=True)):
        last = index + 1 < len(rows) and rows[index + 1].site != row.site
        table.add_row(*map(Text, _leading(row, several)), *map(_rich_cell, line), end_section=last)
    return table


def _rich_cell(item: Cell) -> Text:
    value, _, interval = item.text.partition(" ")
    mark = f" ({item.note})" if item.note else ""
    text = Text(value + mark, style="bold" if item.best else "")
    return text.append(f"\n{interval}", style="dim not bold") if interval else text


def markdown_table(
    rows: Sequence[Row], metrics: Sequence[str] | None = None, comparisons: Iterable[ComparisonRecord] = ()
) -> str:
    """A Markdown table with its notes, for documents."""
    chosen = columns_of(rows, metrics)
    cells, notes = grid_of(rows, chosen, comparisons)
    head = [*LEADING, _unit(rows), *map(display_name, chosen)]
    rule = ["---", "---", *["---:"] * (len(head) - 2)]
    body = [[*_leading(row), *map(markdown_cell, line)] for row, line in zip(rows, cells, strict=True)]
    lines = ["| " + " | ".join(line) + " |" for line in (head, rule, *body)]
    numbered = [f"{place}. {text}" for place, text in enumerate(notes, start=1)]
    return "\n".join([*lines, "", caption_of(rows), *([""] if numbered else []), *numbered]) + "\n"


def markdown_cell(item: Cell) -> str:
    """The cell in Markdown, the best one bold."""
    return (f"**{item.text}**" if item.best else item.text) + (f" ({item.note})" if item.note else "")
