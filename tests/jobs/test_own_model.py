# SPDX-License-Identifier: Apache-2.0
"""A pretrained model by its name in site.yaml: added, trained in the simulator, used.

`make test-real` runs this with SmolLM2 (MEDFLARE_REAL_MODEL), `make test-faults` with a small model of its
kind; CI runs the tutorial own-model, which does the same.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from simulated_jobs import JOBS

from command_line import answer, facts
from gguf_builder import write_gguf
from medflare.core.run_record import RunRecord
from medflare.recipes import after_run

REAL = os.environ.get("MEDFLARE_REAL_MODEL", "")
pytestmark = [pytest.mark.simulator, *([] if REAL else [pytest.mark.long])]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model of this machine."""
    if REAL:
        return REAL
    monkeypatch.setenv("MEDFLARE_MODELS", str(tmp_path / "models"))
    file = write_gguf(tmp_path / "tiny.gguf")
    return str(facts("models", "add", file)["name"])


@pytest.mark.timeout(7200)
def test_jobs_fed_medlora_with_a_model_of_ones_own(model: str, tmp_path: Path, without_java: None) -> None:
    answer("cohort", "make", tmp_path / "cohorts", "--notes", "--patients", "6")
    site_file = tmp_path / "cohorts" / "site.yaml"
    document = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    for site in document["sites"].values():
        site["backbone"] = {"name": model}
        site["cohort"]["tasks"] = ["ner"]
    site_file.write_text(yaml.safe_dump(document), encoding="utf-8")
    run = tmp_path / "run"
    limits = ["--set", "steps=4", "--set", "final_limit=1", "--set", "settings.max_tokens=1024"]
    answer(
        *("run", JOBS / "fed_medlora", "-f", site_file, "--set", "preset=instruct"),
        *("--rounds", "1", "--sites", ",".join(list(document["sites"])[:2]), "--workspace", run, *limits),
    )
    record = RunRecord.model_validate_json(after_run.locate(run).read_text(encoding="utf-8"))
    settings = record.configuration["settings"]
    assert (record.status, settings["preset"]) == ("completed", "instruct")
    assert settings["optimiser"]["lr"] == 1e-3, "not the embedded model's rate, which the job's own file has"
    (tmp_path / "note.txt").write_text("Severe chest pain since Monday. Given aspirin 81 mg daily.\n")
    answer("extract", tmp_path / "note.txt", "-r", run, "--format", "jsonl", "--out", tmp_path / "out")
    json.loads(next((tmp_path / "out").glob("*.jsonl")).read_text(encoding="utf-8").splitlines()[0])
