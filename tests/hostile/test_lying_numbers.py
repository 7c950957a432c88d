# SPDX-License-Identifier: Apache-2.0
"""Sites that send enormous numbers beside their updates: metrics, losses, sums. Each costs its site alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fed_harness import Federation, completed, failed, final
from fed_quadratic import QuadraticLearner
from fed_visits import COUNTS, VisitLearner
from lying_site import Lie, lying

from medflare.aggregation.influence import Influence
from medflare.core.run_record import RunRecord
from medflare.core.tensor_names import SUM_PREFIX
from medflare.core.update import Update
from medflare.core.visit_sums import EXAMPLES, SLOPES
from medflare.federation.server.controller import TemporalRoundsController
from medflare.learners.fedtar.federated_em import N
from medflare.learners.fedtar.mixture import MixtureSettings

MIXTURE = MixtureSettings(components=2, iterations=3, least_patients=2)


def measuring(**metrics: float) -> Lie:
    """The lie that reports these metrics."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"]["metrics"] = {**reply["facts"]["metrics"], **metrics}

    return lie


def summing(name: str, value: float) -> Lie:
    """The lie that sends this value all over a sum."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        for key, tensor in tensors.items():
            if key.startswith(SUM_PREFIX) and name in key:
                tensors[key] = torch.full_like(tensor, value)

    return lie


def quadratic(federation: Any, rule: str, settings: dict[str, Any] | None = None, **more: Any) -> Federation:
    controller = {"num_rounds": 4, "seed": 7, "min_responses": 2, **more.pop("controller", {})}
    run: Federation = federation(
        learner=QuadraticLearner,
        controller=controller,
        rule={"rule": rule, "rule_settings": settings or {}},
        **more,
    )
    return run


def read_again(record: RunRecord) -> RunRecord:
    """The record as the next reader finds it."""
    return RunRecord.model_validate_json(record.model_dump_json())


# ---- metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1.7e308, -1.7e308, 1e200, 10**18])
def test_a_metric_that_nobody_can_have_measured_is_left_out_of_the_record(
    federation: Any, value: float
) -> None:
    lies = {"fit": measuring(loss=value), "evaluate": measuring(loss=value)}
    record = completed(federation(tamper=lying("site-2", lies)))
    assert read_again(record) == record
    for entry in record.rounds:
        assert set(entry.accepted) == {"site-1", "site-2", "site-3"}
        assert "train_loss" not in entry.metrics["site-2"]
        assert all(abs(mean) < 1e6 for mean in entry.mean.values())


def test_a_negative_loss_decides_nothing(federation: Any) -> None:
    """No cross entropy is below 0: the round of a site that says so would be the best one for ever."""
    honest = completed(federation(controller={"num_rounds": 3}))
    record = completed(
        federation(
            controller={"num_rounds": 3},
            tamper=lying("site-2", {"evaluate": measuring(loss=-1e12)}, times=1),
        )
    )
    assert all(value >= 0 for entry in record.rounds for value in entry.mean.values())
    assert record.best_round == honest.best_round == 2


def test_a_claim_of_a_billion_validation_examples_is_not_the_mean(federation: Any) -> None:
    def claim(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        describe = dict(reply["facts"]["describe"])
        reply["facts"]["describe"] = {**describe, "examples": {**describe["examples"], "val": 10**9}}

    lies = {"prepare": claim, "evaluate": measuring(loss=1000.0)}
    entry = completed(federation(tamper=lying("site-2", lies))).rounds[0]
    others = [entry.metrics[site]["val_loss"] for site in ("site-1", "site-3")]
    assert entry.mean["val_loss"] == pytest.approx(0.8 * 1000 + 0.2 * sum(others) / 2, rel=0.05)


# ---- losses that rules go by -------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e14, 1e17, 1e300, 1.7e308])
def test_drfa_goes_on_beside_an_enormous_loss_and_its_site_does_not_take_every_draw(
    federation: Any, value: float
) -> None:
    run = quadratic(
        federation,
        "drfa",
        {"m": 6, "step": 0.05},
        tamper=lying("site-2", {"evaluate": measuring(loss=value)}),
        controller={"min_responses": 1, "evaluate_every": 0},
    )
    record = completed(run)
    assert all(entry.rule["lambda"]["site-2"] < 0.95 for entry in record.rounds[:2])


# ---- sums --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e5, 1e30, -3e38])
def test_an_enormous_control_variate_costs_its_site_the_round(federation: Any, value: float) -> None:
    run = quadratic(federation, "scaffold", tamper=lying("site-2", {"fit": summing("control.", value)}))
    record = completed(run)
    for entry in record.rounds:
        assert set(entry.accepted) == {"site-1", "site-3"}
        assert "sums" in entry.absent["site-2"]
    assert all(bool(value.isfinite().all()) and value.abs().max() < 100 for value in final(run).values())


def temporal(federation: Any, lies: dict[str, Lie], **controller: Any) -> Federation:
    run: Federation = federation(
        learner=VisitLearner,
        settings={"counts": COUNTS},
        controller={"num_rounds": 3, "seed": 7, "min_responses": 2, "visits": 3, **controller},
        rule={"rule": "temporal", "rule_settings": {"visits": 3, "lr": 0.05, "alpha_mode": "sigmoid"}},
        flow_class=TemporalRoundsController,
        tamper=lying("site-3", lies),
    )
    return run


def test_a_claim_of_a_billion_validation_examples_does_not_choose_the_step_sizes(federation: Any) -> None:
    """Its slopes are within the bound of one example, so that nothing but their number is wrong."""

    def claim(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in (SLOPES, EXAMPLES):
            tensors[SUM_PREFIX + name] = torch.full_like(tensors[SUM_PREFIX + name], 1e9)

    record = completed(temporal(federation, {"fit": claim}))
    for entry in record.rounds:
        assert "sums" in entry.absent["site-3"]


# ---- sums of profiles --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1e300, -1e9])
@pytest.mark.parametrize(
    "name",
    [
        *(f"profiles.{part}" for part in ("patients", "observed", "first", "second")),
        *(f"statistics.{part}" for part in ("n", "f", "q", "likelihood")),
    ],
)
def test_sums_of_profiles_that_no_patients_have_cost_their_site_its_say(
    federation: Any, name: str, value: float
) -> None:
    run = temporal(federation, {"fit": summing(name, value)}, mixture=MIXTURE.model_dump(), num_rounds=1)
    fitted = completed(run).preparation["mixture"]
    assert all(abs(x) < 100 for x in fitted["likelihoods"])
    assert sum(fitted["weights"]) == pytest.approx(1)


def test_under_masks_the_run_ends_with_the_reason_where_a_sum_of_profiles_is_impossible(
    federation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can see whose numbers are wrong, so nobody can be left out."""

    def invented(learner: VisitLearner, mixture: Any) -> Any:
        sums = honest(learner, mixture)
        return {**sums, N: sums[N] * (50.0 if learner.site == "site-3" else 1.0)}

    honest = VisitLearner.mixture_sums
    monkeypatch.setattr(VisitLearner, "mixture_sums", invented)
    run = temporal(federation, {}, mixture=MIXTURE.model_dump(), num_rounds=1, protection="masking")
    failed(run, "numbers that no profiles of up to", "site-1, site-2, site-3", "leave out one of them")


def test_one_sites_loss_does_not_take_all_factors_to_the_clip() -> None:
    rule = Influence(mode="client")
    rule.begin({"w": torch.zeros(2)})
    for site, loss in {"a": 0.9, "b": 1.1, "c": 1e11}.items():
        update = Update(delta={"w": torch.ones(2)}, examples=10, metrics={"shared_loss": loss})
        rule.add(site, update)
    rule.finish()
    hint = rule.round_hints().influence
    assert hint is not None
    assert hint.reference == 1.1
