# SPDX-License-Identifier: Apache-2.0
"""A server, or a site, that does not keep to the rounds of a protected run: what it gets is a refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fed_equality import assert_close
from fed_harness import FakeEngine, Federation, Make, ToyExecutor, accepted, completed, failed, final
from fed_tamper import Change, changed, spoiled
from fed_toy import ToyLearner
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.federation.flare_messages import read_reply, request_message
from medflare.protocol import messages
from medflare.secure_aggregation.encryption import Adder
from medflare.secure_aggregation.encryption_keys import read_site_context
from medflare.secure_aggregation.encryption_parameters import SITE_FILE
from medflare.secure_aggregation.encryption_schemes import HeParameters

MASKED, ENCRYPTED = {"protection": "masking"}, {"protection": "he"}
LOSABLE = {"min_responses": 2, "num_rounds": 1}


def asked_again(run: Federation, site: str, task: str, fresh: bool, **words: Any) -> str:
    """What a site says to one more request after its run, by its own executor or one that has restarted."""
    executor = ToyExecutor(method="toy", worker="thread", protection=run.flow.args.protection)
    executor = executor if fresh else run.executors[site]
    number = words.setdefault("round", -1)
    plan = {"plan": {"round": number, "rounds": 9}} if number >= 0 else {}
    known = {"run_id": run.flow.run_id, "roster": list(run.sites), "deadline": 60.0, **plan}
    wire = {"uplink": "float32", "downlink": "float32", "protection": run.flow.args.protection}
    request = messages.Request(task=task, **{**known, **wire, **words})
    with FakeEngine(site, run.root / site, {}, []).new_context() as ctx:
        ctx.set_peer_context(FLContext())
        reply = executor.execute(task, request_message(request, {}), ctx, Signal())
    answer = read_reply(reply)
    return str(answer.failure) if answer.failure else "answered"


@pytest.mark.parametrize("fresh", [False, True], ids=["same process", "restarted"])
@pytest.mark.parametrize("protection", [{}, MASKED], ids=["plain", "masked"])
def test_first_values_are_not_told_once_the_site_has_learned(
    federation: Make, protection: dict[str, str], fresh: bool
) -> None:
    run = federation(controller=protection)
    completed(run)
    assert "E21 EgressError: first values were asked for after" in asked_again(
        run, "site-1", "initialise", fresh
    )


@pytest.mark.parametrize("number", [0, 1], ids=["an earlier round", "the last round"])
@pytest.mark.parametrize("sum_of", ["updates", "the final test"])
def test_a_site_joins_the_sum_of_a_round_once(federation: Make, sum_of: str, number: int) -> None:
    run = federation(controller=MASKED)
    record = completed(run)
    terms = record.rounds[-1].protection["terms"]
    if sum_of != "updates":
        terms = run.flow.run.protection.coordinator.parameters.to_json()
    options = {"secure_sum": {"terms": {**terms, "round": number}}}
    for fresh in (False, True):
        answer = asked_again(run, "site-1", "keys", fresh, round=number, options=options)
        assert "keys for round" in answer or "nothing was declared yet" in answer
    options["secure_sum"]["terms"]["round"] = 7
    assert asked_again(run, "site-1", "keys", False, round=7, options=options) == "answered"


def test_steps_of_another_round_are_not_answered(federation: Make) -> None:
    run = federation(controller=MASKED)
    completed(run)
    options = {"secure_sum": {"survivors": list(run.sites)}}
    assert "the keys this site gave are of round 3" in asked_again(
        run, "site-1", "confirm", False, round=5, options=options
    )


def other_state(tensors: dict[str, Any], words: dict[str, Any]) -> None:
    tensors["head.weight"] += 1


def other_plan(tensors: dict[str, Any], words: dict[str, Any]) -> None:
    words["plan"] = {**words["plan"], "steps": 1}


@pytest.mark.parametrize("change", [other_state, other_plan])
def test_a_site_masks_nothing_that_the_others_were_not_sent_too(federation: Make, change: Change) -> None:
    run = federation(controller=MASKED, mislead=changed("site-2", "fit", change))
    failed(run, "site-2: E4 UpdateError: the state or the plan that came is not the one")


def other_weighing(tensors: dict[str, Any], words: dict[str, Any]) -> None:
    terms = words["options"]["secure_sum"]["terms"]
    words["options"] = {"secure_sum": {"terms": {**terms, "weighing": "uniform"}}}


def test_all_sites_of_a_sum_weigh_alike(federation: Make) -> None:
    failed(federation(controller=MASKED, mislead=changed("site-2", "keys", other_weighing)), "'site-2'")


@pytest.mark.parametrize(
    ("submitted", "asked"), [("masking", "none"), ("none", "masking"), ("he", "masking")]
)
def test_a_server_cannot_change_the_protection_of_a_job(federation: Make, submitted: str, asked: str) -> None:
    run = federation(controller={"protection": asked})
    for executor in run.executors.values():
        executor.args = executor.args.model_copy(update={"protection": submitted})
    failed(run, f"asks for protection '{asked}', and this job came to this site with '{submitted}'")


@pytest.mark.parametrize(
    ("protection", "rule", "reason"),
    [
        (MASKED, {"rule": "median"}, "rule 'median' must see each update"),
        (
            MASKED,
            {"rule": "krum", "rule_settings": {"allow_unsafe": True}},
            "rule 'krum' must see each update",
        ),
        (ENCRYPTED, {"rule": "fedadam"}, "rule 'fedadam' computes with the sum"),
    ],
)
def test_a_folder_edited_by_hand_does_not_run_a_rule_that_cannot_work(
    federation: Make, protection: dict[str, str], rule: dict[str, Any], reason: str
) -> None:
    failed(federation(controller=protection, rule=rule), reason)


def test_weights_by_tokens_work_under_masks(federation: Make) -> None:
    class Counting(ToyLearner):
        def fit(self, plan: RoundPlan) -> Update:
            update = super().fit(plan)
            update.metrics["tokens"] = 2.0 * update.examples + 5
            return update

    rule = {"rule_settings": {"weighting": "tokens", "most_tokens": 4}}
    plain, masked = (
        federation(rule=rule, learner=Counting, controller=protection) for protection in ({}, MASKED)
    )
    completed(plain)
    completed(masked)
    assert_close(final(masked), final(plain), 1e-5)


def test_noise_in_place_of_an_update_costs_the_round_and_not_the_run(federation: Make) -> None:
    seen: list[str] = []

    def noise(tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        if not seen:
            seen.append("site-2")
            shape = tensors["masked:narrow"].shape
            tensors["masked:narrow"] = torch.randint(-(2**31), 2**31 - 1, shape).to(torch.int32)

    run = federation(controller={**MASKED, "num_rounds": 2}, tamper=spoiled("site-2", "fit", noise))
    record = completed(run)
    assert accepted(record) == [[], list(run.sites)]
    assert "could not be opened" in record.rounds[0].absent["site-1"]


def test_an_encrypted_update_that_claims_to_be_several_is_refused(federation: Make) -> None:
    def doubled(tensors: dict[str, Any], facts: dict[str, Any]) -> None:
        context = read_site_context(run.root / "startup" / SITE_FILE)
        adder = Adder(context, HeParameters(bound=16.0, additions=3))
        adder.add(tensors["encrypted:means"])
        adder.add(tensors["encrypted:means"])
        tensors["encrypted:means"] = adder.total()

    run = federation(controller=ENCRYPTED | LOSABLE, tamper=spoiled("site-2", "fit", doubled))
    assert "tells that it sums 2 updates" in completed(run).rounds[0].absent["site-2"]


def test_a_weight_beyond_what_a_site_declared_is_refused_under_encryption(federation: Make) -> None:
    heavy = spoiled("site-2", "fit", lambda tensors, facts: facts.update(examples=24))
    record = completed(federation(controller=ENCRYPTED | LOSABLE, tamper=heavy))
    assert "weight 24, expected 1 to the 20 training examples" in record.rounds[0].absent["site-2"]
