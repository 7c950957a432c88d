# SPDX-License-Identifier: Apache-2.0
"""A benchmark's folder: what marks it, and a digest of every split."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from medflare.core.made_folders import MadeFolder
from medflare.data.records import SPLITS

FILE = "benchmark.json"
BENCHMARK = MadeFolder("benchmark", FILE)
TEST_HEAD = "# medflare evaluate RUN -f test.yaml\n"


def split_facts(places: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, dict[str, Any]]:
    """Return `place/split` -> number of records and SHA-256 of their ids, one a line, in order.

    Args:
        places: client or test set -> (id, split) of its records.
    """
    facts: dict[str, dict[str, Any]] = {}
    for place, records in places.items():
        for split in SPLITS:
            ids = [record for record, at in records if at == split]
            if ids:
                digest = hashlib.sha256("".join(f"{one}\n" for one in ids).encode()).hexdigest()
                facts[f"{place}/{split}"] = {"records": len(ids), "sha256_of_ids": digest}
    return facts


def write_lines(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write JSON lines, with the same bytes on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="\n")


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Write benchmark.json."""
    (folder / FILE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8", newline="\n")
