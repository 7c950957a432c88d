# SPDX-License-Identifier: Apache-2.0
"""Rounds of T exchanges: sites without a visit, lost sites, the mixture of profiles, what the record says.

Equality with `federate_visits`, also under masks, is in test_equals_one_process.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import SITES, Make, completed
from fed_learner import ADAPTER
from fed_tamper import losing
from fed_visits import COUNTS, NOBODY_HAS, ONE_LACKS, POOLING_RULES, VisitLearner

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.hints import MixtureHint
from medflare.core.plan import RoundPlan
from medflare.egress.report import read_ledger
from medflare.federation.server.sum_exchange import SumsCollector
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import agree_on_mixture, visit_by_visit
from medflare.learners.fedtar.federated_em import FederatedMixture
from medflare.learners.fedtar.mixture import Mixture, MixtureSettings
from medflare.recipes.job import SERVER_CONFIG, Job
from medflare.recipes.job_check import check_job
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

# ---- what it computes --------------------------------------------------------------------------------------


def test_coefficients_move_by_what_sites_tell(visits: Make) -> None:
    """Else equality could be that of two runs that learn nothing."""
    rounds = completed(visits(alpha_mode="sigmoid", lr=0.05)).rounds
    assert rounds[0].rule["alpha"] == [0.5, 0.5, 0.5]
    assert rounds[1].rule["alpha"] != rounds[0].rule["alpha"]
    assert all(abs(slope) > 0 for slope in rounds[1].rule["slopes"])


# ---- sites without a visit, lost sites ---------------------------------------------------------------------


def test_a_site_without_a_visit_takes_part_and_weighs_nothing(visits: Make) -> None:
    first, second, third = completed(visits(rounds=1)).rounds[0].exchanges
    assert first.accepted == {"site-1": 9, "site-2": 6, "site-3": 4}
    assert second.accepted == {"site-1": 7, "site-2": 0, "site-3": 8}
    assert second.rule["weights"] == {"site-1": 7 / 15, "site-3": 8 / 15}
    assert third.accepted["site-3"] == 0
    assert not first.absent | second.absent | third.absent


@pytest.mark.parametrize(
    ("name", "settings"),
    POOLING_RULES,
    ids=str,
)
def test_a_visit_that_nobody_has_leaves_state_and_rule_as_they_are(name: str, settings: Any) -> None:
    rules, states = [], []
    for exchanges in (1, 2):
        rules.append(make_rule(name, settings))
        learners = {site: VisitLearner({"counts": NOBODY_HAS}, site, 0) for site in NOBODY_HAS}
        make_plan = visit_by_visit(lambda number: RoundPlan(round=number, rounds=1, seed=7), 3)
        states.append(federate(learners, rules[-1], exchanges, make_plan)[ADAPTER])
    assert torch.equal(*states)
    before, after = (torch.tensor(flat(rule.state_dict())) for rule in rules)
    assert torch.equal(before, after)


def flat(kept: Any) -> list[float]:
    """All numbers that a rule keeps, in order of their names."""
    if isinstance(kept, dict):
        return [number for key in sorted(kept) for number in flat(kept[key])]
    return torch.as_tensor(kept, dtype=torch.float64).flatten().tolist()


def test_a_visit_that_nobody_has_is_in_the_record_with_everybody(visits: Make) -> None:
    first = completed(visits(1, NOBODY_HAS, "scaffold")).rounds[0]
    second = first.exchanges[1]
    assert second.accepted == dict.fromkeys(NOBODY_HAS, 0)
    assert second.rule == {}
    assert second.checks["update_norm"] == 0
    assert first.exchanges[0].checks["control_norm"] > 0
    assert first.accepted == {"site-1": 14, "site-2": 14, "site-3": 4}


def test_a_site_that_nobody_drew_for_a_visit_is_still_tested_and_counted(visits: Make) -> None:
    """DRFA draws anew in every exchange; a round in which no site was in all of them is a round."""
    rounds = completed(visits(2, ONE_LACKS, "drfa", m=1)).rounds
    assert [len(visit.accepted) for entry in rounds for visit in entry.exchanges] == [1] * 6
    assert any(not entry.accepted for entry in rounds)
    assert all("val_loss" in entry.mean and "train_loss" in entry.mean for entry in rounds)


def test_a_site_lost_in_visit_2_is_missed_there_and_tells_no_slopes_of_that_round(visits: Make) -> None:
    lost = {"raises": "site-1", "exchange": 4}
    record = completed(visits(site_settings=lost, controller={"min_responses": 2}, lr=0.05))
    second = record.rounds[1]
    assert sorted(second.exchanges[1].accepted) == ["site-2", "site-3"]
    assert list(second.absent) == ["site-1"]
    assert second.absent["site-1"].startswith("visit 2: E")
    assert sorted(second.accepted) == ["site-2", "site-3"]
    assert sorted(record.rounds[2].accepted) == list(SITES)
    assert "slopes" in record.rounds[2].rule


# ---- under masks -------------------------------------------------------------------------------------------


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
    assert set(entry.mean) == {"train_loss", "val_loss"}
    assert set(entry.metrics["site-2"]) == {"train_loss"}


def test_a_visit_whose_masked_sum_is_lost_counts_as_one_that_nobody_had(visits: Make) -> None:
    run = visits(rounds=2, controller={"protection": "masking"}, lr=0.05)
    run.tamper = losing("reveal", "site-2", "site-3")
    first, second = completed(run).rounds
    assert first.exchanges[1].accepted == {}
    assert "could not be opened" in first.absent["site-1"]
    assert first.exchanges[2].rule["visit"] == 3
    assert first.rule["beta"][2] == 0
    assert second.exchanges[0].rule["visit"] == 1
    assert sorted(second.accepted) == list(SITES)


# ---- the mixture of profiles -------------------------------------------------------------------------------

FOUR = MixtureSettings(components=4, iterations=6, least_patients=2, tolerance=1e-9)


def with_mixture(visits: Make, **controller: Any) -> Any:
    """(run, record, site -> the mixture it has at the end)."""
    taken: dict[str, Mixture] = {}

    class Taking(VisitLearner):
        def take_mixture(self, mixture: MixtureHint) -> None:
            taken[self.site] = Mixture.from_hint(mixture)

    run = visits(
        rounds=1, learner=Taking, controller={"mixture": FOUR.model_dump(), "canary": True, **controller}
    )
    return run, completed(run), taken


def alone_with_mixture() -> FederatedMixture:
    return agree_on_mixture({site: VisitLearner({}, site, 0) for site in SITES}, FOUR, 2, 7)


def test_sites_agree_on_the_mixture_of_one_process_before_round_one(visits: Make) -> None:
    _, record, taken = with_mixture(visits)
    alone = alone_with_mixture()
    assert sorted(taken) == list(SITES)
    for mixture in taken.values():
        assert torch.equal(mixture.means, alone.mixture.means)
        assert torch.equal(mixture.variances, alone.mixture.variances)
    assert record.preparation["mixture"] == alone.report()
    assert alone.report()["iterations"] > 2


def test_under_masks_the_mixture_is_the_same_and_the_server_reads_no_sites_sums(
    visits: Make, monkeypatch: Any
) -> None:
    seen: list[bool] = []
    totals = SumsCollector.totals
    monkeypatch.setattr(SumsCollector, "totals", lambda self: seen.append(True) or totals(self))
    _, record, taken = with_mixture(visits, protection="masking")
    alone = alone_with_mixture()
    assert not seen
    for mixture in taken.values():
        assert torch.allclose(mixture.means, alone.mixture.means, atol=1e-5)
        assert torch.allclose(mixture.weights, alone.mixture.weights, atol=1e-5)
    assert record.preparation["mixture"]["components"] == alone.mixture.alive


def test_only_sums_leave_a_site_before_round_one(visits: Make) -> None:
    run, _, _ = with_mixture(visits)
    ledger = read_ledger(run.site_folder("site-1") / "egress.jsonl")
    assert ledger.problems == []  # an honest site's record agrees with itself, separate sums too
    lines = ledger.lines
    early = [line for line in lines if line.task == "fit" and line.round < 0]
    assert [line.round for line in early] == list(range(-8, -8 + len(early)))
    numbers = [3 * 2 + 1, *[4 * (1 + 2 * 2) + 1] * (len(early) - 1)]
    assert [line.bytes for line in early] == [8 * count for count in numbers]
    assert not any(line.missing for line in early)


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
    losses = [visit.metrics["site-2"].get("train_loss") for visit in record.rounds[0].exchanges]
    assert losses[1] is None
    weighted = (6 * losses[0] + 8 * losses[2]) / 14
    assert record.rounds[0].metrics["site-2"]["train_loss"] == pytest.approx(weighted)
