# SPDX-License-Identifier: Apache-2.0
"""Attacks of a lying server on masked sums, no site colluding: each read an update before it was refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from fed_harness import ToyExecutor
from fed_toy import ToyLearner
from masked_lies import ADAPTER, FOUR, Make, MaskedLies, Refused, Round, in_another_job
from test_profile_attacks import Hospital
from torch import Tensor

from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.learners.fedtar.federated_em import moments_spec
from medflare.secure_aggregation.masking_errors import MaskingError


def update_of(make: Make, site: str, steps: int = 3) -> Tensor:
    """A site's update of a round, times its examples, as a site without protection would send it."""
    plain = make(sites=FOUR, protection="none")
    plain.prepare()
    state = plain.initial_state()
    answer = plain.send(site, "fit", state, plan={"round": 0, "rounds": 5, "steps": steps}, roster=list(FOUR))
    return answer.tensors[ADAPTER].double() * float(answer.facts["examples"])


@pytest.fixture
def lies(lying_server: Make) -> MaskedLies:
    return MaskedLies(lying_server(sites=FOUR, protection="masking"))


CANARY: dict[str, Any] = {"terms": {"canary": True}, "options": {"canary": True}, "plan": {"steps": 1}}


def attack(first: State, second: State) -> Tensor:
    """What two sums differ by, of which one site's update is meant to be left."""
    return first[ADAPTER] - second[ADAPTER]


def is_read(found: Tensor, update: Tensor) -> bool:
    """Whether an update was read to a few digits."""
    return bool((found - update).abs().max() < 1e-4 * update.abs().max())


def test_canaries_over_two_sets_of_sites_do_not_differ_by_an_update(
    lies: MaskedLies, lying_server: Make
) -> None:
    """Two run ids in one job: a canary restores what stays local, so that both updates are the same."""
    everybody = lies.sum_of(Round(run_id="run-1", **CANARY))
    try:
        others = lies.sum_of(Round(run_id="run-2", sites=FOUR[:3], **CANARY))
    except Refused:
        return
    assert not is_read(attack(everybody, others), update_of(lying_server, "site-4", steps=1))


REFUSED = "has helped to open another sum of updates from this very state"


def refusal(lies: MaskedLies, before: State, lie: Round, update: Tensor, state: State | None = None) -> str:
    """Return why sites refused a second sum; fails where its difference from the first is the update."""
    try:
        after = lies.sum_of(lie, state)
    except Refused as refused:
        return str(refused)
    assert not is_read(attack(before, after), update), "the difference of two sums is one site's update"
    return "answered"


AGAIN: dict[str, Any] = {"run_id": "again", "job": "again"}


@pytest.mark.parametrize(
    "lie",
    [
        Round(**AGAIN, sites=FOUR[:3]),
        Round(**AGAIN, survivors=FOUR[:3]),
        Round(**AGAIN, sites=FOUR[:3], number=3, plan={"rounds": 9, "seed": 5, "limit": 7}),
        Round(**AGAIN, sites=FOUR[:3], plan={"hints": {"fedprox": {"mu": 0.0}, "summed": [1]}}),
    ],
    ids=["other roster", "other survivors", "other numbers", "other hints"],
)
def test_two_jobs_do_not_differ_by_an_update(lies: MaskedLies, lying_server: Make, lie: Round) -> None:
    before = lies.sum_of(Round())
    in_another_job(lies, "again")
    assert REFUSED in refusal(lies, before, lie, update_of(lying_server, "site-4"))


def negative_zeros(state: State) -> State:
    return {name: torch.where(value == 0, -0.0, value) for name, value in state.items()}


def other_dtype(state: State) -> State:
    return {name: value.double() for name, value in state.items()}


def totals_beside(state: State) -> State:
    return {**state, "total:nothing": torch.ones(1)}


@pytest.mark.parametrize("disguise", [negative_zeros, other_dtype, totals_beside])
def test_a_state_in_other_bits_is_the_same_state(
    lies: MaskedLies, lying_server: Make, disguise: Callable[[State], State]
) -> None:
    before = lies.sum_of(Round())
    in_another_job(lies, "again")
    lie, update = Round(**AGAIN, sites=FOUR[:3]), update_of(lying_server, "site-4")
    assert REFUSED in refusal(lies, before, lie, update, disguise(lies.state))


def test_a_request_that_calls_itself_a_canary_in_terms_that_do_not_is_refused(
    lies: MaskedLies, lying_server: Make
) -> None:
    """The site would put its local state back after a sum that is real, and give the same update again."""
    half: dict[str, Any] = {"options": {"canary": True}, "plan": {"steps": 1}}
    try:
        before = lies.sum_of(Round(**half))
        result = refusal(
            lies, before, Round(number=1, sites=FOUR[:3], **half), update_of(lying_server, "site-4")
        )
    except Refused as refused:
        result = str(refused)
    assert "an update of the canary was asked for after round 1" in result


def test_a_canary_has_one_step(lies: MaskedLies) -> None:
    with pytest.raises(Refused, match="a canary of 3 steps, expected 1"):
        lies.sum_of(Round(**{**CANARY, "plan": {"steps": 3}}))


def test_the_sum_of_a_canary_is_zero_and_round_0_follows_without_a_site_that_it_had(lies: MaskedLies) -> None:
    canary = lies.sum_of(Round(**CANARY))
    assert not any(value.any() for value in canary.values())
    assert lies.sum_of(Round(sites=FOUR[:3]))[ADAPTER].any()


def test_sums_of_the_same_sites_with_other_weights_are_no_further_equations(lies: MaskedLies) -> None:
    lies.sum_of(Round())
    in_another_job(lies, "again")
    with pytest.raises(Refused, match=f"{REFUSED}, with other weights"):
        lies.sum_of(Round(**AGAIN, terms={"weighing": "uniform", "most_weight": 1.0}))


def test_sites_that_were_not_asked_to_reveal_open_no_sum_with_others(lies: MaskedLies) -> None:
    """Site 4 did not reveal and may join another sum; with sites that did there is none."""
    lies.sum_of(Round(asked=FOUR[:3]))
    in_another_job(lies, "again")
    with pytest.raises(Refused) as refused:
        lies.sum_of(Round(**AGAIN, sites=FOUR[1:]))
    assert set(json.loads(str(refused.value))) == {"site-2", "site-3"}


def test_a_round_that_was_lost_before_reveal_is_repeated_with_whoever_is_left(lies: MaskedLies) -> None:
    with pytest.raises(MaskingError, match="0 of 4 sites confirmed"):
        lies.sum_of(Round(asked=()))
    assert lies.sum_of(Round(number=1, sites=FOUR[:3]))[ADAPTER].any()


def test_a_sum_is_repeated_over_the_same_sites(lies: MaskedLies) -> None:
    lies.sum_of(Round())
    assert lies.sum_of(Round(number=1))[ADAPTER].any()


class Weighing(ToyLearner):
    """A toy site that multiplies its update by the factor that the plan names for it (rule ddcs)."""

    def fit(self, plan: RoundPlan) -> Update:
        hint = plan.hints.importance
        assert hint is not None
        update = super().fit(plan)
        return replace(update, factor=hint.weights[self.site] / hint.largest)


@pytest.mark.parametrize("small", [1e-9, 9e-3])
def test_factors_that_leave_one_update_of_the_sum_are_refused(
    lying_server: Make, monkeypatch: pytest.MonkeyPatch, small: float
) -> None:
    """One round is enough for this one: all other updates are multiplied by next to nothing."""
    update = update_of(lying_server, "site-4") / 28
    monkeypatch.setattr(ToyExecutor, "learner", Weighing)
    lies = MaskedLies(lying_server(sites=FOUR, protection="masking"))
    weights = {**dict.fromkeys(FOUR, small), "site-4": 1.0}
    plan = {"hints": {"importance": {"weights": weights, "largest": 1.0}}}
    terms = {"weighing": "uniform", "most_weight": 1.0}
    try:
        result = str(lies.sum_of(Round(plan=plan, terms=terms))[ADAPTER] - update)
    except Refused as refused:
        result = str(refused)
    assert "The sum would be nearly this site's update" in result


NO_USE = {"weights": [1.0], "means": [[0.5] * 3], "variances": [[1.0] * 3]}
"""A mixture beside a request that has no use for one."""


@pytest.mark.parametrize("beside", [{}, {"mixture": NO_USE}], ids=["the same request", "and a mixture"])
def test_sums_of_profiles_over_two_sets_of_sites_do_not_differ_by_one_sites(
    lying_server: Make, monkeypatch: pytest.MonkeyPatch, beside: dict[str, Any]
) -> None:
    """They come with no state: what they start from is which sums are wanted, of which mixture."""
    monkeypatch.setattr(ToyExecutor, "learner", Hospital)
    server = lying_server(sites=FOUR, protection="masking")
    lies = MaskedLies(server, mixture={"components": 256})
    wanted: dict[str, Any] = {
        "sums": moments_spec(3),
        "number": -3,
        "plan": {"hints": {"profiles": "moments"}},
        "terms": {"weighing": "uniform", "most_weight": 1.0},
    }
    everybody = lies.sum_of(Round(**wanted))
    in_another_job(lies, "again")
    try:
        again = {**wanted, "plan": {"hints": {"profiles": "moments", **beside}}}
        others = lies.sum_of(Round(**AGAIN, **again, sites=FOUR[:3]))
        found = f"site 4's: { {name: everybody[name] - others[name] for name in others} }"
    except Refused as refused:
        found = str(refused)
    assert REFUSED in found


def test_a_memory_that_cannot_be_read_refuses(lies: MaskedLies) -> None:
    lies.sum_of(Round())
    (file,) = (lies.server.root / "site-1" / "opened_sums").glob("*.json")
    file.write_text("{", encoding="utf-8")
    with pytest.raises(Refused, match="cannot be read: over which sites a sum"):
        lies.sum_of(Round(number=1))


NOISY: dict[str, Any] = {
    "weighing": "uniform",
    "most_weight": 1.0,
    "clip": 0.5,
    "noise": 1.0,
    "colluding": 1,
    "bound": 32.0,
}


def test_a_noisy_sum_that_is_opened_again_has_the_same_noise(lies: MaskedLies) -> None:
    """A server that says again and again that it crashed would otherwise take the mean of the noise."""
    before = lies.sum_of(Round(terms=NOISY))
    in_another_job(lies, "again")
    again = lies.sum_of(Round(**AGAIN, terms=NOISY | {"attempt": 1}))
    assert all(torch.equal(before[name], again[name]) for name in before)
    (lies.server.root / "site-1" / "opened_sums" / "noise.key").unlink()
    in_another_job(lies, "third")
    other = lies.sum_of(Round(run_id="third", job="third", terms=NOISY))
    assert not torch.equal(before[ADAPTER], other[ADAPTER])


@pytest.mark.parametrize(
    "change",
    [
        {"noise": 0.0, "clip": 0.0, "colluding": 0},
        {"noise": 1.001},
        {"clip": 0.501},
        {"colluding": 0},
        {"bound": 64.0},
        {"threshold": 4},
    ],
    ids=["no noise", "noise", "clip", "collusion", "bound", "threshold"],
)
def test_the_same_updates_are_not_summed_under_other_noise(lies: MaskedLies, change: dict[str, Any]) -> None:
    lies.sum_of(Round(terms=NOISY))
    in_another_job(lies, "again")
    with pytest.raises(Refused, match=REFUSED):
        lies.sum_of(Round(**AGAIN, terms=NOISY | change))
