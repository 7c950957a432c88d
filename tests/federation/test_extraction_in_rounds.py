# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA(+) on synthetic notes through controller and executors: bytes, scores, sharing, results."""

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
from medflare.core.run_record import RunRecord
from medflare.core.update import Update
from medflare.federation.server.run_state import load_state
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

SITES = ("site-1", "site-2")
SETTINGS = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]},
    "optimiser": {"batch": 2},
    "max_tokens": 500,
    "eval_limit": 0,
}


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for name, hospital in zip((*SITES, "server"), NOTE_HOSPITALS, strict=False):
        write_notes_hospital(hospital, folder / name, 12 if name != "server" else 3, "jsonl")
    return folder


@pytest.fixture
def extraction(notes: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes federations whose sites are threads and train in turns: the trainer's state is the process's."""
    turn, fit = threading.Lock(), ExtractionLearner.fit

    def one_at_a_time(self: ExtractionLearner, plan: RoundPlan) -> Update:
        with turn:
            return fit(self, plan)

    monkeypatch.setattr(ExtractionLearner, "fit", one_at_a_time)

    def make(rule: dict[str, Any], controller: dict[str, Any], **settings: Any) -> Federation:
        root = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        for name in (*SITES, "server"):
            local = root / name / "local"
            local.mkdir(parents=True)
            config = {
                "cohort": {"format": "notes_jsonl", "root": str(notes / name)},
                "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
                "policy": {"min_sites": 2},
            }
            (local / "site.yaml").write_text(json.dumps(config))
        return Federation(
            root=root,
            method="fed_medlora",
            toy=SETTINGS | settings,
            sites=SITES,
            rule=rule,
            controller={"num_rounds": 2, "steps": 2, "final_limit": 1} | controller,
            timeout=240,
        )

    return make


def product(folder: Path, stem: str) -> tuple[torch.Tensor, dict[str, Any]]:
    """(a/ρ) B A of one pair of a written adapter, and the adapter's configuration."""
    config = json.loads((folder / "adapter_config.json").read_text())
    state = load_file(folder / "adapter_model.safetensors")
    a, b = state[f"{stem}.lora_A.weight"], state[f"{stem}.lora_B.weight"]
    return config["lora_alpha"] / config["r"] * b @ a, config


def stem_of(folder: Path) -> str:
    return min(load_file(folder / "adapter_model.safetensors")).removesuffix(".lora_A.weight")


def test_fed_medlora_plus_with_int4_up_and_int8_down(extraction) -> None:
    run = extraction({"rule": "influence"}, {"uplink": "int4", "downlink": "int8", "canary": True})
    record: RunRecord = run.run()
    assert record.status == "completed", record.reason
    for entry in record.rounds:
        assert set(entry.rule["losses"]) == set(SITES)
        assert sum(entry.rule["weights"].values()) == pytest.approx(1)
    traffic = record.rounds[1].traffic["site-2"]
    assert traffic.sent == record.expected_bytes_per_direction
    fp32 = 4 * record.parameters["adapter"]
    assert record.expected_bytes_per_direction + record.expected_bytes_down <= 2 * fp32 / 4
    folder = run.folder / "result/adapter"
    assert json.loads((folder / "extraction.json").read_text())["format"] == 1
    assert not (folder / "extraction.safetensors").exists()


def test_lora_stack_merges_everywhere_and_writes_the_merged_adapter(extraction) -> None:
    run = extraction({"rule": "lora_stack"}, {}, sharing="stack")
    record = run.run()
    assert record.status == "completed", record.reason
    folder, state = run.folder / "result/adapter", load_state(run.folder / "state").shared
    stem = stem_of(folder)
    written, config = product(folder, stem)
    assert (config["r"], config["lora_alpha"]) == (2 * 2 * 2, 32), "two sites, two rounds, rank 2"
    a, b = (state[f"merged.{stem}.lora_{x}.weight"] for x in "AB")
    torch.testing.assert_close(written, 8 / 2 * b @ a)
    assert not state[f"adapter.{stem}.lora_B.weight"].any()


def test_ddcs_on_products_merges_what_was_drawn_and_keeps_to_its_rank(extraction) -> None:
    settings = {"mode": "product_restart", "most_rank": 3, "draws": 4}
    run = extraction({"rule": "ddcs", "rule_settings": settings}, {}, sharing="stack")
    record = run.run()
    assert record.status == "completed", record.reason
    last = record.rounds[-1].rule
    assert set(last["importance"]) == set(last["drawn"])
    assert last["checks"]["merged_rank"] == 3
    assert last["checks"]["update_norm"] > 0
    folder, state = run.folder / "result/adapter", load_state(run.folder / "state").shared
    stem = stem_of(folder)
    written, config = product(folder, stem)
    assert (config["r"], config["lora_alpha"]) == (3, 12)
    a, b = (state[f"merged.{stem}.lora_{x}.weight"] for x in "AB")
    torch.testing.assert_close(written, 8 / 2 * b @ a)


@pytest.mark.parametrize(("sharing", "rule"), [("freeze_a", "freeze_a"), ("fedsa", "weighted_mean")])
def test_an_adapter_is_whole_even_if_one_factor_never_travels(extraction, sharing: str, rule: str) -> None:
    run = extraction({"rule": rule}, {}, sharing=sharing)
    record = run.run()
    assert record.status == "completed", record.reason
    folder = run.folder / "result/adapter"
    written, _ = product(folder, stem_of(folder))
    assert written.any() == (sharing == "freeze_a"), "a hospital without a B of its own starts from zero"


@pytest.mark.parametrize(("protection", "declared"), [("masking", 1e-6), ("he", 1e-6)])
def test_one_round_of_a_protected_run_is_the_plain_one_within_the_declared_error(
    extraction, protection: str, declared: float
) -> None:
    """One round, because AdamW makes steps of the second from the sign of gradients that are almost zero."""
    one = {"num_rounds": 1, "uplink": "float32", "downlink": "float32"}
    plain = extraction({}, one)
    assert plain.run().status == "completed"
    run = extraction({}, {**one, "protection": protection})
    make_contexts(run.root / "startup", ContextParameters())
    record = run.run()
    assert record.status == "completed", record.reason
    holder = run.folder if protection == "masking" else run.site_folder(SITES[0])
    ours, theirs = (
        load_file(folder / "result" / "adapter" / "adapter_model.safetensors")
        for folder in (holder, plain.folder)
    )
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < declared
    assert max(float(value.abs().max()) for value in theirs.values()) > 1e-3
