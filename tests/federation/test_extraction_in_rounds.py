# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA(+) on synthetic notes through controller and executors: bytes, scores, sharing, results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_equality import assert_close, written
from fed_harness import Federation, Make, completed, final
from fed_real import real_federation, take_turns
from safetensors.torch import load_file

from medflare.learners.extraction.learner import ExtractionLearner
from medflare.models.text_model import TextModel
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.tasks.extraction.extractor import load_extractor

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
        write_notes_hospital(hospital, folder / name, 6 if name != "server" else 3, "jsonl")
    return folder


@pytest.fixture
def extraction(notes: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes federations of two rounds over two sites, with the server's own notes."""
    take_turns(monkeypatch, (ExtractionLearner, "fit"))
    answer = TextModel.answer

    def briefly(model: TextModel, prompts: list[str], budgets: list[int], *args: Any, **kwargs: Any) -> Any:
        """Random weights never end an answer, which would take most of the time here."""
        return answer(model, prompts, [min(budget, 4) for budget in budgets], *args, **kwargs)

    monkeypatch.setattr(TextModel, "answer", briefly)
    blocks = {
        name: {
            "cohort": {
                "format": "notes_jsonl",
                "root": str(notes / name),
                "split": {"train": 0.6, "val": 0.2, "test": 0.2},
            },
            "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
            "policy": {"min_sites": 2},
        }
        for name in (*SITES, "server")
    }

    def make(rule: dict[str, Any], controller: dict[str, Any], **settings: Any) -> Federation:
        return real_federation(
            tmp_path,
            blocks,
            method="fed_medlora",
            settings={name: value for name, value in (SETTINGS | settings).items() if value is not None},
            sites=SITES,
            rule=rule,
            controller={"num_rounds": 2, "steps": 2, "final_limit": 1} | controller,
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
    record = completed(run)
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


DRAWN = {"mode": "product_restart", "most_rank": 3, "draws": 4}


@pytest.mark.parametrize(
    ("rule", "rank"),
    [({"rule": "lora_stack"}, 2 * 2 * 2), ({"rule": "ddcs", "rule_settings": DRAWN}, 3)],
    ids=["two sites, two rounds, rank 2", "ddcs keeps to its rank"],
)
def test_merged_factors_are_written_as_the_adapter(extraction, rule: dict[str, Any], rank: int) -> None:
    run = extraction(rule, {}, sharing="stack")
    record = completed(run)
    folder, state = run.folder / "result/adapter", final(run)
    stem = stem_of(folder)
    merged, config = product(folder, stem)
    assert (config["r"], config["lora_alpha"]) == (rank, 4 * rank)
    a, b = (state[f"merged.{stem}.lora_{x}.weight"] for x in "AB")
    torch.testing.assert_close(merged, 8 / 2 * b @ a)
    last = record.rounds[-1].rule
    if rule["rule"] == "ddcs":
        assert set(last["importance"]) == set(last["drawn"])
        assert last["checks"]["merged_rank"] == 3
        assert last["checks"]["update_norm"] > 0
    else:
        assert not state[f"adapter.{stem}.lora_B.weight"].any()


@pytest.mark.parametrize(("sharing", "rule"), [("freeze_a", "freeze_a"), ("fedsa", "weighted_mean")])
def test_an_adapter_is_whole_even_if_one_factor_never_travels(extraction, sharing: str, rule: str) -> None:
    run = extraction({"rule": rule}, {}, sharing=sharing)
    completed(run)
    folder = run.folder / "result/adapter"
    factors, _ = product(folder, stem_of(folder))
    assert factors.any() == (sharing == "freeze_a"), "a hospital without a B of its own starts from zero"


@pytest.mark.parametrize(("protection", "declared"), [("masking", 1e-6), ("he", 1e-6)])
def test_one_round_of_a_protected_run_is_the_plain_one_within_the_declared_error(
    extraction, protection: str, declared: float
) -> None:
    """One round, because AdamW makes steps of the second from the sign of gradients that are almost zero."""
    one = {"num_rounds": 1, "uplink": "float32", "downlink": "float32"}
    plain = extraction({}, one)
    run = extraction({}, {**one, "protection": protection})
    make_contexts(run.root / "startup", ContextParameters())
    completed(plain)
    completed(run)
    theirs = written(plain)
    assert_close(written(run, SITES[0] if protection == "he" else ""), theirs, declared)
    assert max(float(value.abs().max()) for value in theirs.values()) > 1e-3


METHODS: dict[str, dict[str, Any]] = {
    "adalora": {"rank": 2, "target_rank": 1, "warm_rounds": 0.0},
    "vera": {"rank": 8},
    "p_tuning": {"tokens": 3, "width": 16},
}
IDS = torch.tensor([[1, 5, 6, 7, 8, 9]])


@pytest.mark.parametrize(
    "method", ["adalora", *(pytest.param(name, marks=pytest.mark.long) for name in ("p_tuning", "vera"))]
)
def test_any_peft_method_ends_in_a_folder_that_peft_and_medflare_open(
    extraction, method: str, tiny_backbone: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    settings = {"peft": {"method": method, **METHODS[method]}, "optimiser": {"batch": 2, "lr": 0.01}}
    run = extraction({"rule": "weighted_mean"}, {"num_rounds": 3}, lora=None, **settings)
    record = completed(run)
    folder = run.folder / "result/adapter"
    base = AutoModelForCausalLM.from_pretrained(tiny_backbone, dtype=torch.float32).eval()
    with torch.no_grad():
        plain = base(input_ids=IDS).logits
        adapted = PeftModel.from_pretrained(base, folder).eval()(input_ids=IDS).logits[:, -IDS.shape[1] :]
        opened = load_extractor(folder, backbone=tiny_backbone, precision="fp32").model
        ours = opened.backbone.model(input_ids=IDS).logits
    assert not torch.allclose(adapted, plain, atol=1e-4)
    torch.testing.assert_close(ours, adapted, atol=1e-5, rtol=1e-4)
    communicated = sum(value.numel() for value in final(run).values())
    assert communicated == record.parameters["adapter"]
    tensors = load_file(folder / "adapter_model.safetensors")
    if method == "vera":  # with A and B, made from the seed
        assert sum(value.numel() for value in tensors.values()) > communicated
    if method == "adalora":
        ranks = [
            int((value.abs() > 1e-7).sum()) for name, value in tensors.items() if name.endswith("lora_E")
        ]
        assert sum(ranks) == len(ranks), "target_rank 1 of 2 in the mean"
