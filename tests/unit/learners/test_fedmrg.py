# SPDX-License-Identifier: Apache-2.0
"""FedMRG at one site: what it declares, what a step touches, what survives, what the image is worth."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.learners.fedmrg import losses
from medflare.learners.fedmrg.learner import FedMRGLearner, build
from medflare.learners.fedmrg.memory_bank import ROWS
from medflare.learners.fedmrg.settings import METHOD, VARIANTS
from medflare.models.adapters.base import ANCHOR, GENERIC, SPECIALISED
from medflare.models.report_generator import VisualFeatures
from medflare.synthetic import DEMO_HOSPITALS, write_hospital
from site_builders import site_config

SMALL: dict[str, Any] = {
    "model": {
        "encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
        "lora": {"rank": 4, "lora_alpha": 8},
    },
    "batch": 8,
    "lr": 1e-3,
    "max_report_tokens": 30,
    "decoding": {"beams": 1, "max_new_tokens": 8, "min_new_tokens": 0},
    "eval_limit": 4,
}
PLAN = RoundPlan(round=0, rounds=4, steps=2, hints=RoundHints(site_index=0, sites=2, summed=(0, 1)))


@pytest.fixture
def make(small_hospital: Path, tiny_backbone: Path) -> Any:
    def made(folder: Path = small_hospital, **settings: Any) -> FedMRGLearner:
        site = site_config("manifest", folder, tiny_backbone)
        site = site.model_copy(update={"policy": PolicyConfig(min_prototype=2)})
        learner = build(SMALL | settings, site, 0)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


def test_a_round_moves_shared_and_specialised_but_not_the_anchor_or_the_backbone(make: Any) -> None:
    learner = make()
    anchor, special = learner.model.adapters.state(ANCHOR), learner.model.adapters.state(SPECIALISED)
    frozen = learner.model.backbone.model.get_output_embeddings().weight.clone()
    update = learner.fit(PLAN)
    assert all(torch.equal(v, learner.model.adapters.state(ANCHOR)[n]) for n, v in anchor.items())
    assert any(not torch.equal(v, learner.model.adapters.state(SPECIALISED)[n]) for n, v in special.items())
    assert torch.equal(frozen, learner.model.backbone.model.get_output_embeddings().weight)
    assert update.delta["prompts"].abs().sum() > 0
    assert update.examples == len(learner.train_rows)


def test_a_site_without_training_images_says_so_and_trains_nothing(make: Any) -> None:
    learner = make()
    learner.train_rows = []
    with pytest.raises(UpdateError, match="has no training image; look with `medflare cohort inspect`"):
        learner.fit(PLAN)


def moved_by_each_step(learner: Any, states: Callable[[], list[State]]) -> list[list[bool]]:
    """For each optimiser step of one batch, which of the states it changed."""
    step, moved = learner.training._step, []

    def watched(loss: torch.Tensor, *optimisers: torch.optim.Optimizer) -> None:
        before = states()
        step(loss, *optimisers)
        pairs = zip(before, states(), strict=True)
        moved.append([any(not torch.equal(a[name], b[name]) for name in a) for a, b in pairs])

    learner.training._step = watched
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    return moved


def test_step_one_leaves_the_specialised_adapter_alone_and_step_two_the_generic(make: Any) -> None:
    learner = make(distil_to_generic=False, distil_to_specialised=False)
    adapters = learner.model.adapters
    states = lambda: [adapters.state(name) for name in (GENERIC, SPECIALISED)]  # noqa: E731
    assert moved_by_each_step(learner, states) == [[True, False], [False, True]]


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_every_variant_trains_and_says_what_it_does(make: Any, variant: str) -> None:
    learner = make(variant=variant)
    metrics = learner.fit(PLAN).metrics
    assert ("loss_hcl" in metrics) == learner.settings.contrastive
    assert ("loss_cls" in metrics) == learner.settings.classification
    assert ("loss_specialised" in metrics) == learner.settings.dual
    assert ("loss_kd_generic" in metrics) == (learner.settings.dual and learner.settings.distil_to_generic)


@pytest.mark.parametrize("mode", ["local_queue", "prototypes", "raw"])
def test_bank_contributes_what_it_declares_and_takes_only_others(make: Any, mode: str) -> None:
    learner = make(bank=mode, bank_rows=4, k_min=2)
    update = learner.fit(PLAN)
    spec = learner.sums_spec(2)
    assert {n: tuple(t.shape) for n, t in update.sums.items()} == {n: shape for n, (shape, _) in spec.items()}
    if mode == "local_queue":
        assert len(learner.bank.rows()) == 4
        return
    alone = RoundPlan(round=1, rounds=4, steps=1, hints=PLAN.hints, totals=update.sums)
    learner.bank.receive(alone)
    assert len(learner.bank.rows()) == 0
    assert learner.bank.sent
    doubled = {n: 2 * t for n, t in update.sums.items()} if mode == "prototypes" else update.sums
    if mode == "raw":
        doubled = {ROWS: torch.roll(update.sums[ROWS], 1, 0) + update.sums[ROWS]}
    learner.bank.receive(RoundPlan(round=1, rounds=4, hints=PLAN.hints, totals=doubled))
    rows = learner.bank.rows()
    assert len(rows) > 0
    assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)), atol=1e-5)


def test_a_batch_is_no_negative_of_itself_in_the_local_queue(make: Any) -> None:
    learner = make(bank="local_queue", bank_rows=32)
    seen: list[int] = []
    original = losses.contrastive

    def watched(first: torch.Tensor, second: torch.Tensor, bank: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.append(len(bank))
        if len(bank):
            assert (first.detach() @ bank.T).max() < 1 - 1e-6
        return original(first, second, bank, *rest)

    learner.settings = learner.settings.model_copy(update={"encoder_lr_scale": 1e-9})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "contrastive", watched)
        learner.fit(PLAN)
    assert seen == [0, 0, 8, 8]


def test_long_rows_of_another_site_weigh_no_more_than_its_others(make: Any) -> None:
    learner = make(bank="raw", bank_rows=4)
    sums = learner.fit(PLAN).sums
    lying = {ROWS: torch.roll(1_000 * sums[ROWS], 1, 0)}
    learner.bank.receive(RoundPlan(round=1, rounds=4, hints=PLAN.hints, totals=lying))
    rows = learner.bank.rows()
    assert len(rows) == 4
    assert torch.allclose(rows.norm(dim=1), torch.ones(4), atol=1e-5)


def test_a_rejected_contribution_is_not_taken_out_of_the_totals(make: Any) -> None:
    learner = make(bank="prototypes", k_min=2)
    sums = learner.fit(PLAN).sums
    counted = PLAN.hints | RoundHints(summed=(0, 1))
    left_out = PLAN.hints | RoundHints(summed=(1,))
    learner.bank.receive(RoundPlan(round=1, rounds=4, hints=left_out, totals=sums))
    assert len(learner.bank.rows()) > 0
    learner.bank.receive(RoundPlan(round=1, rounds=4, hints=counted, totals=sums))
    assert len(learner.bank.rows()) == 0


def test_encoder_update_first_moves_only_the_specialised_adapter_in_step_two(make: Any) -> None:
    learner = make(encoder_update="first")
    assert moved_by_each_step(learner, lambda: [learner.initial_shared()]) == [[True], [False]]


def test_encoder_update_encoder_once_moves_the_rest_of_what_is_shared_in_step_two(make: Any) -> None:
    """The encoder runs once a batch; projection, head and prompt rows learn in both steps."""
    learner, runs = make(encoder_update="encoder_once"), []
    encode = learner.model.encode
    learner.model.encode = lambda views: runs.append(1) or encode(views)
    model = learner.model
    states = lambda: [  # noqa: E731
        {name: tensor.clone() for name, tensor in model.encoder.named_parameters()},
        {name: tensor.clone() for name, tensor in model.head.named_parameters()},
        {name: tensor.clone() for name, tensor in model.projection.named_parameters()},
        model.adapters.state(GENERIC),
        model.adapters.state(SPECIALISED),
    ]
    moved = moved_by_each_step(learner, states)
    assert moved == [[True, True, True, True, False], [False, True, True, False, True]]
    assert len(runs) == 1


@pytest.mark.parametrize("update", ["both", "encoder_once", "first"])
def test_client_terms_know_how_many_steps_the_shared_optimiser_takes(
    make: Any, monkeypatch: pytest.MonkeyPatch, update: str
) -> None:
    learner, announced, taken = make(encoder_update=update), [], []
    watch = learner.terms.watch

    def watched(optimiser: torch.optim.Optimizer, steps: int) -> None:
        announced.append(steps)
        optimiser.register_step_post_hook(lambda *_: taken.append(1))
        watch(optimiser, steps)

    monkeypatch.setattr(learner.terms, "watch", watched)
    learner.fit(RoundPlan(round=0, rounds=1, steps=2))
    assert announced == [len(taken)]
    assert len(taken) == (2 if update == "first" else 4)


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ({}, 3),
        ({"reuse_teacher": False}, 4),
        ({"variant": "fed_lora"}, 1),
        ({"variant": "without_l2g"}, 2),
        ({"encoder_update": "first", "share_forward": True}, 2),
        ({"encoder_update": "encoder_once"}, 3),
    ],
)
def test_the_frozen_decoder_runs_no_oftener_than_it_must(make: Any, settings: Any, passes: int) -> None:
    learner, calls = make(**settings), []
    original = learner.model.decode
    learner.model.decode = lambda *given: calls.append(1) or original(*given)
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert len(calls) == passes


@pytest.mark.parametrize("reuse", [True, False])
def test_a_shared_forward_pass_changes_no_bit_where_prompt_rows_do_not_learn(make: Any, reuse: bool) -> None:
    """MRG-21: step 1 moves the prompt rows alone of what A_s's pass reads."""
    updates = []
    for shared in (False, True):
        learner = make(encoder_update="first", share_forward=shared, reuse_teacher=reuse)
        learner.model.prompt_table.requires_grad_(False)
        update = learner.fit(PLAN)
        local = learner.model.adapters.state(SPECIALISED)
        metrics = {name: value for name, value in update.metrics.items() if name != "seconds"}
        updates.append((update.delta | {f"A_s.{name}": value for name, value in local.items()}, metrics))
    (apart, metrics_apart), (together, metrics_together) = updates
    assert all(torch.equal(apart[name], together[name]) for name in apart)
    assert metrics_apart == metrics_together
    assert any("A_s." in name and value.any() for name, value in together.items())


def test_a_shared_forward_pass_moves_a_s_and_who_learns_is_who_learnt(make: Any) -> None:
    learner = make(encoder_update="first", share_forward=True)
    adapters = learner.model.adapters
    states = lambda: [adapters.state(name) for name in (GENERIC, SPECIALISED, ANCHOR)]  # noqa: E731
    assert moved_by_each_step(learner, states) == [[True, False, False], [False, True, False]]


def test_a_shared_forward_pass_that_nobody_could_share_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"share_forward needs encoder_update 'first'"):
        METHOD.resolve({"share_forward": True})
    with pytest.raises(ConfigError, match=r"share_forward needs dual true and distil_to_generic true"):
        METHOD.resolve(
            {"share_forward": True, "encoder_update": "first", "dual": False, "distil_to_generic": False}
        )


# ---- the objective: what each step minimises, and how (MRG-12, MRG-16; paper Eq. 1 to 5) -------------------

TERMS = {"contrastive": 2.0, "diagnosis": 3.0, "distillation": 5.0, "language": 7.0}
"""Stand-ins of the four losses, none of which is a sum of others times a weight below."""
LAMBDAS = {"lambda_hcl": 0.25, "lambda_cls": 0.5, "lambda_kd": 0.125}
IMAGE, ADAPTER = 0.25 * 2 + 0.5 * 3, 7 + 0.125 * 5


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [IMAGE + ADAPTER, IMAGE + ADAPTER]),
        ({"encoder_update": "first"}, [IMAGE + ADAPTER, ADAPTER]),
        ({"encoder_update": "encoder_once"}, [IMAGE + ADAPTER, IMAGE + ADAPTER]),
        ({"variant": "without_l2g"}, [IMAGE + 7, IMAGE + ADAPTER]),
        ({"variant": "without_g2l"}, [IMAGE + ADAPTER, IMAGE + 7]),
        ({"variant": "fed_lora"}, [7]),
    ],
    ids=lambda value: str(value)[:40],
)
def test_each_step_minimises_the_weighted_sum_of_its_losses(
    make: Any, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], expected: list[float]
) -> None:
    learner, minimised = make(**LAMBDAS, **settings), []
    for name, value in TERMS.items():
        original = getattr(losses, name)
        monkeypatch.setattr(losses, name, lambda *given, f=original, v=value: f(*given) * 0 + v)
    step = learner.training._step

    def watched(loss: torch.Tensor, *optimisers: torch.optim.Optimizer) -> None:
        minimised.append(loss.item())
        step(loss, *optimisers)

    learner.training._step = watched
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert minimised == pytest.approx(expected)


def test_who_teaches_whom_and_nobody_learns_while_teaching(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 1: A_s teaches A_g; step 2: A_g teaches A_s. The gradient reaches the pupil alone."""
    learner, seen = make(), []
    distil, step = losses.distillation, learner.training._step

    def watched(student: Any, teacher: Any, *rest: Any) -> torch.Tensor:
        seen.append((student.logits.requires_grad, teacher.logits.requires_grad))
        return distil(student, teacher, *rest)

    owners: list[set[str]] = []

    def stepped(loss: torch.Tensor, *optimisers: torch.optim.Optimizer) -> None:
        step(loss, *optimisers)
        names = (GENERIC, SPECIALISED, ANCHOR)
        parameters = {name: learner.model.adapters.parameters(name) for name in names}
        moved = {n for n, own in parameters.items() if any(p.grad is not None and p.grad.any() for p in own)}
        owners.append(moved)

    monkeypatch.setattr(losses, "distillation", watched)
    learner.training._step = stepped
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert seen == [(True, False), (True, False)]
    assert owners == [{GENERIC}, {SPECIALISED}]


def test_rates_decay_and_clipping_are_those_of_the_settings(make: Any) -> None:
    given = {"lr": 1e-3, "encoder_lr_scale": 0.5, "specialised_lr_scale": 2.0, "weight_decay": 0.25}
    learner = make(**given, clip_value=1e-7)
    shared, local = learner.training.optimisers()
    rates = [(group["lr"], group["weight_decay"]) for group in (*shared.param_groups, *local.param_groups)]
    assert {rate for rate, _ in rates} == {1e-3, 5e-4, 2e-3}
    assert [len(shared.param_groups), len(local.param_groups)] == [len(rates) - 1, 1]
    assert {decay for _, decay in rates} == {0.25}
    largest: list[float] = []
    for optimiser in (shared, local):
        optimiser.register_step_pre_hook(
            lambda own, *_: largest.extend(
                parameter.grad.abs().max().item()
                for group in own.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            )
        )
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert max(largest) == pytest.approx(1e-7)


def test_a_share_of_images_is_prompted_by_prediction(make: Any) -> None:
    """MRG-16; a share of 0.2 that were used the wrong way round would be 0.8."""
    training = make(prompt_dropout=0.2).training
    codes = torch.zeros(2000, 14, dtype=torch.long)
    logits = torch.zeros(2000, 14, 4)
    logits[..., 3] = 1.0
    features = VisualFeatures(torch.zeros(2000, 1, 1), torch.zeros(2000, 1), logits)
    swapped = training.prompt_codes(features, codes, torch.Generator().manual_seed(0))
    share = (swapped == 3).all(1).float().mean().item()
    assert share == pytest.approx(0.2, abs=0.04)
    assert (swapped == 0).all(1).float().mean().item() == pytest.approx(1 - share)


RESNET: dict[str, Any] = {"name": "resnet18", "weights": "none", "image_size": 48}


def test_a_frozen_encoder_neither_moves_nor_contrasts(make: Any) -> None:
    learner = make(model=SMALL["model"] | {"encoder": RESNET}, encoder_lr_scale=0)
    update = learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    assert all(d.abs().max() == 0 for n, d in update.delta.items() if n.startswith("encoder."))
    assert "loss_hcl" not in update.metrics


def test_local_batch_statistics_stay_and_survive_a_restart(make: Any) -> None:
    model = SMALL["model"] | {"encoder": RESNET | {"batch_norm": "local"}}
    learner, restarted = make(model=model), make(model=model)
    assert not any("running" in name for name in learner.shared_spec())
    learner.fit(RoundPlan(round=0, rounds=1, steps=1))
    tensors, values = learner.local_state()
    restarted.load_local_state(tensors, values)
    result = restarted.model.local_buffers()
    assert result
    assert all(torch.equal(b, learner.model.local_buffers()[n]) for n, b in result.items())


def test_state_from_the_wire_may_be_bf16(make: Any) -> None:
    learner = make()
    learner.load_shared({n: t.to(torch.bfloat16) for n, t in learner.initial_shared().items()})
    assert torch.isfinite(learner.fit(PLAN).delta["prompts"]).all()


@pytest.mark.parametrize("patients", [1, 3])
def test_a_tiny_cohort_trains(make: Any, patients: int, tmp_path: Path) -> None:
    write_hospital(DEMO_HOSPITALS[1], tmp_path, patients, size=48)
    rows = [json.loads(line) | {"split": "train"} for line in (tmp_path / "manifest.jsonl").open()]
    (tmp_path / "manifest.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    learner = make(tmp_path, bank="prototypes")
    assert learner.fit(PLAN).examples == patients
    assert learner.evaluate("val", PLAN) == {}
    assert learner.finish(PLAN, tmp_path / "out") == []
    assert "labels" not in learner.describe().heterogeneity


@pytest.mark.parametrize(
    ("combine", "gamma", "expected"),
    [("sum", 0.5, (1.0, 0.5)), ("mean", 0.5, (0.75, 0.25)), ("sum", 0.0, (1.0, 1.0))],
)
def test_mixing_weights_of_mrg_8(
    make: Any, combine: str, gamma: float, expected: tuple[float, float]
) -> None:
    assert make(combine=combine, gamma_mix=gamma).mix() == expected


def test_evaluation_and_finish_leave_a_record_predictions_and_a_personalised_adapter(
    make: Any, tmp_path: Path
) -> None:
    learner = make()
    metrics = learner.evaluate("val", PLAN)
    assert metrics["loss"] > 0
    assert 0 <= metrics["label_f1"] <= 1
    records = learner.finish(RoundPlan(round=0, rounds=1, limit=5), tmp_path)
    assert [(r.adapter, r.studies) for r in records] == [("generic", 5), ("personalised", 5)]
    assert all((tmp_path / r.predictions).is_file() for r in records if r.predictions)
    assert (tmp_path / "personalised" / "adapter_config.json").is_file()


def test_all_setting_errors_are_reported_together() -> None:
    with pytest.raises(ConfigError) as error:
        METHOD.resolve({"bacth": 8, "lr": -1, "model": {"lora": {"rnk": 4}}})
    text = str(error.value)
    assert "3 setting(s)" in text
    assert "Did you mean 'batch'?" in text
    assert "Did you mean 'rank'?" in text
    with pytest.raises(ConfigError, match=r"variant is 'fedmgr'; expected one of fedmrg"):
        METHOD.resolve({"variant": "fedmgr"})


def test_a_variant_and_a_setting_that_undoes_it_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"variant 'fed_lora' and dual contradict"):
        METHOD.resolve({"variant": "fed_lora", "dual": True})
    with pytest.raises(ConfigError, match=r"prompts needs classification"):
        METHOD.resolve({"classification": False})
    assert not METHOD.resolve({"variant": "fed_lora", "model": {"lora": {"rank": 4}}}).model.prompts


def test_preset_paper_turns_the_literal_readings_on_and_a_job_may_overrule() -> None:
    paper = METHOD.resolve({"preset": "paper", "bank": "prototypes"})
    assert paper.kl_direction == "student_teacher"
    assert paper.bank == "prototypes"
    assert not paper.reuse_teacher
