# SPDX-License-Identifier: Apache-2.0
"""The medflare command: JSON for scripts, exit codes that mean something, examples in every help text."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from medflare.cli.main import app

RUNNER = CliRunner()
COMMANDS = [
    ["run"],
    ["cohort", "inspect"],
    ["cohort", "make"],
    ["cohort", "partition"],
    ["evaluate"],
    ["generate"],
    ["page"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_shows_an_example(command: list[str]) -> None:
    result = RUNNER.invoke(app, [*command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert f"medflare {' '.join(command)} " in result.output
    assert "Example" in result.output


def test_cohort_make_then_inspect_count_the_same(tmp_path: Path) -> None:
    made = RUNNER.invoke(app, ["cohort", "make", str(tmp_path), "--patients", "12", "--size", "48", "--json"])
    assert made.exit_code == 0, made.output
    assert sorted(json.loads(made.stdout)["hospitals"]) == ["hospital-4", "site-1", "site-2", "site-3"]
    assert (tmp_path / "contact_sheet.png").is_file()
    found = RUNNER.invoke(app, ["cohort", "inspect", str(tmp_path / "site.yaml"), "--images", "--json"])
    assert found.exit_code == 0, found.output
    summaries = json.loads(found.stdout)
    assert [s["patients"] for s in summaries] == [12] * 4
    assert [s["usable_images"] for s in summaries] == [12] * 4


def test_inspect_guesses_our_own_manifest_and_asks_otherwise(small_hospital: Path, tmp_path: Path) -> None:
    found = RUNNER.invoke(app, ["cohort", "inspect", str(small_hospital), "--json"])
    assert json.loads(found.stdout)["studies"] == 60
    asked = RUNNER.invoke(app, ["cohort", "inspect", str(tmp_path)])
    assert asked.exit_code == 2
    assert "--format" in asked.stderr
    assert "mimic_cxr" in asked.stderr


def test_partition_deals_patients_and_says_how_sites_differ(small_hospital: Path, tmp_path: Path) -> None:
    pooled = tmp_path / "pooled.yaml"
    pooled.write_text(f"cohort: {{format: manifest, root: {small_hospital}}}\n")
    given = ["cohort", "partition", str(pooled), str(tmp_path / "parts"), "--sites", "2"]
    dealt = RUNNER.invoke(app, [*given, "--method", "report_clusters", "--json"])
    assert dealt.exit_code == 0, dealt.output
    facts = json.loads(dealt.stdout)
    assert sum(row["patients"] for row in facts["rows"]) == 60
    assert facts["mean_divergence"] > 0
    shown = RUNNER.invoke(app, given, env={"COLUMNS": "160"})
    assert "how the sites differ" in shown.output


def test_entities_and_relations_are_counted(tmp_path: Path) -> None:
    row = {
        "doc_id": "n1",
        "split": "train",
        "text": "Severe pain.",
        "entities": [
            {"id": "T1", "label": "problem", "spans": [[7, 11]]},
            {"id": "T2", "label": "severity", "spans": [[0, 6]]},
        ],
        "relations": [{"type": "severity", "head": "T1", "tail": "T2"}],
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    found = RUNNER.invoke(app, ["cohort", "inspect", str(tmp_path), "--format", "notes_jsonl", "--json"])
    assert found.exit_code == 0, found.output
    summary = json.loads(found.stdout)
    assert summary["entities"] == {"problem": 1, "severity": 1}
    assert sum(summary["relations"].values()) == 1


def test_wrong_settings_exit_with_2_and_data_with_3(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cohort: {fromat: manifest, root: .}\n")
    wrong = RUNNER.invoke(app, ["cohort", "inspect", str(tmp_path / "site.yaml")])
    assert wrong.exit_code == 2
    assert "Did you mean 'format'?" in wrong.stderr
    missing = RUNNER.invoke(app, ["page", str(tmp_path)])
    assert missing.exit_code == 3
    assert "no run record" in missing.stderr
    bad_set = RUNNER.invoke(app, ["run", "jobs/fedmrg", "-f", str(tmp_path / "site.yaml"), "--set", "rounds"])
    assert bad_set.exit_code == 2


def test_the_command_starts_without_importing_torch_or_nvflare() -> None:
    code = (
        "import sys, medflare.cli.main; print([m for m in ('torch', 'nvflare', 'monai') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
