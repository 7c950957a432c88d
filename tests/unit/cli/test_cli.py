# SPDX-License-Identifier: Apache-2.0
"""The medflare command: JSON for scripts, exit codes that mean something, examples in every help text."""

from __future__ import annotations

import json
import subprocess
import sys
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

from command_line import answer, facts, refusal
from medflare.cli.main import main

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
    shown = answer(*command, "--help")
    assert f"medflare {' '.join(command)} " in shown
    assert "Example" in shown


def test_cohort_make_then_inspect_count_the_same(tmp_path: Path) -> None:
    output = facts("cohort", "make", tmp_path, "--patients", 12, "--size", 48)
    assert sorted(output["hospitals"]) == ["hospital-4", "site-1", "site-2", "site-3"]
    assert (tmp_path / "contact_sheet.png").is_file()
    summaries = facts("cohort", "inspect", tmp_path / "site.yaml", "--images")
    assert [s["patients"] for s in summaries] == [12] * 4
    assert [s["usable_images"] for s in summaries] == [12] * 4


def test_inspect_guesses_our_own_manifest_and_asks_otherwise(small_hospital: Path, tmp_path: Path) -> None:
    assert facts("cohort", "inspect", small_hospital)["studies"] == 60
    message = refusal(2, "cohort", "inspect", tmp_path)
    assert "--format" in message
    assert "mimic_cxr" in message


def test_partition_deals_patients_and_says_how_sites_differ(small_hospital: Path, tmp_path: Path) -> None:
    pooled = tmp_path / "pooled.yaml"
    pooled.write_text(f"cohort: {{format: manifest, root: {small_hospital}}}\n")
    given = ["cohort", "partition", pooled, tmp_path / "parts", "--sites", 2]
    dealt = facts(*given, "--method", "report_clusters")
    assert sum(row["patients"] for row in dealt["rows"]) == 60
    assert dealt["mean_divergence"] > 0
    assert "how the sites differ" in answer(*given, "--overwrite")


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
    summary = facts("cohort", "inspect", tmp_path, "--format", "notes_jsonl")
    assert summary["entities"] == {"problem": 1, "severity": 1}
    assert sum(summary["relations"].values()) == 1


def test_wrong_settings_exit_with_2_and_data_with_3(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cohort: {fromat: manifest, root: .}\n")
    assert "Did you mean 'format'?" in refusal(2, "cohort", "inspect", tmp_path / "site.yaml")
    assert "no run record" in refusal(3, "page", tmp_path)
    refusal(2, "run", "jobs/fedmrg", "-f", tmp_path / "site.yaml", "--set", "rounds")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("cohort make new --seed -1", "greater than or equal to 0"),
        ("cohort make new --seed 1000", "less than or equal to 999"),
        ("cohort partition site.yaml new --seed -1", "greater than or equal to 0"),
        ("cohort make new --hospitals 20", "--hospitals: goes with --questions or --summaries"),
        ("cohort make new --notes --records 9 --alpha 1", "--alpha, --records: goes with --questions or"),
        ("cohort make new --questions --alpha 1", "--alpha: goes with --partition dirichlet"),
        ("cohort make new --questions --size 64", "goes with radiographs; texts have no pixels"),
        ("cohort partition notes.yaml new --alpha 1", "goes with --method dirichlet"),
        ("cohort partition notes.yaml new --no-scanners", "go with studies; texts have no scanner"),
        (
            "run fedmrg -w new --resume --rounds 9 --set rule=fedprox",
            "--rounds, --set: --resume goes on with the run as it was asked for then",
        ),
        ("kits approve .", "expected the request that came, <name>.request.zip"),
        ("kits approve site-1.zip", "expected the request that came, <name>.request.zip"),
        ("benchmark run site.yaml --methods A,b", "methods.0"),
        ("benchmark run site.yaml --seeds 1,x", "seeds.1: Input should be a valid integer (found 'x')"),
    ],
)
def test_a_value_that_cannot_be_is_an_error_in_words(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("site.yaml", "site-1.zip"):
        (tmp_path / file).write_text("cohort: {format: manifest, root: .}\n")
    (tmp_path / "notes.yaml").write_text("cohort: {format: notes_jsonl, root: .}\n")
    (tmp_path / "notes.jsonl").write_text('{"doc_id": "n1", "text": "Asthma."}\n')
    there = sorted(tmp_path.iterdir())
    said = refusal(2, *words.split())
    assert message in said
    assert sorted(tmp_path.iterdir()) == there


def test_the_command_starts_without_importing_torch_or_nvflare() -> None:
    code = (
        "import sys, medflare.cli.main; print([m for m in ('torch', 'nvflare', 'monai') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_terminal_that_lacks_a_letter_gets_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """`medflare rules` ended with a trace at ρ where the encoding was not UTF-8."""
    output = TextIOWrapper(BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(sys, "argv", ["medflare", "rules"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert b"\\u03c1" in output.buffer.getvalue()  # type: ignore[attr-defined]
