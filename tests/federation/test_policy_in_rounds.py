# SPDX-License-Identifier: Apache-2.0
"""Whole runs under hospitals' rules: who is admitted, what is held back, and ledgers that are consistent."""

from __future__ import annotations

from typing import Any

import pytest
from fed_harness import SITES, Federation, Make, accepted, completed, failed, ledger
from fed_visits import VisitLearner

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.federation.server.controller import TemporalRoundsController
from medflare.federation.site import executor

MASKED = {"protection": "masking"}


@pytest.fixture
def under(federation: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Federations whose sites have the rules given for each of them."""

    def make(rules: dict[str, dict[str, Any]], **options: Any) -> Federation:
        policies = {site: Policy(rules=PolicyConfig(**given)) for site, given in rules.items()}
        monkeypatch.setattr(executor, "policy_of", lambda config, _: policies.get(config.site, Policy()))
        return federation(**options)

    return make


def everywhere(**rules: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(SITES, rules)


def events(run: Federation, site: str, task: str) -> list[str]:
    return [line.event for line in ledger(run, site, task)]


def test_a_plain_job_is_refused_where_masks_are_required_before_anybody_trains(under: Make) -> None:
    run = under(everywhere(require=["mask"]))
    record = failed(run, "policy.require: updates must have the protection mask, they have none")
    assert not record.rounds
    # The first refusal ends the run; by then another site may not have been asked, or not have answered.
    written = [events(run, site, "prepare") for site in SITES]
    assert ["blocked", "failure"] in written
    assert all(lines in ([], ["blocked"], ["blocked", "failure"]) for lines in written)
    assert all(run.executors[site].worker is None for site in SITES), "no worker was ever started"


@pytest.mark.parametrize("limit", [{"min_site_noise": 0.5}, {"min_threshold": 3}])
def test_a_limit_of_masked_sums_is_not_escaped_by_a_plain_job(under: Make, limit: dict[str, Any]) -> None:
    record = failed(under(everywhere(**limit)), "updates must have the protection mask, they have none")
    assert record.rounds == []


@pytest.mark.parametrize("require", ["mask", "mask|he"])
def test_a_masked_job_meets_the_rule_and_its_ledgers_say_so(under: Make, require: str) -> None:
    run = under(everywhere(require=[require], min_sites=3), controller=MASKED)
    completed(run)
    for site in SITES:
        fits = ledger(run, site, "fit")
        assert [(line.event, line.protections) for line in fits] == [("sent", ["mask"])] * 2
        assert all(set(line.sealed) and line.tensors == 2 for line in fits)
        assert {"keys", "shares", "confirm", "reveal"} <= {line.task for line in ledger(run, site)}


def test_the_ledgers_of_an_encrypted_run_agree_with_themselves(under: Make) -> None:
    run = under(everywhere(require=["he"]), controller={"protection": "he"})
    completed(run)
    assert {tuple(line.protections) for line in ledger(run, "site-1", "fit")} == {("he",)}


def test_the_ledgers_of_a_compressed_run_agree_with_themselves(under: Make) -> None:
    settings = {"width": 200, "sums": True}
    run = under({}, controller={"uplink": "int8", "canary": True}, settings=settings)
    completed(run)
    assert all(ledger(run, site) for site in SITES)


def test_too_few_sites_are_named_by_the_site_that_asks_for_more(under: Make) -> None:
    run = under({"site-2": {"min_sites": 5}})
    failed(run, "site-2", "policy.min_sites: 3 sites take part, at least 5 must")


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"partners": ["site-1"]}, "policy.partners: site-3 would take part; allowed: site-1"),
        ({"min_threshold": 3}, "the threshold is 2, this site's policy asks for 3"),
    ],
)
def test_a_masked_sum_with_others_or_below_a_sites_threshold_is_refused_by_the_site(
    under: Make, rules: dict[str, Any], message: str
) -> None:
    record = under({"site-2": rules}, controller=MASKED).run()
    assert message in record.reason + str([entry.absent for entry in record.rounds])


def test_metrics_stay_at_a_site_that_tells_none_and_training_goes_on(under: Make) -> None:
    run = under({"site-2": {"metrics": "none"}})
    record = completed(run)
    assert accepted(record) == [list(SITES)] * 2
    assert "train_loss" in record.rounds[0].metrics["site-1"]
    assert record.rounds[0].metrics["site-2"] == {}
    assert all(not item.metrics for item in record.evaluations if item.site == "site-2")
    assert sum(line.withheld for line in ledger(run, "site-2")) > 0


def test_a_round_that_would_send_more_than_allowed_goes_on_without_the_site(under: Make) -> None:
    rules = {"site-3": {"max_bytes_per_round": 4000}}
    goes_wild = {"min_responses": 2, "evaluate_every": 0, "max_norm_ratio": None}
    run = under(rules, controller=goes_wild, settings={"width": 2000})
    record = completed(run)
    assert accepted(record) == [["site-1", "site-2"]] * 2
    assert "policy.max_bytes_per_round: 8,0" in record.rounds[0].absent["site-3"]
    assert events(run, "site-3", "fit") == ["blocked", "failure"] * 2


def test_a_site_whose_policy_a_run_does_not_meet_is_absent_with_the_rule_as_the_reason(under: Make) -> None:
    run = under({"site-2": {"most_rounds": 1}}, controller={"min_responses": 2})
    record = completed(run)
    assert accepted(record) == [["site-1", "site-3"]] * 2
    reason = record.rounds[0].absent["site-2"]
    assert "E22 PolicyError" in reason
    assert "site.yaml: policy.most_rounds: the run has 2 rounds, at most 1" in reason
    assert events(run, "site-2", "fit") == ["blocked", "failure"] * 2


@pytest.mark.parametrize(("most", "status"), [(5, "failed"), (6, "completed")])
def test_a_temporal_round_counts_as_many_as_it_has_visits(under: Make, most: int, status: str) -> None:
    run = under(
        everywhere(most_rounds=most),
        learner=VisitLearner,
        controller={"num_rounds": 2, "visits": 3},
        rule={"rule": "temporal", "rule_settings": {"visits": 3}},
        flow_class=TemporalRoundsController,
    )
    record = run.run()
    assert record.status == status, record.reason
    assert ("the run has 6 rounds, at most 5" in record.reason) == (status == "failed")
