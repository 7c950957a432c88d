# SPDX-License-Identifier: Apache-2.0
"""Both adapter learners with every parameter-efficient method: what they declare, send, load and write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from extraction_sites import PLAN, SMALL, SPLIT
from safetensors.torch import load_file
from torch import Tensor

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.federation.server.preparation import agree
from medflare.in_process.loop import federate
from medflare.learners.extraction import learner as extraction
from medflare.learners.extraction import settings as extraction_settings
from medflare.learners.fedmrg import learner as fedmrg
from medflare.learners.fedmrg import settings as fedmrg_settings
from medflare.models.adapters.base import GENERIC, SPECIALISED
from medflare.models.adapters.bottleneck import weighted_sum
from medflare.models.adapters.registry import PEFT_METHODS
from medflare.models.report_result import load_generator
from medflare.recipes.combinations import problems
from site_builders import site_config, write_result

BLOCKS: dict[str, dict[str, Any]] = {
    "lora": {},
    "adalora": {"rank": 3, "target_rank": 1},
    "fedpara": {"rank": 2},
    "vera": {"rank": 8},
    "prefix": {"tokens": 3},
    "prompt": {"tokens": 3},
    "p_tuning": {"tokens": 3, "width": 16},
    "bottleneck": {"reduction": 8},
}
IMAGES: dict[str, Any] = {
    "model": {
        "encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
        "lora": {"rank": 4, "lora_alpha": 8},
        "prompts": False,
    },
    "classification": False,
    "contrastive": False,
    "dual": False,
    "batch": 8,
    "lr": 1e-3,
    "max_report_tokens": 20,
    "decoding": {"beams": 2, "max_new_tokens": 6, "min_new_tokens": 0},
    "eval_limit": 2,
}


def notes_site(notes: Path, backbone: Path, name: str, seed: int = 0, **settings: Any) -> Any:
    small = {**SMALL, "max_tokens": 500, "eval_limit": 0, "optimiser": {"batch": 2, "lr": 5e-3}}
    config = site_config("notes_jsonl", notes / name, backbone, name, {"split": SPLIT})
    return extraction.build({**small, **settings}, config, seed)


def image_site(folder: Path, backbone: Path, **settings: Any) -> Any:
    return fedmrg.build(settings, site_config("manifest", folder, backbone), 0)


@pytest.fixture(params=[(kind, name) for kind in ("notes", "images") for name in PEFT_METHODS], ids="-".join)
def learner(
    request: pytest.FixtureRequest, notes: Path, small_hospital: Path, tiny_backbone: Path
) -> Learner:
    kind, name = request.param
    peft = {"method": name, **BLOCKS[name]}
    if kind == "notes":
        site_learner: Learner = notes_site(notes, tiny_backbone, "site-1", peft=peft)
    else:
        settings = {**IMAGES, "model": IMAGES["model"] | {"peft": peft}}
        site_learner = image_site(small_hospital, tiny_backbone, **settings)
    site_learner.load_shared(site_learner.initial_shared())
    return site_learner


def test_a_round_sends_what_was_declared_and_the_mean_can_be_loaded_and_judged(learner: Any) -> None:
    spec, frozen = learner.shared_spec(), learner.model.backbone.model.get_output_embeddings().weight.clone()
    before = learner.initial_shared()
    update, description = learner.fit(PLAN), learner.describe()
    assert {n: tuple(v.shape) for n, v in update.delta.items()} == {
        n: shape for n, (shape, _) in spec.items()
    }
    assert sum(torch.Size(s).numel() for s, _ in spec.values()) == sum(description.parameters.values())
    assert json.loads(json.dumps(description.to_json()))["export"]
    assert learner.evaluate("val", RoundPlan(round=0, rounds=2, limit=1))
    moved = [n for n, v in update.delta.items() if n.startswith("adapter.") and v.abs().sum() > 0]
    assert moved
    assert torch.equal(frozen, learner.model.backbone.model.get_output_embeddings().weight)
    sums = {n: tuple(v.shape) for n, v in update.sums.items()}
    assert sums == {n: shape for n, (shape, _) in learner.sums_spec(2).items()}
    learner.load_shared({n: before[n] + 0.5 * update.delta[n] for n in before})
    assert all(torch.isfinite(v).all() for v in learner.fit(PLAN).delta.values())


# ---- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(PEFT_METHODS) - {"lora"}))
@pytest.mark.parametrize("rule", ["lora_product_svd", "lora_stack", "freeze_a"])
def test_rules_on_lora_factors_are_refused(name: str, rule: str) -> None:
    notes = problems(rule, "fed_medlora", {"peft": {"method": name}}, "bfloat16")
    images = problems(rule, "fedmrg", {"dual": False, "model": {"peft": {"method": name}}}, "bfloat16")
    for found in (notes, images):
        assert any("no LoRA factors travel. Use rule 'weighted_mean'" in text for text in found)


@pytest.mark.parametrize("name", sorted(set(PEFT_METHODS) - {"lora"}))
def test_no_lora_factors_travel_without_lora(name: str) -> None:
    settings = extraction_settings.METHOD.resolve({"peft": {"method": name}})
    assert settings.lora_sharing == "none"
    with pytest.raises(ConfigError, match="is about LoRA's factors"):
        extraction_settings.METHOD.resolve({"peft": {"method": name}, "sharing": "fedsa"})


@pytest.mark.parametrize("name", [n for n, row in PEFT_METHODS.items() if not row.several_active])
def test_two_adapters_at_once_are_refused_where_the_method_has_one(name: str) -> None:
    with pytest.raises(ConfigError, match=r"dual needs two adapters .* 'lora' or 'bottleneck'"):
        fedmrg_settings.METHOD.resolve({"model": {"peft": {"method": name}}})


def test_checkpointing_would_drop_a_prefix_and_is_refused() -> None:
    given = {"peft": {"method": "prefix"}, "optimiser": {"gradient_checkpointing": True}}
    with pytest.raises(ConfigError, match="gradient checkpointing drops without a word"):
        extraction_settings.METHOD.resolve(given)


def test_rules_that_compare_updates_are_refused_the_sums_of_adalora() -> None:
    result = problems("krum", "fed_medlora", {"peft": {"method": "adalora"}}, "bfloat16")
    assert any("settings.peft.method 'adalora' sends beside them" in text for text in result)


def test_targets_are_those_of_lora_unless_the_method_names_its_own() -> None:
    lora = {"targets": ["up_proj"]}
    plain = extraction_settings.METHOD.resolve({"lora": lora, "peft": {"method": "vera"}})
    settings = extraction_settings.METHOD.resolve(
        {"lora": lora, "peft": {"method": "vera", "targets": ["q_proj"]}}
    )
    assert (plain.adapter.targets, settings.adapter.targets) == (("up_proj",), ("q_proj",))


def test_a_misspelt_key_is_answered_with_the_keys_of_that_method() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'tokens'"):
        extraction_settings.METHOD.resolve({"peft": {"method": "prefix", "token": 4}})


# ---- VeRA --------------------------------------------------------------------------------------------------


def test_sites_that_make_other_matrices_are_refused_before_round_1(notes: Path, tiny_backbone: Path) -> None:
    peft = {"method": "vera", "rank": 8}
    sites = {n: notes_site(notes, tiny_backbone, n, peft=peft) for n in ("site-1", "site-2")}
    sites["site-3"] = notes_site(notes, tiny_backbone, "site-1", seed=1, peft=peft)
    facts = {n: {"describe": s.describe().to_json(), "shared": {}, "sums": {}} for n, s in sites.items()}
    agree(facts, ["site-1", "site-2"])
    with pytest.raises(Exception, match="checksum of what every site makes from the seed of site-3"):
        agree(facts, list(sites))
    assert not any("vera_A" in name for name in sites["site-1"].shared_spec())


# ---- AdaLoRA: one allocation for all sites -----------------------------------------------------------------


def test_ranks_shrink_to_the_budget_and_agree_at_all_sites(notes: Path, tiny_backbone: Path) -> None:
    rounds, peft = 5, {"method": "adalora", "rank": 4, "target_rank": 1, "warm_rounds": 0.0}
    learners = {n: notes_site(notes, tiny_backbone, n, peft=peft) for n in ("site-1", "site-2")}
    kept: list[int] = []

    def look(number: int, state: dict[str, Tensor], updates: Any) -> None:
        one, two = (learner.model.adapters.masks for learner in learners.values())
        assert set(one) == set(two)
        assert all(torch.equal(one[n], two[n]) for n in one)
        kept.append(sum(int(mask.sum()) for mask in one.values()))

    rule = make_rule("weighted_mean", {})
    plan = lambda number: RoundPlan(round=number, rounds=rounds, steps=2)  # noqa: E731
    state = federate(learners, rule, rounds, plan, look)
    modules = len(learners["site-1"].model.adapters.modules)
    assert kept[0] == 0  # nothing is masked before the first totals
    assert kept[1:] == sorted(kept[1:], reverse=True)
    assert kept[-1] == modules < kept[1] < 4 * modules
    values = {n: v for n, v in state.items() if n.endswith("lora_E")}
    masks = learners["site-1"].model.adapters.masks
    for name, value in values.items():
        mask = masks[name.removeprefix("adapter.").removesuffix(".lora_E")]
        assert torch.all(value[~mask].abs() < 1e-7)
        assert torch.all(value[mask] != 0)


# ---- FedDAT ------------------------------------------------------------------------------------------------


@pytest.fixture
def fed_dat(small_hospital: Path, tiny_backbone: Path) -> Any:
    model = {k: v for k, v in IMAGES["model"].items() if k != "prompts"} | {"peft": {"reduction": 8}}
    rest = {k: v for k, v in IMAGES.items() if k not in ("dual", "contrastive", "classification")}
    learner = image_site(small_hospital, tiny_backbone, **{**rest, "model": model, "variant": "fed_dat"})
    learner.load_shared(learner.initial_shared())
    return learner


def test_fed_dat_teaches_both_ways_and_moves_what_7_9_says(fed_dat: Any) -> None:
    adapters = fed_dat.model.adapters
    anchor, special = adapters.state("anchor"), adapters.state(SPECIALISED)
    update = fed_dat.fit(PLAN)
    assert {"loss_kd_generic", "loss_kd_specialised"} <= set(update.metrics)
    assert all(torch.equal(value, adapters.state("anchor")[n]) for n, value in anchor.items())
    assert any(not torch.equal(value, adapters.state(SPECIALISED)[n]) for n, value in special.items())
    assert fed_dat.training.specialised.scales == {"anchor": 0.5, SPECIALISED: 0.5}
    assert fed_dat.mix() == (0.5, 0.5)


def test_the_mixture_of_two_bottlenecks_is_one_of_twice_the_width(fed_dat: Any, tmp_path: Path) -> None:
    fed_dat.fit(PLAN)
    adapters, ids = fed_dat.model.adapters, torch.tensor([[1, 5, 6, 7]])
    fed_dat.use_personalised()
    with torch.no_grad():
        expected = fed_dat.model.backbone.model(input_ids=ids).logits
    states = [adapters.state(GENERIC), adapters.state(SPECIALISED)]
    both = weighted_sum(states, [0.5, 0.5])
    assert both["layers.0.down.weight"].shape[0] == 2 * adapters.width
    x = torch.randn(3, 64)
    total = torch.zeros(3, 64)
    for state in states:
        h = torch.nn.functional.gelu(x @ state["layers.0.down.weight"].T + state["layers.0.down.bias"])
        total += 0.5 * (h @ state["layers.0.up.weight"].T + state["layers.0.up.bias"])
    h = torch.nn.functional.gelu(x @ both["layers.0.down.weight"].T + both["layers.0.down.bias"])
    torch.testing.assert_close(h @ both["layers.0.up.weight"].T + both["layers.0.up.bias"], total)
    fed_dat.finish(RoundPlan(round=1, rounds=1, limit=1), tmp_path)
    written = load_file(tmp_path / "personalised" / "adapter_model.safetensors")
    assert all(torch.equal(written[n], v) for n, v in both.items())
    assert torch.isfinite(expected).all()


def test_a_personalised_bottleneck_folder_drafts_as_the_site_did(
    fed_dat: Any, tmp_path: Path, tiny_backbone: Path
) -> None:
    fed_dat.fit(PLAN)
    fed_dat.finish(RoundPlan(round=1, rounds=1, limit=1), tmp_path)
    folder = write_result(tmp_path, fed_dat)
    opened, _ = load_generator(
        folder, personalised=tmp_path / "personalised", backbone=tiny_backbone, precision="fp32"
    )
    ids = torch.tensor([[1, 5, 6, 7]])
    fed_dat.use_personalised()
    fed_dat.model.eval()
    with torch.no_grad():
        expected = fed_dat.model.backbone.model(input_ids=ids).logits
        assert torch.allclose(opened.backbone.model(input_ids=ids).logits, expected, atol=1e-5)
