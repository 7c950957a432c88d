# SPDX-License-Identifier: Apache-2.0
"""A server that asks for losses: of single patients, again and again, of made-up states, with all digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import allow
from lying_server import Answer, LyingServer

from medflare.egress.permitted_facts import DIGITS_SEALED, permitted_facts
from medflare.egress.policy import Policy

Opened = Callable[..., tuple[LyingServer, Callable[..., Answer]]]
RULES: dict[str, Any] = {"min_sites": 3, "min_examples": 5}
ONE = {"hints": {"probe": 1}}
ROWS = 16
"""Examples of the toy's site-1."""


@pytest.fixture
def opened(lying_server: Callable[..., LyingServer], monkeypatch: pytest.MonkeyPatch) -> Opened:
    """A prepared server under a policy, and what asks its first site to evaluate a made-up state."""

    def make(protection: str = "none", **rules: Any) -> tuple[LyingServer, Callable[..., Answer]]:
        allow(monkeypatch, **{**RULES, **rules})
        server = lying_server(protection=protection)
        server.prepare()
        state = server.initial_state()

        def evaluate(number: int, split: str = "val", scale: float = 1.0, **plan: Any) -> Answer:
            made_up = {name: scale * value for name, value in state.items()}
            plan = {"round": number, "rounds": 50, **plan}
            return server.send(
                "site-1", "evaluate", made_up, round=number, plan=plan, options={"split": split}
            )

        return server, evaluate

    return make


def digits(value: float) -> int:
    """Significant digits of a number as it is written."""
    return len(f"{value!r}".split("e")[0].replace(".", "").replace("-", "").strip("0"))


# ---- single patients ---------------------------------------------------------------------------------------


def test_the_loss_of_one_training_example_stays_behind_masks_and_minima(opened: Opened) -> None:
    """Issue 15, C2: the very attack, at a site with `require: [mask]`."""
    _, evaluate = opened("masking", require=["mask"])
    for number in range(3):
        answer = evaluate(number, "train", **ONE)
        assert answer.refused
        assert not answer.facts


def test_losses_of_training_examples_need_the_sites_own_yes(opened: Opened) -> None:
    _, evaluate = opened()
    answer = evaluate(0, "train", hints={"probe": 10})
    assert "policy.train_losses" in answer.text
    assert "'train_losses: true' under 'policy' in site.yaml" in answer.text
    _, evaluate = opened(train_losses=True)
    assert evaluate(0, "train", hints={"probe": 10}).facts["metrics"]


@pytest.mark.parametrize(
    ("split", "plan"),
    [
        *((split, {"limit": 1}) for split in ("train", "val", "test")),
        ("train", ONE),
        ("train", {"hints": {"probe": 10}, "limit": 4}),
        ("train", {"hints": {"probe": 4}, "limit": 10}),
    ],
)
def test_too_few_examples_whichever_way_they_are_asked_for(
    opened: Opened, split: str, plan: dict[str, Any]
) -> None:
    _, evaluate = opened(train_losses=True)
    answer = evaluate(0, split, **plan)
    assert "policy.min_examples" in answer.text
    assert not answer.facts


def test_what_counts_is_what_was_counted(opened: Opened) -> None:
    _, evaluate = opened(min_examples=ROWS + 1)
    answer = evaluate(0, limit=1000)
    assert "policy.min_examples" in answer.text
    _, evaluate = opened(min_examples=ROWS)
    assert set(evaluate(0, limit=1000).facts) == {"metrics", "seconds"}


def test_no_difference_of_two_evaluations_is_one_patients_loss(opened: Opened) -> None:
    _, evaluate = opened(train_losses=True)
    assert evaluate(0, limit=10).facts["metrics"]
    assert "over 11 examples, and in an earlier round over 10 examples" in evaluate(1, limit=11).text
    assert "over all examples, and in an earlier round over 10 examples" in evaluate(2).text
    assert evaluate(0, "train", hints={"probe": 10}).facts["metrics"]
    assert "over 9 examples" in evaluate(1, "train", hints={"probe": 9}).text


# ---- as often as asked -------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_split_is_evaluated_once_in_a_round(opened: Opened, restarts: bool) -> None:
    server, evaluate = opened()
    assert evaluate(3).facts["metrics"]
    if restarts:
        server.restart("site-1")
        assert not server.send("site-1", "prepare").refused
    assert "was asked for more than once" in evaluate(3, scale=2.0).text
    assert "Rounds do not go backwards" in evaluate(2, scale=2.0).text
    assert evaluate(4).facts["metrics"]


def test_candidates_are_scored_once_for_each_site(opened: Opened) -> None:
    _, evaluate = opened()
    answers = [evaluate(0, scale=1.0 + n, hints={"loss_only": True}) for n in range(4)]
    assert [answer.refused for answer in answers] == [False, False, False, True]
    assert "more than 3 times" in answers[-1].text
    assert evaluate(0).facts["metrics"], "the round's own evaluation"


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_has_one_final_test(opened: Opened, restarts: bool) -> None:
    server, _ = opened()
    state = server.initial_state()
    first = server.send("site-1", "finish", state, round=5).facts["evaluations"]
    assert first
    if restarts:
        server.restart("site-1")
        assert not server.send("site-1", "prepare").refused
    other = {name: value + 1e-3 for name, value in state.items()}
    for number, asked in ((5, other), (4, state), (4, other)):
        again = server.send("site-1", "finish", asked, round=number)
        assert "a second final test was asked for" in again.text
    assert server.send("site-1", "finish", state, round=5).facts["evaluations"] == first


def test_the_same_job_under_another_id_has_evaluations_of_its_own(opened: Opened) -> None:
    """A limit: a site cannot tell an honest second submission from a server that deploys a job again."""
    server, evaluate = opened()
    assert evaluate(0).facts["metrics"]
    state = server.send("site-2", "initialise").tensors
    made_up = {name: 2 * value for name, value in state.items()}
    server.restart("site-1")
    assert not server.send("site-1", "prepare", job="job-2").refused
    again = server.send("site-1", "evaluate", made_up, job="job-2", options={"split": "val"})
    assert again.facts["metrics"]


# ---- the digits --------------------------------------------------------------------------------------------


def test_losses_leave_rounded(opened: Opened) -> None:
    server, evaluate = opened()
    assert digits(evaluate(0).facts["metrics"]["loss"]) <= 6
    state = server.send("site-2", "initialise").tensors
    answer = server.send("site-2", "finish", state, round=5)
    for estimate in answer.facts["evaluations"][0]["metrics"].values():
        assert all(digits(value) <= 6 for value in estimate.values())


def test_losses_of_training_leave_rounded_too(opened: Opened) -> None:
    server, _ = opened()
    answer = server.send("site-2", "fit", server.send("site-2", "initialise").tensors)
    assert digits(answer.facts["metrics"]["loss"]) <= 6


def test_of_whole_numbers_only_counts_leave_as_they_are() -> None:
    metrics = {"loss": 33_554_434.0, "tokens": 43_473.0, "steps": 12_345.5}
    facts, _ = permitted_facts(Policy(), {"examples": 9, "metrics": metrics}, DIGITS_SEALED)
    assert facts["metrics"] == {"loss": 33_550_000.0, "tokens": 43_473.0, "steps": 12_350.0}


# ---- made-up states under a protection ---------------------------------------------------------------------


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_probe_is_of_training_examples_or_of_none(opened: Opened, split: str) -> None:
    """It was of any split, and of a state of its own: a way round the rules for an evaluation."""
    _, evaluate = opened(train_losses=True)
    assert "rules probe 'train' alone" in evaluate(0, split, hints={"probe": 10}).text


def test_under_masks_no_candidate_is_scored(opened: Opened) -> None:
    """It was: three made-up states in a round, for which the site never looked at the next one."""
    _, evaluate = opened("masking", require=["mask"])
    answer = evaluate(0, scale=7.0, hints={"loss_only": True})
    assert "under a protection" in answer.text
    assert not answer.facts


def test_under_masks_a_probe_is_of_the_state_that_comes_next(opened: Opened) -> None:
    server, evaluate = opened("masking", require=["mask"], train_losses=True)
    assert evaluate(0, "train", scale=7.0, hints={"probe": 10}).facts["metrics"], "a site cannot know yet"
    answer = server.send("site-1", "fit", server.send("site-2", "initialise").tensors, round=1)
    assert "is not the one this site evaluated at the end of round 1" in answer.text
    assert "does nothing more in this job" in evaluate(2, "train", hints={"probe": 10}).text


def test_under_masks_all_evaluations_of_a_round_are_of_one_state(opened: Opened) -> None:
    _, evaluate = opened("masking", require=["mask"], train_losses=True)
    assert evaluate(0, "train", hints={"probe": 10}).facts["metrics"]
    assert "the state sent to measure in round 1 is not the one" in evaluate(0, scale=7.0).text
    assert "does nothing more in this job" in evaluate(1).text


def test_without_a_protection_the_server_reads_the_updates_anyway(opened: Opened) -> None:
    server, evaluate = opened()
    assert evaluate(0, scale=7.0).facts["metrics"]
    answer = server.send("site-1", "fit", server.send("site-2", "initialise").tensors, round=1)
    assert torch.is_tensor(answer.tensors["head.weight"])
