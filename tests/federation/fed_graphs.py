# SPDX-License-Identifier: Apache-2.0
"""Three sites whose knowledge graphs are files of triples, and runs that compare them exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fed_harness import Federation, Make, completed, ledger
from fed_knowing import SITES, KnowingHospitals
from fed_quadratic import QuadraticLearner, use_site_files

from medflare.core.run_record import RunRecord
from medflare.egress.report import LedgerLine

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


def exact_runs(federation: Make, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Hospitals, Make]:
    """The hospitals, and runs of quadratic learners over them."""
    use_site_files(monkeypatch)
    hospitals = Hospitals(root / "run1")

    def run(**more: Any) -> Federation:
        hooks = {name: more.pop(name, None) for name in ("tamper", "mislead")}
        rule = {"draws": 4, "distances": "exact", **more.pop("settings", {})}
        return federation(
            learner=QuadraticLearner,
            controller={"num_rounds": 1, "seed": 7, **more},
            rule={"rule": "ddcs", "rule_settings": rule},
            **hooks,
        )

    return hospitals, run


def compared(run: Federation) -> dict[str, Any]:
    """Runs it; what the record says of the comparison."""
    return comparison(completed(run))


def comparison(record: RunRecord) -> dict[str, Any]:
    report: dict[str, Any] = record.preparation["exact"]
    return report


def sizes(report: dict[str, Any]) -> dict[tuple[str, ...], int]:
    return {tuple(sorted(item["sites"])): item["shared"] for item in report["pairs"]}


def not_compared(report: dict[str, Any]) -> dict[tuple[str, ...], str]:
    return {tuple(sorted(item["sites"])): item["why"] for item in report["not_compared"]}


def lines(run: Federation, site: str) -> list[LedgerLine]:
    return ledger(run, site, *TASKS)
