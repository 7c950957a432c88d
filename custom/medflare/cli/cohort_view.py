# SPDX-License-Identifier: Apache-2.0
"""Cohorts as tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from medflare.data.near_copies import SHARE, WORDS, NearCopy

REPEATED = 5
"""Texts that several records share of which so many are shown."""
SHOWN = 100
"""Characters of a text that a table shows."""


def print_summary(summary: Mapping[str, Any]) -> None:
    """Counts, labels and skips of one cohort."""
    console = Console()
    facts = Table(title=str(summary["name"]) or None, show_header=False, title_justify="left")
    kinds = ("patients", "studies", "images", "notes", "questions", "summaries")
    present = [key for key in kinds if summary[key]]
    for key in present:
        facts.add_row(key, str(summary[key]))
    for split, counts in summary["splits"].items():
        facts.add_row(f"  {split}", ", ".join(f"{counts[key]} {key}" for key in present))
    for key in ("entities", "relations", "sex", "words", "left_out", "identifiers_replaced"):
        if summary[key]:
            facts.add_row(key.replace("_", " "), _listed(summary[key]))
    console.print(facts)
    if missing := missing_splits(summary):
        console.print(missing, style="yellow")
    if summary["annotation"]:
        _print_annotation(console, summary)
    if summary["asked"] or summary["summarised"]:
        _print_texts(console, summary)
    if summary["visits"]:
        _print_visits(console, summary["visits"])
    if summary["labels"]:
        labels = Table(
            "condition", "positive", "negative", "uncertain", "blank", title="labels", title_justify="left"
        )
        for name, counts in summary["labels"].items():
            labels.add_row(
                name, *(str(counts[code]) for code in ("positive", "negative", "uncertain", "blank"))
            )
        console.print(labels)
        if unknown := summary["reports_not_understood"]:
            console.print(
                f"{unknown} of {summary['studies']} reports mention no condition and state no normality: the "
                "labeller understood nothing of them. They count as unknown, not as normal.",
                style="yellow",
            )
    _print_skipped(console, summary)


def missing_splits(summary: Mapping[str, Any]) -> str:
    """Return what a run lacks here because a split has no record; "" where nothing, or where all test."""
    filled = {split: any(counts.values()) for split, counts in summary["splits"].items()}
    use = {"train": "learns", "val": "validates after its rounds", "test": "tests at its end"}
    lacking = [split for split in use if not filled[split]]
    if not lacking or lacking == ["train", "val"]:
        return ""
    what = " or ".join(use[split] for split in lacking)
    return (
        f"No record is in split {' or '.join(lacking)}: nothing here {what} in a run. "
        "'split: {ignore_source: true}' has patients split 80/10/10 whatever the source says."
    )


def _listed(counts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in counts.items())


def _print_annotation(console: Console, summary: Mapping[str, Any]) -> None:
    """Print what the notes' annotation covers, what else the source held, and what single sentences lose."""
    annotation, source = summary["annotation"], summary["annotation"]["source"]
    table = Table(title="annotation", show_header=False, title_justify="left")
    table.add_row("notes for", _listed(annotation["tasks"]) or "no task: texts alone")
    table.add_row("looked for", ", ".join(annotation["annotated"]))
    table.add_row("modifiers", _listed(annotation["modifiers"]))
    for key in ("entities", "relations"):
        if source[f"source_{key}"] != summary[key]:
            table.add_row(f"{key} in the source", _listed(source[f"source_{key}"]))
    for key, counts in source.items():
        if counts and not key.startswith("source_"):
            table.add_row(key.replace("_", " "), _listed(counts))
    lost = annotation["windows"]
    table.add_row(
        "sentence by sentence",
        f"{lost['windows']} windows; {lost['entities_cut']} entities cut, "
        f"{lost['relations_lost']} of {lost['relations_total']} relations lost",
    )
    console.print(table)


def _print_texts(console: Console, summary: Mapping[str, Any]) -> None:
    """Print subjects, lengths and repetitions of questions and summaries."""
    for title, key in (("questions", "asked"), ("summaries", "summarised")):
        if not summary[key]:
            continue
        table = Table(title=title, show_header=False, title_justify="left")
        for name, value in summary[key].items():
            if value or name == "repeated":
                shown = _listed(value) if isinstance(value, Mapping) else str(value)
                table.add_row(name.replace("_", " "), shown)
        console.print(table)


def _print_visits(console: Console, summary: Mapping[str, Any]) -> None:
    """Print visits per patient, their distances in time, the patients' demographics, and corrections."""
    table = Table(title=f"visits, T = {summary['T']}", show_header=False, title_justify="left")
    listed = ", ".join(f"{count} with {visits}" for visits, count in summary["patients_with"].items())
    table.add_row("patients", listed)
    for split, counts in summary["per_visit"].items():
        table.add_row(f"  {split}", ", ".join(f"{n} of visit {t}" for t, n in enumerate(counts, 1)))
    if summary["missed"]:
        table.add_row("missed visits", str(summary["missed"]))
    table.add_row("days between visits", _listed(summary["gaps"]))
    table.add_row("years at the first", _listed(summary["age"]))
    table.add_row("sex", _listed(summary["sex"]))
    table.add_row("images a visit", str(summary["images_per_visit"]))
    for what, count in summary["changed"].items():
        table.add_row(what.replace("_", " "), str(count))
    console.print(table)
    if summary["T"] == 1:
        console.print("every patient has one visit: nothing here can teach a change between visits")


def _print_skipped(console: Console, summary: Mapping[str, Any]) -> None:
    if not summary["skipped"]:
        console.print(f"nothing skipped of {summary['records']} records")
        return
    share = summary["unusable"] / max(summary["records"], 1)
    skipped = Table(
        "reason",
        "count",
        "for instance",
        title=f"skipped: {summary['unusable']} of {summary['records']} records ({share:.1%}); max_skipped "
        f"allows {summary['allowed']:.1%}",
        title_justify="left",
    )
    for reason, facts in summary["skipped"].items():
        first = facts["examples"][0] if facts.get("examples") else ""
        skipped.add_row(reason, str(facts["count"]), escape(str(first)))
    console.print(skipped)


def print_repeated(repeated: Sequence[tuple[str, Sequence[str]]]) -> None:
    """Print the texts that several patients share; a model learns the commonest ones first."""
    if not repeated:
        return
    console = Console()
    records = sum(len(ids) for _, ids in repeated)
    table = Table("records", "text", "for instance")
    console.print(f"repeated word for word over patients: {records} records, {len(repeated)} texts")
    for text, ids in repeated[:REPEATED]:
        short = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
        table.add_row(str(len(ids)), escape(" ".join(short.split())), escape(", ".join(ids[:2])))
    console.print(table)


def print_copies(copies: Sequence[NearCopy], held_out: int) -> None:
    """Print the held-out notes that repeat training notes; their scores are too good."""
    if not copies:
        return
    console, table = Console(), Table("held-out note", "repeats", "share of its words")
    for copy in copies[:REPEATED]:
        table.add_row(escape(copy.held_out), escape(copy.trained), f"{copy.share:.0%}")
    console.print(
        f"{len(copies)} of {held_out} held-out notes repeat {SHARE:.0%} or more of a training note, in "
        f"sequences of {WORDS} words. Such scores show what was learnt by heart: put both into one split, or "
        "leave one out.",
        style="yellow",
    )
    console.print(table)


def print_heterogeneity(facts: Mapping[str, Any]) -> None:
    """Print the differences between sites: one row a site, then each condition's or group's share."""
    console = Console()
    kinds = {"groups": ("groups", "share, %"), "entities": ("entity types", "share, %")}
    about = next((words for column, words in kinds.items() if column in facts["columns"]), None)
    what, share = about or ("four codes", "positive, %")
    sites = Table(*facts["columns"], title="how the sites differ", title_justify="left")
    for row in facts["rows"]:
        sites.add_row(*(str(row[column]) for column in facts["columns"]))
    sites.caption = (
        f"divergence: Jensen-Shannon, in bits, of the {what} from the pool "
        f"(mean {facts['mean_divergence']}); overlap: share of a site's words that another site uses too"
    )
    console.print(sites)
    labels = Table(share, *facts["labels"], title_justify="left")
    for condition in next(iter(facts["labels"].values())):
        labels.add_row(condition, *(f"{100 * shares[condition]:.1f}" for shares in facts["labels"].values()))
    console.print(labels)
