# SPDX-License-Identifier: Apache-2.0
"""Parameter-efficient methods through controller and executors: what the server writes can be opened."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import Federation
from safetensors.torch import load_file

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.federation.server.run_state import load_state
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.tasks.extraction.extractor_folder import load_extractor

SITES = ("site-1", "site-2")
BLOCKS: dict[str, dict[str, Any]] = {
    "adalora": {"rank": 2, "target_rank": 1, "warm_rounds": 0.0},
    "vera": {"rank": 8},
    "p_tuning": {"tokens": 3, "width": 16},
}
IDS = torch.tensor([[1, 5, 6, 7, 8, 9]])


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name, hospital in zip(SITES, NOTE_HOSPITALS, strict=False):
        write_notes_hospital(hospital, folder / name, 12, "jsonl")
    return folder


@pytest.mark.parametrize("method", sorted(BLOCKS))
def test_a_run_ends_in_a_folder_that_peft_and_medflare_open(
    method: str, notes: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    turn, fit = threading.Lock(), ExtractionLearner.fit

    def one_at_a_time(self: ExtractionLearner, plan: RoundPlan) -> Update:
        with turn:  # the trainer's random numbers are the process's
            return fit(self, plan)

    monkeypatch.setattr(ExtractionLearner, "fit", one_at_a_time)
    for name in SITES:
        local = tmp_path / name / "local"
        local.mkdir(parents=True)
        config = {
            "cohort": {
                "format": "notes_jsonl",
                "root": str(notes / name),
                "split": {"train": 0.5, "val": 0.25, "test": 0.25},
            },
            "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
        }
        (local / "site.yaml").write_text(json.dumps(config))
    run = Federation(
        root=tmp_path,
        method="fed_medlora",
        toy={
            "peft": {"method": method, **BLOCKS[method]},
            "optimiser": {"batch": 2, "lr": 0.01},
            "max_tokens": 500,
            "eval_limit": 0,
        },
        sites=SITES,
        rule={"rule": "weighted_mean"},
        controller={"num_rounds": 3, "steps": 2, "final_limit": 1},
        timeout=240,
    )
    record = run.run()
    assert record.status == "completed", record.reason
    folder = run.folder / "result/adapter"
    base = AutoModelForCausalLM.from_pretrained(tiny_backbone, dtype=torch.float32).eval()
    with torch.no_grad():
        plain = base(input_ids=IDS).logits
        found = PeftModel.from_pretrained(base, folder).eval()(input_ids=IDS).logits[:, -IDS.shape[1] :]
        opened = load_extractor(folder, backbone=tiny_backbone, precision="fp32").model
        ours = opened.backbone.model(input_ids=IDS).logits
    assert not torch.allclose(found, plain, atol=1e-4)
    torch.testing.assert_close(ours, found, atol=1e-5, rtol=1e-4)
    shared = load_state(run.folder / "state").shared
    travelled = sum(value.numel() for value in shared.values())
    assert travelled == record.parameters["adapter"]
    written = load_file(folder / "adapter_model.safetensors")
    if method == "vera":
        assert sum(value.numel() for value in written.values()) > travelled, (
            "with A and B, made from the seed"
        )
    if method == "adalora":
        ranks = [int((v.abs() > 1e-7).sum()) for n, v in written.items() if n.endswith("lora_E")]
        assert sum(ranks) == len(ranks), "target_rank 1 of 2 in the mean"
