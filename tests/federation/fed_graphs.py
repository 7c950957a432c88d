# SPDX-License-Identifier: Apache-2.0
"""Three sites whose knowledge graphs are files of triples, and runs that compare them exactly."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fed_quadratic import CURVES, quadratic_sites

from medflare.cohort.site import load_site
from medflare.federation.egress_report import read_ledger
from medflare.selection.knowledge import site_graph
from medflare.selection.sketch_key import SketchKey

SITES = tuple(sorted(CURVES))
FIRST, SECOND, THIRD = SITES
RANGES = {FIRST: range(40), SECOND: range(10, 70), THIRD: range(30, 120)}
"""Numbers of the triples of each site; the smaller graph asks, so that the third always answers."""
SHARED = {(FIRST, SECOND): 30, (FIRST, THIRD): 10, (SECOND, THIRD): 40}
TASKS = ("count", "offer", "answer", "compare")


def need_psi() -> None:
    """Skips a test where the package is not installed."""
    reason = "openmined.psi is not installed: it has wheels for few machines, and pins protobuf"
    pytest.importorskip("private_set_intersection.python", reason=reason)


class Hospitals:
    """Folders of three sites whose graphs are files of triples, with a key that they share."""

    def __init__(self, root: Path) -> None:
        self.root, self.secret = root, SketchKey.new_secret().hex()
        for site in SITES:
            self.folder(site).mkdir(parents=True, exist_ok=True)
            self.write(site)
            self.know(site, RANGES[site])

    def folder(self, site: str) -> Path:
        return self.root / site / "local"

    def know(self, site: str, numbers: range) -> None:
        lines = [f"disease {n % 7}\tcauses\tsymptom {n}\t1.0" for n in numbers]
        (self.folder(site) / "graph.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def write(self, site: str, secret: str = "", knowledge: bool = True, **policy: Any) -> None:
        folder = self.folder(site)
        (folder / "key").write_text(secret or self.secret, encoding="ascii")
        row = {"id": "1", "question": "Which", "options": ["one", "two"], "answer": "one", "split": "train"}
        (folder / "questions.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
        settings: dict[str, Any] = {
            "name": site,
            "cohort": {"format": "questions_jsonl", "root": ".", "split": {"train": 1, "val": 0, "test": 0}},
            "policy": {"knowledge_exact": "allow", **policy},
        }
        if knowledge:
            settings["knowledge"] = {"extractor": "none", "triples": "graph.tsv", "key": "key"}
        (folder / "site.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def settings(self, site: str) -> Any:
        return load_site(self.folder(site) / "site.yaml", site)

    def graph(self, site: str) -> Any:
        return site_graph(self.settings(site).knowledge, [])


def exact_runs(
    federation: Any, root: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Hospitals, Callable[..., Any]]:
    """The hospitals, and runs of quadratic learners over them."""
    quadratic_sites(monkeypatch)
    made = Hospitals(root / "run1")

    def run(**more: Any) -> Any:
        hooks = {name: more.pop(name, None) for name in ("tamper", "mislead")}
        rule = {"draws": 4, "distances": "exact", **more.pop("settings", {})}
        controller = {"num_rounds": 1, "seed": 7, "grace": 5.0, **more}
        return federation(
            controller=controller, rule={"rule": "ddcs", "rule_settings": rule}, **hooks, timeout=60.0
        )

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
