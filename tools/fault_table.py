# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of docs/results/faults.md from what tests marked `fault` came to.

`make test-faults` names the file in FAULTS_OUT, one JSON object a line; the last result of a test counts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "docs/results/faults.md"
WRITES = "power cut at a write to a disk"
COLUMNS = ("in the clear", "int8", "int4", "masking", "he")
MARKS = {name: (f"<!-- {name}: begin -->", f"<!-- {name}: end -->") for name in ("faults", "resume")}


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the last row of each test and fault, in the order in which they first came."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["outcome"] != "skipped":
            rows[row["test"], row["what"]] = row
    return list(rows.values())


def fault_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return Markdown: each fault with its phases, what it comes to, and how many tests of it passed."""
    grouped: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        grouped.setdefault((row["what"], row["result"]), []).append(row)
    lines = ["| fault | in which phase | what it comes to | tests | passed |", "|---|---|---|---:|---:|"]
    total = passed = 0
    for (what, result), tests in grouped.items():
        names = dict.fromkeys(row["phase"] for row in tests)
        phases = (
            "; ".join(names) if what != WRITES else f"any write: the {len(names)} runs of the table below"
        )
        good = sum(row["outcome"] == "passed" for row in tests)
        total, passed = total + len(tests), passed + good
        lines.append(f"| {what} | {phases} | {result} | {len(tests)} | {good} |")
    pairs = {(row["what"], row["phase"]) for tests in grouped.values() for row in tests}
    dates = sorted({row["date"] for tests in grouped.values() for row in tests})
    days = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else "never"
    lines += ["", f"{len(pairs)} faults × phases, {total} tests, {passed} passed; run {days}."]
    return "\n".join(lines)


def resume_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return Markdown: rules by protection, and at each whether a run went on to the same bits."""
    cells: dict[str, dict[str, list[bool]]] = {}
    for row in rows:
        if row["what"] != WRITES or "any write: " not in row["phase"]:
            continue
        words = row["phase"].partition("any write: ")[2].replace(",", "").split()
        if words[0] not in ("toy", "quadratic", "visit"):
            cells.setdefault(" ".join(words), {}).setdefault(COLUMNS[0], []).append(
                row["outcome"] == "passed"
            )
            continue
        name = words[1] + (" over rounds of visits (FedTAR)" if words[0] == "visit" else "")
        column = next((column for column in COLUMNS if column in words), COLUMNS[0])
        name += " after a canary" if "canary" in words else ""
        cells.setdefault(name, {}).setdefault(column, []).append(row["outcome"] == "passed")
    lines = [f"| rule | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    for name, columns in sorted(cells.items()):
        shown = [_cell(columns.get(column), column) for column in COLUMNS]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _cell(passed: list[bool] | None, column: str) -> str:
    if passed is None:
        return ""
    if not all(passed):
        return "**differs**"
    return "equal to 1e-6" if column == "he" else "equal"


def write(page: Path, tables: Mapping[str, str]) -> None:
    """Put each table between its two marks in a page."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        begin, end = MARKS[name]
        if begin not in text or end not in text:
            raise SystemExit(f"{page}: has no place for the table '{name}' ({begin} ... {end}).")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    page.write_text(text, encoding="utf-8")


def main() -> None:
    rows = read_rows(Path(sys.argv[1]))
    write(PAGE, {"faults": fault_table(rows), "resume": resume_table(rows)})
    failed = [row["test"] for row in rows if row["outcome"] != "passed"]
    print(f"{PAGE}: {len(rows)} rows{', failed: ' + ', '.join(failed) if failed else ''}")


if __name__ == "__main__":
    main()
