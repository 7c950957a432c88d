# SPDX-License-Identifier: Apache-2.0
"""Tables of a site's egress ledger for a privacy officer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_report(facts: Mapping[str, Any], names: bool) -> None:
    """Every message, what was held back, totals, rules in force, and what is wrong with the ledgers."""
    console = Console()
    for (site, job), rows in _by_job(facts["messages"]).items():
        title = f"what left {site} in {rows[0].get('job_name') or 'job'} ({job})"
        console.print(_messages(title, rows, names))
        _print_rules(console, [facts["policies"][row["policy"]] for row in rows if row.get("policy")])
        if names:
            for digest in dict.fromkeys(row.get("declaration", "") for row in rows if row.get("tensors")):
                console.print(_declaration(facts["declarations"].get(digest, {}), digest))
    if facts["blocked"]:
        console.print(_blocked(facts["blocked"]))
    if facts["failures"]:
        console.print(_failures(facts["failures"]))
    console.print(_totals(facts["totals"]))
    for problem in facts["problems"]:
        console.print(f"[red]broken[/red] {escape(problem)}", soft_wrap=True)
    verdict = "every line follows the one before it" if not facts["problems"] else "not whole, see above"
    console.print(f"{len(facts['ledgers'])} ledger(s): {verdict}")


def _by_job(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    jobs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        jobs.setdefault((row["site"], row["job"]), []).append(row)
    return jobs


def shown_round(number: int) -> str:
    """As pages count: from 1."""
    return str(number + 1) if number >= 0 else "before"


def _messages(title: str, rows: Sequence[Mapping[str, Any]], names: bool) -> Table:
    """Return a line for each message; `names` lists all facts it held and how its tensors travelled."""
    day = rows[0]["time"].partition("T")[0]
    table = Table(title=f"{escape(title)}, from {day}", title_justify="left", box=SIMPLE_HEAD)
    table.padding = (0, 1, 0, 0)
    columns = ["time", "round", "task", "tensors", "as", "bytes", "facts", "protected"]
    for column in [*columns, "sha256"] if names else columns:
        table.add_column(column, no_wrap=not names and column != "as", overflow="fold")
    for row in rows:
        cells = [
            row["time"] if names else row["time"].partition("T")[2].removesuffix("Z"),
            shown_round(row["round"]),
            row["task"],
            str(row.get("tensors", 0)),
            _form(row) if names else _short_form(row),
            f"{row.get('bytes', 0):,}",
            _facts(row, names) + _withheld(row),
            ", ".join(row.get("protections", [])) or "-",
            row["sha256"][:12] if row.get("tensors") else "-",
        ]
        table.add_row(*cells[: len(table.columns)])
    if not names:
        table.caption = "--names: with names, shapes and digests; --json: all of it"
    return table


def _facts(row: Mapping[str, Any], names: bool) -> str:
    size = f"{row.get('facts_bytes', 0):,} B"
    return f"{', '.join(row.get('facts', []))} ({size})" if names else size


def _short_form(row: Mapping[str, Any]) -> str:
    if row.get("sketch"):
        return "sketch"
    if row.get("exact"):
        return _exact(row["exact"])
    return (
        ", ".join(sorted({dtype for _, dtype in row["sealed"].values()})) if row.get("sealed") else _form(row)
    )


def _form(row: Mapping[str, Any]) -> str:
    """Return the transport form of a message's tensors: packed vectors with shapes, or compressed dtypes."""
    if row.get("sealed"):
        return "; ".join(f"{name} {shape} {dtype}" for name, (shape, dtype) in row["sealed"].items())
    if row.get("sketch"):
        return f"sketch, {row['sketch']['bytes']:,} B"
    if row.get("exact"):
        return _exact(row["exact"])
    return ", ".join(row.get("dtypes", [])) or "-"


def _exact(comparison: Mapping[str, Any]) -> str:
    """Return a message of exact comparison: what it is, and which site it is for."""
    return f"{comparison.get('message', 'size shared')}, {escape(comparison['partner'])}"


def _withheld(row: Mapping[str, Any]) -> str:
    kept = f"; {row['withheld']} metrics kept here" if row.get("withheld") else ""
    return kept + _privacy(row.get("privacy", {}))


def _privacy(spent: Mapping[str, Any]) -> str:
    """Return what a private update had spent of the patients' budget."""
    if not spent:
        return ""
    budget = "" if spent.get("budget") is None else f" of {spent['budget']:g}"
    return f"; ε {spent['run']:.3g} in this run, {spent['total']:.3g}{budget} in all, δ {spent['delta']:g}"


def _declaration(content: Mapping[str, Any], digest: str) -> Table:
    table = Table("tensor", "shape", "dtype", title_justify="left", title=f"declaration {digest[:12]}")
    for name, (shape, dtype) in content.get("shared", {}).items():
        table.add_row(escape(name), "x".join(map(str, shape)) or "one number", dtype)
    for name, (shape, dtype) in content.get("sums", {}).items():
        table.add_row(escape(f"sum:{name}"), "x".join(map(str, shape)) or "one number", dtype)
    return table


def _print_rules(console: Console, contents: Sequence[Mapping[str, Any]]) -> None:
    """The rules under which the messages left; more than one set where the site changed them."""
    from medflare.core.config import parse
    from medflare.data.settings.policy import PolicyConfig
    from medflare.egress.policy import Policy, in_words

    texts = []
    for content in contents:
        words = " ".join(in_words(Policy(rules=parse(PolicyConfig, content, "ledger"))))
        if words not in texts:
            texts.append(words)
    for words in texts:
        console.print(f"policy: {escape(words)}", soft_wrap=True)


def _blocked(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("time", "site", "job", "round", "task", "rule", "why it stayed", title_justify="left")
    table.title = "held back"
    for row in rows:
        table.add_row(*_head(row), escape(", ".join(row.get("rules", []))), escape(row.get("reason", "")))
    return table


def _failures(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("time", "site", "job", "round", "task", "code", "what was told", title_justify="left")
    table.title = "failures told to the server"
    for row in rows:
        table.add_row(*_head(row), f"E{row.get('code', 0)}", escape(row.get("text", "")))
    return table


def _head(row: Mapping[str, Any]) -> tuple[str, ...]:
    job = row.get("job_name") or row["job"]
    return row["time"], row["site"], escape(job), shown_round(row["round"]), row["task"]


def _totals(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("site", "job", "task", "messages", "tensor bytes", "fact bytes", "protected by")
    table.title, table.title_justify = "in all", "left"
    for row in rows:
        table.add_row(
            row["site"],
            escape(row["job_name"] or row["job"]),
            row["task"],
            str(row["messages"]),
            f"{row['bytes']:,}",
            f"{row['facts_bytes']:,}",
            ", ".join(row["protections"]) or "-",
        )
    left = sum(row["bytes"] + row["facts_bytes"] for row in rows)
    table.caption = f"{left:,} bytes in {sum(row['messages'] for row in rows)} messages"
    return table
