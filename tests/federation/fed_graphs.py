# SPDX-License-Identifier: Apache-2.0
"""Three sites whose knowledge graphs are files of triples, and runs that compare them exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fed_knowing import SITES, KnowingHospitals
from fed_quadratic import quadratic_sites

from medflare.egress.report import read_ledger

FIRST, SECOND, THIRD = SITES
RANGES = {FIRST: range(40), SECOND: range(10, 70), THIRD: range(30, 120)}
"""Numbers of the triples of each site; the smaller graph asks, so that the third always answers."""
SHARED = {(FIRST, SECOND): 30, (FIRST, THIRD): 10, (SECOND, THIRD): 40}
TASKS = ("count", "offer", "answer", "compare")


def need_psi() -> None:
    """Skips a test where the package is not installed."""
    reason = "openmined.psi is not installed: it has wheels for few machines, and pins protobuf"
    pytest.importorskip("private_set_intersection.python", reason=reason)


class Hospitals(KnowingHospitals):
    """Graphs are files of triples, and every site may be compared exactly."""

    knowledge: ClassVar[dict[str, Any]] = {"extractor": "none", "triples": "graph.tsv"}
    policy: ClassVar[dict[str, Any]] = {"knowledge_exact": "allow"}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        row = {"id": "1", "question": "Which", "options": ["one", "two"], "answer": "one", "split": "train"}
        for site in SITES:
            self.ask(site, [json.dumps(row)])
            self.know(site, RANGES[site])

    def know(self, site: str, numbers: range) -> None:
        lines = [f"disease {n % 7}\tcauses\tsymptom {n}\t1.0" for n in numbers]
        (self.folder(site) / "graph.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def exact_runs(
    federation: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Hospitals, Callable[..., Any]]:
    """The hospitals, and runs of quadratic learners over them."""
    quadratic_sites(monkeypatch)
    made = Hospitals(root / "run1")

    def run(**more: Any) -> Any:
        hooks = {name: more.pop(name, None) for name in ("tamper", "mislead")}
        rule = {"draws": 4, "distances": "exact", **more.pop("settings", {})}
        controller = {"num_rounds": 1, "seed": 7, **more}
        return federation(controller=controller, rule={"rule": "ddcs", "rule_settings": rule}, **hooks)

    return made, run


def compared(record: Any) -> dict[str, Any]:
    assert record.status == "completed", record.reason
    found: dict[str, Any] = record.preparation["exact"]
    return found


def sizes(told: dict[str, Any]) -> dict[tuple[str, ...], int]:
    return {tuple(sorted(item["sites"])): item["shared"] for item in told["pairs"]}


def failed(told: dict[str, Any]) -> dict[tuple[str, ...], str]:
    return {tuple(sorted(item["sites"])): item["why"] for item in told["not_compared"]}


def lines(run: Any, site: str) -> list[Any]:
    ledger = read_ledger(run.site_folder(site) / "egress.jsonl")
    assert ledger.problems == []
    return [line for line in ledger.lines if line.task in TASKS]
