# SPDX-License-Identifier: Apache-2.0
"""Rounds of T exchanges through controller and executors: what `federate_visits` does, also under masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fed_harness
import pytest
import torch
from fed_harness import Federation, completed
from fed_visits import COUNTS, NAME, REGULAR, VisitLearner, build_visits, final_w
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from medflare.aggregation import make_rule
from medflare.aggregation.temporal import TemporalResidual
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.egress import ledger
from medflare.federation.server.controller import TemporalRoundsController
from medflare.federation.server.mixture import SumsCollector
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits, visit_by_visit
from medflare.learners.fedtar.federated_em import FederatedMixture
from medflare.learners.fedtar.mixture import Mixture, MixtureSettings
from medflare.recipes.job import SERVER_CONFIG, Job
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

SITES = tuple(sorted(COUNTS))
Make = Callable[..., Federation]


def plan(number: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=1, seed=7)


def learners(counts: dict[str, list[int]] = COUNTS) -> dict[str, VisitLearner]:
    return {site: VisitLearner({"counts": counts}, site, 0) for site in counts}


@pytest.fixture
def visits(federation: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A federation of temporal rounds with rule `temporal`, or another one, and its settings."""
    monkeypatch.setattr(fed_harness, "build_toy", build_visits)

    def make(
        rounds: int = 3,
        counts: dict[str, list[int]] = COUNTS,
        rule: str = "temporal",
        toy: dict[str, Any] | None = None,
        controller: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Federation:
        count = len(counts["site-1"])
        own = {"visits": count, **settings} if rule == "temporal" else settings
        return federation(
            controller={"num_rounds": rounds, "seed": 7, "visits": count, **(controller or {})},
            rule={"rule": rule, "rule_settings": own},
            toy={"counts": counts, **(toy or {})},
            flow_class=TemporalRoundsController,
        )

    return make


# ---- what it computes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"lr": 0.05},
        {"lr": 0.05, "alpha_mode": "sigmoid"},
        {"lr": 0.05, "alpha_mode": "beta_softmax", "embedding": "days"},
        {"alpha_mode": "constant", "alpha": 0.4, "weighting": "uniform"},
    ],
    ids=["softmax", "sigmoid", "days", "constant"],
)
@pytest.mark.parametrize("counts", [COUNTS, REGULAR], ids=["visits missing", "every visit"])
def test_a_run_in_flare_is_the_run_in_one_process(visits: Make, counts: Any, settings: Any) -> None:
    run, rule = visits(counts=counts, **settings), TemporalResidual(visits=3, **settings)
    record = completed(run)
    alone = federate_visits(learners(counts), rule, 3, plan)[NAME]
    assert torch.equal(final_w(run), alone)
    assert record.rounds[-1].rule == rule.report()
    assert float(alone.abs().max()) > 0.3


def test_coefficients_move_by_what_sites_tell(visits: Make) -> None:
    """Else equality could be that of two runs that learn nothing."""
    rounds = completed(visits(alpha_mode="sigmoid", lr=0.05)).rounds
    assert rounds[0].rule["alpha"] == [0.5, 0.5, 0.5]
    assert rounds[1].rule["alpha"] != rounds[0].rule["alpha"]
    assert all(abs(slope) > 0 for slope in rounds[1].rule["slopes"])


def test_with_one_visit_it_is_fedavg_to_the_last_bit(visits: Make) -> None:
    one = {site: [sum(counts)] for site, counts in COUNTS.items()}
    run = visits(counts=one)
    completed(run)
    assert torch.equal(final_w(run), federate(learners(one), make_rule("fedavg", {}), 3, plan)[NAME])


def test_other_rules_take_one_visit_after_the_other_over_the_same_exchanges(visits: Make) -> None:
    run = visits(counts=REGULAR, rule="fedadam", lr=0.1)
    record = completed(run)
    alone = federate(learners(REGULAR), make_rule("fedadam", {"lr": 0.1}), 9, visit_by_visit(plan, 3))
    assert torch.equal(final_w(run), alone[NAME])
    assert [len(entry.exchanges) for entry in record.rounds] == [3, 3, 3]


def test_a_canary_leaves_no_trace(visits: Make) -> None:
    run = visits(lr=0.05, controller={"canary": True})
    completed(run)
    alone = federate_visits(learners(), TemporalResidual(visits=3, lr=0.05), 3, plan)[NAME]
    assert torch.equal(final_w(run), alone)


# ---- sites without a visit, lost sites ---------------------------------------------------------------------


def test_a_site_without_a_visit_takes_part_and_weighs_nothing(visits: Make) -> None:
    first, second, third = completed(visits(rounds=1)).rounds[0].exchanges
    assert first.accepted == {"site-1": 9, "site-2": 6, "site-3": 4}
    assert second.accepted == {"site-1": 7, "site-2": 0, "site-3": 8}
    assert second.rule["weights"] == {"site-1": 7 / 15, "site-3": 8 / 15}
    assert third.accepted["site-3"] == 0
    assert not first.absent | second.absent | third.absent


def test_a_visit_that_nobody_has_leaves_the_state_as_it_is(visits: Make) -> None:
    counts = {"site-1": [9, 0, 5], "site-2": [6, 0, 8], "site-3": [4, 0, 0]}
    run = visits(counts=counts, lr=0.05)
    record = completed(run)
    assert [entry.exchanges[1].checks["update_norm"] for entry in record.rounds] == [0.0, 0.0, 0.0]
    assert all(entry.rule["beta"][2] == 0 for entry in record.rounds)
    alone = federate_visits(learners(counts), TemporalResidual(visits=3, lr=0.05), 3, plan)[NAME]
    assert torch.equal(final_w(run), alone)


def test_an_update_of_no_examples_that_changes_something_stays_at_its_site(
    visits: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = VisitLearner.fit

    def fit(self: VisitLearner, plan: RoundPlan) -> Update:
        update = original(self, plan)
        return Update(delta={NAME: update.delta[NAME] + 1}, examples=0, sums=update.sums)

    monkeypatch.setattr(VisitLearner, "fit", fit)
    record = visits().run()
    assert record.status == "failed"
    assert "by an update of no examples" in record.reason


def test_a_site_lost_in_visit_2_is_missed_there_and_tells_no_slopes_of_that_round(visits: Make) -> None:
    lost = {"raises": "site-1", "exchange": 4}
    record = completed(visits(toy=lost, controller={"min_responses": 2}, lr=0.05))
    second = record.rounds[1]
    assert sorted(second.exchanges[1].accepted) == ["site-2", "site-3"]
    assert list(second.absent) == ["site-1"]
    assert second.absent["site-1"].startswith("visit 2: E")
    assert sorted(second.accepted) == ["site-2", "site-3"]
    assert sorted(record.rounds[2].accepted) == list(SITES)
    assert "slopes" in record.rounds[2].rule


# ---- under masks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", [COUNTS, REGULAR], ids=["visits missing", "every visit"])
def test_a_masked_run_equals_the_plain_one(visits: Make, counts: Any) -> None:
    settings = {"lr": 0.05, "alpha_mode": "beta_softmax", "embedding": "days"}
    plain = visits(counts=counts, **settings)
    masked = visits(counts=counts, controller={"protection": "masking"}, **settings)
    open_record, record = completed(plain), completed(masked)
    assert torch.allclose(final_w(masked), final_w(plain), rtol=0, atol=1e-5)
    told, expected = record.rounds[-1].rule, open_record.rounds[-1].rule
    assert told["alpha"] == pytest.approx(expected["alpha"], abs=1e-5)
    assert told["slopes"] == pytest.approx(expected["slopes"], abs=1e-4)
    assert "weights" not in told  # nobody can tell what each site's update counted
    weights = [visit.protection["weight"] for visit in record.rounds[0].exchanges]
    assert weights == [sum(column) for column in zip(*counts.values(), strict=True)]


def test_under_masks_no_sites_examples_of_a_visit_are_seen(visits: Make) -> None:
    record = completed(visits(controller={"protection": "masking"}))
    for visit in record.rounds[0].exchanges:
        assert visit.accepted == {site: sum(counts) for site, counts in COUNTS.items()}


def test_under_masks_too_a_site_measures_nothing_of_a_visit_it_lacks(visits: Make) -> None:
    (entry,) = completed(visits(rounds=1, controller={"protection": "masking"})).rounds
    assert [sorted(visit.metrics) for visit in entry.exchanges] == [list(SITES)] * 3
    assert [site for visit in entry.exchanges for site in SITES if not visit.metrics[site]] == [
        "site-2",
        "site-3",
    ]
    assert all("train_loss" in visit.mean for visit in entry.exchanges)
    assert {"train_loss", "val_loss"} == set(entry.mean) == set(entry.metrics["site-2"])


def test_under_masks_a_visit_that_nobody_has_leaves_the_state_as_it_is(visits: Make) -> None:
    counts = {"site-1": [9, 0], "site-2": [6, 0], "site-3": [4, 0]}
    run = visits(counts=counts, controller={"protection": "masking"})
    record = completed(run)
    assert [entry.exchanges[1].checks["update_norm"] for entry in record.rounds] == [0.0, 0.0, 0.0]
    alone = federate_visits(learners(counts), TemporalResidual(visits=2), 3, plan)[NAME]
    assert torch.allclose(final_w(run), alone, rtol=0, atol=1e-5)


def test_a_visit_whose_masked_sum_is_lost_counts_as_one_that_nobody_had(visits: Make) -> None:
    run = visits(rounds=2, controller={"protection": "masking"}, lr=0.05)
    asked: dict[str, int] = {}

    def tamper(site: str, name: str, reply: Shareable) -> Shareable | None:
        asked[site] = asked.get(site, 0) + (name == "reveal")
        lost = name == "reveal" and asked[site] == 2 and site != "site-1"
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if lost else None

    run.tamper = tamper
    first, second = completed(run).rounds
    assert first.exchanges[1].accepted == {}
    assert "could not be opened" in first.absent["site-1"]
    assert first.exchanges[2].rule["visit"] == 3
    assert first.rule["beta"][2] == 0
    assert second.exchanges[0].rule["visit"] == 1
    assert sorted(second.accepted) == list(SITES)


# ---- the mixture of profiles -------------------------------------------------------------------------------

FOUR = MixtureSettings(components=4, iterations=6, least_patients=2, tolerance=1e-9)


def with_mixture(visits: Make, monkeypatch: pytest.MonkeyPatch, **controller: Any) -> Any:
    """(run, record, site -> the mixture it has at the end)."""
    taken: dict[str, Mixture] = {}
    monkeypatch.setattr(
        VisitLearner, "take_mixture", lambda self, mixture: taken.update({self.site: mixture})
    )
    run = visits(rounds=1, controller={"mixture": FOUR.model_dump(), "canary": True, **controller})
    return run, completed(run), taken


def alone_with_mixture() -> FederatedMixture:
    return agree_on_mixture(learners(), FOUR, 2, 7)


def test_sites_agree_on_the_mixture_of_one_process_before_round_one(visits: Make, monkeypatch: Any) -> None:
    run, record, taken = with_mixture(visits, monkeypatch)
    alone = alone_with_mixture()
    assert sorted(taken) == list(SITES)
    for mixture in taken.values():
        assert torch.equal(mixture.means, alone.mixture.means)
        assert torch.equal(mixture.variances, alone.mixture.variances)
    assert record.preparation == {"mixture": alone.report()}
    assert alone.report()["iterations"] > 2
    assert torch.equal(final_w(run), federate_visits(learners(), TemporalResidual(visits=3), 1, plan)[NAME])


def test_under_masks_the_mixture_is_the_same_and_the_server_reads_no_sites_sums(
    visits: Make, monkeypatch: Any
) -> None:
    seen: list[bool] = []
    totals = SumsCollector.totals
    monkeypatch.setattr(SumsCollector, "totals", lambda self: seen.append(True) or totals(self))
    _, record, taken = with_mixture(visits, monkeypatch, protection="masking")
    alone = alone_with_mixture()
    assert not seen
    for mixture in taken.values():
        assert torch.allclose(mixture.means, alone.mixture.means, atol=1e-5)
        assert torch.allclose(mixture.weights, alone.mixture.weights, atol=1e-5)
    assert record.preparation["mixture"]["components"] == alone.mixture.alive


def test_only_sums_leave_a_site_before_round_one(visits: Make, monkeypatch: Any) -> None:
    run, _, _ = with_mixture(visits, monkeypatch)
    lines = [
        json.loads(line) for line in (run.site_folder("site-1") / ledger.FILE).read_text("utf-8").splitlines()
    ]
    early = [line for line in lines if line["task"] == "fit" and line["round"] < 0]
    assert [line["round"] for line in early] == list(range(-8, -8 + len(early)))
    numbers = [3 * 2 + 1, *[4 * (1 + 2 * 2) + 1] * (len(early) - 1)]
    assert [line["bytes"] for line in early] == [8 * count for count in numbers]
    assert not any("missing" in line for line in early)


def test_profile_sums_stay_when_they_come_with_an_update(visits: Make, monkeypatch: Any) -> None:
    original = VisitLearner.fit

    def fit(self: VisitLearner, plan: RoundPlan) -> Update:
        update = original(self, plan)
        update.sums |= self.profile_sums()
        return update

    monkeypatch.setattr(VisitLearner, "fit", fit)
    record = visits(controller={"mixture": FOUR.model_dump()}).run()
    assert record.status == "failed"
    assert "not declared, so it stays here: tensor 'sum:profiles.first'" in record.reason


def test_too_few_patients_stop_the_run(visits: Make) -> None:
    many = MixtureSettings(components=4, least_patients=1000).model_dump()
    record = visits(controller={"mixture": many}).run()
    assert record.status == "failed"
    assert "a component of the mixture needs 1000" in record.reason


def test_a_method_without_profiles_is_told_to_leave_the_setting_out(federation: Make) -> None:
    asked = {"mixture": FOUR.model_dump()}
    record = federation(controller=asked, flow_class=TemporalRoundsController).run()
    assert record.status == "failed"
    assert "makes no profiles" in record.reason


# ---- the job folder ----------------------------------------------------------------------------------------


def temporal_job(**controller: Any) -> Job:
    return Job(
        title="trial",
        method="fed_medlora",
        workflow="temporal",
        controller={"visits": 3, **controller},
        aggregation={"rule": "fedavg"},
    )


def test_a_job_folder_names_the_controller_and_is_read_back(tmp_path: Path) -> None:
    job = temporal_job(num_rounds=2, mixture={"components": 4})
    check_job(job)
    assert read_job(job.write(tmp_path / "trial")) == job
    (flow,) = job.files()[SERVER_CONFIG]["workflows"]
    assert flow["path"].endswith("server.controller.TemporalRoundsController")
    assert override(job, {"visits": 5}).controller["visits"] == 5


def test_a_job_that_counts_visits_twice_or_names_no_workflow_is_refused() -> None:
    other = {"rule": "temporal", "rule_settings": {"visits": 4}}
    with pytest.raises(ConfigError, match=r"rule_settings.visits is 4"):
        check_job(replace(temporal_job(), aggregation=other))
    with pytest.raises(ConfigError, match="workflow 'swarm' is none of rounds, temporal"):
        check_job(replace(temporal_job(), workflow="swarm"))
    with pytest.raises(ConfigError, match="stay encrypted"):
        check_job(temporal_job(mixture={}, protection="he"))


# ---- the record --------------------------------------------------------------------------------------------


def test_the_record_says_what_happened_in_every_visit(visits: Make) -> None:
    record = completed(visits(rounds=2, lr=0.05))
    assert [entry.round for entry in record.rounds] == [0, 1]
    assert [visit.round for entry in record.rounds for visit in entry.exchanges] == [0, 1, 2, 3, 4, 5]
    for entry in record.rounds:
        assert entry.accepted == {site: sum(counts) for site, counts in COUNTS.items()}
        assert [visit.rule["visit"] for visit in entry.exchanges] == [1, 2, 3]
        alphas = [visit.checks["alpha"] for visit in entry.exchanges]
        assert alphas == entry.rule["alpha"] == entry.exchanges[0].rule["alpha"]
        assert sum(entry.rule["beta"]) == pytest.approx(1)
        assert {"train_loss", "val_loss"} == set(entry.mean)
        parts = [visit.traffic["site-2"] for visit in entry.exchanges]
        assert entry.traffic["site-2"].sent == sum(part.sent for part in parts)
        assert len({part.sent for part in parts}) == 1
        spent = [visit.timings["site-2"]["compute"] for visit in entry.exchanges]
        assert entry.timings["site-2"]["compute"] == pytest.approx(sum(spent))
    told = record.rounds[0]
    own = [visit.metrics["site-2"].get("train_loss") for visit in told.exchanges]
    assert own[1] is None
    assert told.metrics["site-2"]["train_loss"] == pytest.approx((6 * own[0] + 8 * own[2]) / 14)


def test_rule_and_controller_that_count_other_visits_stop_the_run_before_round_one(visits: Make) -> None:
    record = visits(controller={"visits": 2}).run()
    assert record.status == "failed"
    assert not record.rounds
    assert "rule_settings.visits is 3, and the controller's `visits` is 2" in record.reason
