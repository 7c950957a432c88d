# SPDX-License-Identifier: Apache-2.0
"""FedTAR at one site: what travels, whose visits an exchange trains on, what it tells, what stays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fedtar_sites import SPLIT, VISITS, at_visit, change_rows, learner, plan, site, write_visits

from medflare.aggregation import make_rule
from medflare.aggregation.temporal import TemporalResidual
from medflare.errors import ConfigError, UpdateError
from medflare.evaluation.predictions import read_predictions
from medflare.learners.base import RoundPlan, State
from medflare.learners.fedtar.learner import FedTARLearner
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.learners.fedtar.visit_sums import EXAMPLES, SLOPES
from medflare.learners.loop import federate
from medflare.learners.temporal_loop import Profiled, agree_on_mixture, federate_visits, in_turn
from medflare.models.longitudinal_generator import VisitBatch


@pytest.fixture(scope="session")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("fedtar")
    return [write_visits(folder / f"site-{number + 1}", number) for number in range(2)]


@pytest.fixture
def make(hospitals: list[Path], tiny_backbone: Path) -> Any:
    def made(number: int = 0, split: dict[str, float] | None = None, **settings: Any) -> FedTARLearner:
        config = site(hospitals[number], tiny_backbone, f"site-{number + 1}", split)
        return learner(config, **settings)

    return made


def equal(one: State, other: State) -> bool:
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


# ---- what travels ------------------------------------------------------------------------------------------


def test_bridge_client_adapter_and_generators_travel_and_nothing_else(make: Any) -> None:
    made = make()
    spec, update = made.shared_spec(), made.fit(at_visit(1, steps=3))
    assert set(update.delta) == set(spec)
    assert {name.split(".")[0] for name in spec} == {"adapter", "projection", "patient"}
    counts = made.describe()["parameters"]
    assert sum(counts.values()) == sum(torch.Size(shape).numel() for shape, _ in spec.values())
    assert set(counts) == {"adapter", "projection", "patient_projection", "hypernetwork"}
    assert all(delta.abs().sum() > 0 for name, delta in update.delta.items() if not name.endswith(".a.bias"))
    assert all(torch.isfinite(delta).all() for delta in update.delta.values())


def test_without_personalisation_there_is_no_patient_adapter(make: Any) -> None:
    for variant in ("without_personalisation", "pooled_baseline"):
        made = make(variant=variant)
        assert {name.split(".")[0] for name in made.shared_spec()} == {"adapter", "projection"}
        assert set(made.describe()["parameters"]) == {"adapter", "projection"}
        with pytest.raises(ConfigError, match=r"mixture.*settings\.personal is false"):
            made.profile_sums()
    with pytest.raises(ConfigError, match="personal contradict"):
        make(variant="pooled_baseline", personal=True)


def test_everything_travels_where_everything_learns(make: Any) -> None:
    made = make(train_backbone=True)
    update = made.fit(at_visit(1, steps=2))
    moved = {name.split(".")[0] for name, delta in update.delta.items() if delta.abs().sum() > 0}
    assert moved == {"adapter", "projection", "patient", "encoder", "decoder"}
    assert made.pictures.facts() == {}


def test_a_projection_of_an_own_mixture_stays_and_learns(make: Any) -> None:
    made = make(mixture={"source": "per_client"})
    names = [name for name in made.model.shared_tensors() if name.startswith("patient.projection.")]
    assert names
    assert not set(names) & set(made.shared_spec())
    before = {name: made.model.shared_tensors()[name].clone() for name in names}
    for visit in (1, 2):
        made.fit(at_visit(visit))
    kept, values = made.local_state()
    assert all(not torch.equal(kept[f"local.{name}"], before[name]) for name in names)
    again = make(mixture={"source": "per_client"})
    again.load_local_state(kept, values)
    now = again.model.shared_tensors()
    assert all(torch.equal(now[name], kept[f"local.{name}"]) for name in names)


def test_bad_server_state_is_refused_by_name(make: Any) -> None:
    made = make()
    state = made.initial_shared()
    state["projection.0.weight"][0, 0] = float("inf")
    with pytest.raises(UpdateError, match=r"unexpected tensor 'odd'.*projection\.0\.weight' has values"):
        made.load_shared(state | {"odd": torch.zeros(1)})


# ---- an exchange -------------------------------------------------------------------------------------------


def test_an_exchange_is_of_one_visit_and_without_hint_of_all(make: Any) -> None:
    made = make()
    found = {t: made.fit(at_visit(t)) for t in range(1, VISITS + 1)}
    counts = made.samples.counts("train", VISITS)
    assert [found[t].examples for t in found] == counts
    assert [found[t].metrics["visit"] for t in found] == [1, 2, 3]
    pooled = made.fit(plan())
    assert (pooled.examples, pooled.metrics["visit"]) == (sum(counts), 0.0)
    assert made.describe()["examples"]["train"] == sum(counts)
    assert made.describe()["heterogeneity"]["visits"]["train"] == counts
    hint = {"temporal": {"round": 0, "visits": VISITS}}
    assert made.fit(plan(hints=hint)).examples == sum(counts)


def test_only_the_visits_own_rows_are_seen(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make()
    seen: list[int] = []
    batch = made._batch

    def noted(rows: list[int], turned: torch.Generator | None = None) -> VisitBatch:
        seen.extend(rows)
        return batch(rows, turned)

    monkeypatch.setattr(made, "_batch", noted)
    made.fit(at_visit(2))
    assert set(seen) == set(made.rows("train", 2)) | set(made.rows("val", 2))
    assert {made.samples.visits[row].number for row in seen} == {2}


@pytest.mark.parametrize(("more", "steps"), [({}, 2.0), ({"fraction": 0.5}, 0.5), ({"steps": 5}, 5)])
def test_an_exchange_is_as_long_as_asked(make: Any, more: dict[str, Any], steps: float) -> None:
    made = make(local_epochs=2)
    rows = len(made.rows("train", 1))
    expected = steps if "steps" in more else -(-steps * rows // 4)
    assert made.fit(at_visit(1, **more)).metrics["steps"] == pytest.approx(expected, abs=1)


def test_a_visit_that_a_site_has_not_is_answered_with_nothing(make: Any) -> None:
    made = make(visits=5)
    update = made.fit(at_visit(5, visits=5))
    assert (update.examples, update.metrics["steps"], update.metrics["visit"]) == (0, 0.0, 5.0)
    assert "loss" not in update.metrics
    assert not any(delta.any() for delta in update.delta.values())
    assert set(update.delta) == set(made.shared_spec())
    assert set(update.sums) == set(made.sums_spec(2))


def test_an_update_holds_the_numbers_the_method_declares(make: Any) -> None:
    made = make()
    metrics = made.fit(at_visit(1)).metrics
    assert set(metrics) == {"loss", "steps", "val_loss", "visit", "seconds"}
    assert metrics["val_loss"] == made.rows_loss(made.rows("val", 1))
    assert make(split=SPLIT | {"val": 0, "train": 0.8}).fit(at_visit(1)).metrics.keys() == {
        "loss",
        "steps",
        "visit",
        "seconds",
    }


def test_nothing_of_the_optimiser_outlives_an_exchange(make: Any) -> None:
    made = make()
    first = made.fit(at_visit(1)).delta
    made.load_shared({name: value for name, value in make().initial_shared().items()})
    made._orders.clear()
    assert equal(made.fit(at_visit(1)).delta, first)


def test_rates_follow_one_cosine_or_none(make: Any) -> None:
    assert [round(make()._rate(x), 3) for x in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.0]
    paper = make(preset="paper")
    assert [paper._rate(x) for x in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


def test_a_loss_that_is_not_finite_ends_the_exchange(make: Any) -> None:
    made = make()
    with torch.no_grad():
        made.model.backbone.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UpdateError, match=r"site 'site-1': the loss is nan.*settings\.lr"):
        made.fit(at_visit(1))


def test_without_a_mixture_nobody_is_trained_on(make: Any) -> None:
    with pytest.raises(UpdateError, match="no mixture of profiles yet"):
        make(mixture={"source": "federated"}).fit(at_visit(1))


# ---- the meta-gradient -------------------------------------------------------------------------------------


def test_the_validation_gradient_is_that_of_the_mean_over_all_tokens(make: Any) -> None:
    """However it is cut into batches; and it is left in nobody's `.grad`."""
    made, whole = make(eval_batch=3), make(eval_batch=999)
    (one, n), (other, m) = made._validation_gradient(), whole._validation_gradient()
    assert n == m == len(made.rows("val"))
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=1e-3, atol=1e-5), name
    rows = made.rows("val")
    step = 1e-2
    moved = {n: t + step * one[n] / one[n].norm().clamp(min=1e-12) for n, t in made.initial_shared().items()}
    norm = sum(float(value.norm()) for value in one.values())
    before = made.rows_loss(rows)
    made.load_shared(moved)
    assert made.rows_loss(rows) - before == pytest.approx(step * norm, rel=0.15)
    assert all(t.grad is None for t in made._live().values())


@pytest.mark.parametrize("mode", ["softmax", "beta_softmax"])
def test_slopes_of_a_run_are_the_meta_gradient_by_autograd(make: Any, mode: Any) -> None:
    """The loss at w_T(α), with every w̄ as it was, differentiated through the model and the recursion."""
    learners = {"site-1": make(0), "site-2": make(1)}
    rule = TemporalResidual(VISITS, alpha_mode=mode, lr=1e-3)
    path = [learners["site-1"].initial_shared()]
    state = federate_visits(learners, rule, 1, lambda n: plan(n, steps=2), lambda n, s, u: path.append(s))
    alpha = rule.alpha.clone().requires_grad_()
    means = [
        {n: path[t][n] + (path[t + 1][n] - path[t][n]) / float(rule.alpha[t]) for n in state}
        for t in range(VISITS)
    ]
    total, examples = torch.zeros((), dtype=torch.float64), 0
    for made in learners.values():
        made.load_shared(state)
        gradient, count = made._validation_gradient()
        w = {n: v.double() for n, v in path[0].items()}
        for t in range(VISITS):
            w = {n: w[n] + alpha[t] * (means[t][n].double() - w[n]) for n in w}
        total = total + count * sum((gradient[n].double() * w[n]).sum() for n in gradient)
        examples += count
    (slow,) = torch.autograd.grad(total / examples, alpha)

    rule.begin(state)
    for name, made in learners.items():
        made.load_shared(state)
        rule.add(name, made.fit(at_visit(1, 1, slopes=True, steps=1)))
    rule.finish()
    found = torch.tensor(rule.report()["alpha_gradient"], dtype=torch.float64)
    assert float(slow.abs().max()) > 1e-4
    assert torch.allclose(found, slow, rtol=1e-3, atol=1e-3 * float(slow.abs().max()))


def test_slopes_predict_how_the_validation_loss_follows_alpha(make: Any) -> None:
    """A finite difference through the real model, independent of any gradient of ours."""
    made = make()
    rule = TemporalResidual(VISITS, "sigmoid", lr=1e-3)
    path = [made.initial_shared()]
    state = federate_visits(
        {"site-1": made}, rule, 1, lambda n: plan(n, steps=3), lambda n, s, u: path.append(s)
    )

    def loss(shift: float) -> float:
        """With α_T moved."""
        last = {n: path[-2][n] + (path[-1][n] - path[-2][n]) / float(rule.alpha[-1]) for n in state}
        made.load_shared(
            {n: path[-2][n] + (float(rule.alpha[-1]) + shift) * (last[n] - path[-2][n]) for n in state}
        )
        return made.rows_loss(made.rows("val"))

    slope = (loss(0.05) - loss(-0.05)) / 0.1
    made.load_shared(state)
    rule.begin(state)
    rule.add("site-1", made.fit(at_visit(1, 1, slopes=True, steps=1)))
    rule.finish()
    assert rule.report()["alpha_gradient"][-1] == pytest.approx(slope, rel=0.05, abs=1e-5)


def test_a_site_without_validation_visits_tells_no_slopes(make: Any) -> None:
    made = make(split=SPLIT | {"val": 0, "train": 0.8})
    states: list[State] = []
    rule = TemporalResidual(VISITS, lr=1e-2)
    sums: list[State] = []

    def keep(number: int, state: State, updates: Any) -> None:
        states.append(state)
        sums.append(updates["site-1"].sums)

    federate_visits({"site-1": made}, rule, 2, lambda n: plan(n, steps=1), keep)
    assert not any(found[SLOPES].any() or found[EXAMPLES].any() for found in sums)


# ---- whole runs --------------------------------------------------------------------------------------------


def test_with_one_visit_a_run_is_fedavg_to_the_last_bit(hospitals: list[Path], tiny_backbone: Path) -> None:
    def sites() -> dict[str, FedTARLearner]:
        return {
            f"site-{number + 1}": learner(site(folder, tiny_backbone, f"site-{number + 1}", most=1), visits=1)
            for number, folder in enumerate(hospitals)
        }

    def asked(number: int) -> RoundPlan:
        return plan(number, 3, steps=2)

    one = federate_visits(sites(), TemporalResidual(1), 3, asked)
    other = federate(sites(), make_rule("weighted_mean", {}), 3, lambda n: replace(asked(n), rounds=3))
    assert equal(one, other)


def test_a_site_restarted_in_the_middle_of_a_round_continues_as_if_nothing_had_happened(make: Any) -> None:
    def run(restart_before: int | None) -> tuple[State, list[float]]:
        """Two rounds; the site is made anew from its local state before an exchange."""
        made, rule, told = make(mixture={"source": "federated"}), TemporalResidual(VISITS, lr=1e-2), []
        agree_on_mixture({"site-1": made}, made.settings.mixture, 2, 0)
        state = made.initial_shared()
        for exchange in range(2 * VISITS):
            if exchange == restart_before:
                kept = made.local_state()
                made = make(mixture={"source": "federated"})
                made.load_local_state(*kept)
            rule.begin(state)
            made.load_shared(state)
            update = made.fit(plan(exchange, 2 * VISITS, hints=rule.plan_hints(), steps=2))
            told += update.sums[SLOPES].tolist()
            rule.add("site-1", update)
            state = rule.finish()
        return state, told

    whole, slopes = run(None)
    assert any(slopes)
    for exchange in (2, 4):
        state, told = run(exchange)
        assert equal(state, whole)
        assert told == slopes


def test_sites_agree_on_a_mixture_and_visits_are_learnt(make: Any) -> None:
    learners = {
        f"site-{number + 1}": make(number, lr=1e-2, mixture={"source": "federated"}) for number in range(2)
    }
    assert all(isinstance(made, Profiled) for made in learners.values())
    agree_on_mixture(learners, MixtureSettings(components=4, least_patients=2), 2, 0)
    first = learners["site-1"].people.mixture
    assert torch.equal(first.means, learners["site-2"].people.mixture.means)
    state = learners["site-1"].initial_shared()
    rows = {name: made.rows("val") for name, made in learners.items()}

    def loss(at: State) -> float:
        for made in learners.values():
            made.load_shared(at)
        return sum(made.rows_loss(rows[name]) for name, made in learners.items())

    before = loss(state)
    rule = TemporalResidual(VISITS, "beta_softmax", lr=1e-2)
    after = loss(federate_visits(learners, rule, 3, lambda n: plan(n, steps=6)))
    assert after < before - 0.2


@pytest.mark.parametrize("rule", ["fedprox", "scaffold", "fedadam", "fedyogi", "drfa", "l_fedavg"])
def test_baselines_pool_all_visits(make: Any, rule: str) -> None:
    learners = {"site-1": make(0, variant="pooled_baseline"), "site-2": make(1, variant="pooled_baseline")}
    state = learners["site-1"].initial_shared()
    found = federate(learners, make_rule(rule, {}), 2, lambda n: plan(n, steps=2))
    assert not equal(found, state)
    assert all(torch.isfinite(value).all() for value in found.values())


@pytest.mark.parametrize("rule", ["weighted_mean", "fedprox", "scaffold", "fedadam", "fedyogi", "drfa"])
def test_baselines_go_through_visits_in_turn_where_a_site_has_but_one(
    hospitals: list[Path], tiny_backbone: Path, rule: str
) -> None:
    """TAR-15: the same exchanges; who has nothing of a visit is idle."""
    learners = {
        "site-1": learner(site(hospitals[0], tiny_backbone), variant="pooled_baseline"),
        "site-2": learner(site(hospitals[1], tiny_backbone, "site-2", most=1), variant="pooled_baseline"),
    }
    examples: list[int] = []
    state = federate(
        learners,
        make_rule(rule, {}),
        2 * VISITS,
        in_turn(lambda n: plan(n, steps=1), VISITS),
        lambda n, s, updates: examples.append(updates["site-2"].examples if "site-2" in updates else 0),
    )
    assert not any(examples[visit] for visit in (1, 2, 4, 5))
    assert any(examples)
    assert all(torch.isfinite(value).all() for value in state.values())


# ---- evaluation --------------------------------------------------------------------------------------------


def test_evaluation_by_loss_alone_and_by_reports(make: Any) -> None:
    made = make()
    rows = made.rows("val")
    assert made.evaluate("val", plan(hints={"loss_only": True})) == {"loss": made.rows_loss(rows)}
    assert set(made.evaluate("train", plan(hints={"probe": 3}))) == {"loss"}
    assert {"loss", "bleu_4", "label_f1"} <= set(made.evaluate("val", plan(limit=4)))
    assert make(split=SPLIT | {"val": 0, "train": 0.8}).evaluate("val", plan()) == {}


def test_the_final_test_writes_predictions(make: Any, tmp_path: Path) -> None:
    made = make()
    (found,) = made.finish(plan(limit=4), tmp_path)
    assert (found.site, found.studies) == ("site-1", 4)
    items = read_predictions(tmp_path / found.predictions)
    assert [item.generated for item in items] == made.draft(made.rows("test")[:4])


def test_tokens_of_a_frozen_encoder_are_those_it_would_give_again(make: Any) -> None:
    made, fresh = make(), make(train_backbone=True)
    rows = made.rows("train")[:5]
    (kept, there), (again, also) = (m.pictures.patches(rows) for m in (made, fresh))
    assert torch.equal(there, also)
    assert torch.allclose(kept, again.detach(), atol=1e-5)
    facts = made.pictures.facts()
    assert facts["pictures"] == len(made.samples)
    assert facts["bytes"] == len(made.samples) * 4 * 128 * 4


# ---- odd cohorts -------------------------------------------------------------------------------------------


def copied(folder: Path, into: Path) -> Path:
    shutil.copytree(folder, into)
    return into


def test_unknown_ages_and_sexes_are_no_fault(
    hospitals: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    folder = copied(hospitals[0], tmp_path / "site")
    change_rows(folder, age=None, sex=None)
    made = learner(site(folder, tiny_backbone))
    assert made.people is not None
    assert made.people.values.isnan().all()
    assert made.fit(at_visit(1)).metrics["loss"] > 0


def test_a_hashed_identifier_needs_a_key_that_stays(
    hospitals: list[Path], tiny_backbone: Path, tmp_path: Path
) -> None:
    config = site(hospitals[0], tiny_backbone)
    with pytest.raises(ConfigError, match=r"hash_feature needs a key that stays here.*'state' in site\.yaml"):
        learner(config, profile={"hash_feature": True})
    kept = config.model_copy(update={"state": tmp_path})
    one, again = (learner(kept, profile={"hash_feature": True}) for _ in range(2))
    assert one.people is not None
    assert again.people is not None
    assert one.people.values.shape[1] == 3
    assert torch.equal(one.people.values, again.people.values)


def test_visits_beyond_those_of_the_job_are_left_out_and_counted(make: Any) -> None:
    made = make(visits=2)
    beyond = (
        len(made.samples.rows("train", 3))
        + len(made.samples.rows("val", 3))
        + len(made.samples.rows("test", 3))
    )
    assert made.describe()["skipped"]["visit beyond T"] == beyond > 0
    assert made.fit(plan()).examples == len(made.samples.rows("train", 1)) + len(
        made.samples.rows("train", 2)
    )
    assert made.pictures.facts()["pictures"] == len(made.samples) - beyond


def test_a_site_with_a_single_visit_takes_part(hospitals: list[Path], tiny_backbone: Path) -> None:
    learners = {
        "site-1": learner(site(hospitals[0], tiny_backbone)),
        "site-2": learner(site(hospitals[1], tiny_backbone, "site-2", most=1)),
    }
    told: list[dict[str, int]] = []
    rule = TemporalResidual(VISITS, lr=1e-2)
    federate_visits(
        learners,
        rule,
        2,
        lambda n: plan(n, steps=1),
        lambda n, s, updates: told.append({name: update.examples for name, update in updates.items()}),
    )
    assert [found["site-2"] > 0 for found in told] == [True, False, False] * 2
    assert all(found["site-1"] > 0 for found in told)


def test_a_visit_too_long_for_the_decoder_is_refused_before_anything_is_trained(make: Any) -> None:
    with pytest.raises(ConfigError, match=r"1 picture\(s\) takes \d+ positions.*decoder has 512.*token_grid"):
        make(max_report_tokens=600)


def test_prior_reports_can_be_read(make: Any) -> None:
    made, plain = make(prior_context=True), make()
    rows = made.rows("val")
    assert made.rows_loss(rows) != plain.rows_loss(rows)
    assert made.fit(at_visit(2, steps=2)).metrics["loss"] > 0


# ---- what a hostile reading found --------------------------------------------------------------------------


def test_a_canary_leaves_the_order_of_patients_as_it_was(make: Any) -> None:
    made, other = make(), make()
    tensors, values = made.local_state()
    kept = {name: value.clone() for name, value in tensors.items()}
    made.load_shared(made.initial_shared())
    made.fit(at_visit(1, steps=2))
    made.load_local_state(kept, values)
    assert made.local_state()[1] == values
    rows = made.trained(1)
    assert made._cut(plan(0, steps=2), 1, rows) == other._cut(plan(0, steps=2), 1, rows)


def test_the_same_number_of_patients_comes_in_another_order_at_another_visit(make: Any) -> None:
    made = make()
    assert made._order(2, 12).take(12) != made._order(3, 12).take(12)
    assert made._order(1, 12).take(12) == made._order(0, 12).take(12)


def test_a_visit_of_fewer_than_the_sites_policy_lets_out_is_not_there(make: Any) -> None:
    made = make()
    count = len(made.rows("train", 2))
    made.fewest = count + 1
    made.load_shared(made.initial_shared())
    update = made.fit(at_visit(2))
    assert update.examples == 0
    assert all(not delta.any() for delta in update.delta.values())
    made.fewest = count
    assert made.fit(at_visit(2, steps=1)).examples == count


def test_numbers_of_a_few_people_are_not_told(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from medflare.learners.fedtar import learner as module

    made = make()
    most = max(len(made.rows(split, visit)) for split in ("train", "val", "test") for visit in (1, 2, 3))
    monkeypatch.setattr(module, "FEWEST", most + 1)
    assert all(set(counts) == {0} for counts in made.describe()["heterogeneity"]["visits"].values())
    assert "val_loss" not in made.fit(at_visit(1, steps=1)).metrics
    monkeypatch.setattr(module, "FEWEST", 1)
    assert "val_loss" in made.fit(at_visit(1, steps=1)).metrics
