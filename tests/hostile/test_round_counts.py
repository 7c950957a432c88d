# SPDX-License-Identifier: Apache-2.0
"""A server that calls its rounds as it likes: a site counts by what it has answered, and remembers it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
from fed_harness import Federation
from lying_server import Answer, LyingServer

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.federation.site import executor

Servers = Callable[..., LyingServer]
CANARY = {"options": {"canary": True}, "plan": {"round": 0, "rounds": 5, "steps": 1}}


@pytest.fixture
def opened(lying_server: Servers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A prepared server under a policy, and what asks its first site for an update of a round."""

    def make(**rules: Any) -> tuple[LyingServer, Callable[..., Answer]]:
        policy = Policy(rules=PolicyConfig(**rules))
        monkeypatch.setattr(executor, "policy_of", lambda config, before: policy)
        server = lying_server()
        server.prepare()
        state = server.initial_state()

        def fit(number: int, **changes: Any) -> Answer:
            return server.send("site-1", "fit", state, round=number, **changes)

        return server, fit

    return make


def again(server: LyingServer, how: str) -> None:
    """The site restarts; or the server deploys the same job again, whereby FLARE empties the job's folder."""
    server.restart("site-1")
    if how == "deployed again":
        shutil.rmtree(server.root / "site-1" / "job")
    assert not server.send("site-1", "prepare").refused


@pytest.mark.parametrize("how", ["same process", "restarted", "deployed again"])
def test_one_update_leaves_in_a_round(opened: Callable[..., Any], how: str) -> None:
    server, fit = opened()
    assert fit(2).tensors
    if how != "same process":
        again(server, how)
    assert "a second update of round 2 was asked for" in fit(2).text
    assert "an update of round 1 was asked for after round 2" in fit(1).text
    assert fit(3).tensors


@pytest.mark.parametrize("how", ["same process", "restarted", "deployed again"])
def test_rounds_are_counted_and_not_their_names(opened: Callable[..., Any], how: str) -> None:
    server, fit = opened(most_rounds=5)
    assert all(fit(number).tensors for number in (0, 1, 2, 3))
    if how != "same process":
        again(server, how)
    assert fit(4).tensors
    more = fit(5, plan={"round": 5, "rounds": 5, "steps": 2})
    assert "policy.most_rounds" in more.text


def test_a_canary_comes_once_and_first(opened: Callable[..., Any]) -> None:
    server, fit = opened()
    assert fit(0, **CANARY).tensors
    assert "a second update of the canary was asked for" in fit(0, **CANARY).text
    assert fit(0).tensors
    assert "an update of the canary was asked for after round 0" in fit(0, **CANARY).text
    server.restart("site-1")
    server.send("site-1", "prepare")
    assert fit(0, **CANARY).refused


def test_a_failed_round_may_be_asked_for_again_as_nothing_of_it_left(opened: Callable[..., Any]) -> None:
    server, fit = opened()
    assert server.send("site-1", "fit", {}, round=0).refused
    assert fit(0).tensors
    assert fit(0).refused


def test_bytes_are_counted_by_the_sites_own_rounds(opened: Callable[..., Any]) -> None:
    server, fit = opened(max_bytes_per_round=700)
    state = fit(0).tensors
    assert state
    plan = {"rounds": 50, "steps": 2}
    answers = [
        server.send(
            "site-1", "evaluate", state, round=number, options={"split": "val"}, plan=plan | {"round": number}
        )
        for number in range(1, 31)
    ]
    refused = [answer for answer in answers if answer.refused]
    assert refused, "another number of the round opens no new budget"
    assert all("policy.max_bytes_per_round" in answer.text for answer in refused)
    assert fit(1).tensors, "the next round has its own"


def test_a_damaged_memory_answers_nothing(opened: Callable[..., Any]) -> None:
    server, fit = opened()
    assert fit(0).tensors
    memory = server.root / "site-1" / "local_state" / "job" / "job_memory.json"
    memory.write_text(memory.read_text()[:-9])
    server.restart("site-1")
    assert "memory of the job" in server.send("site-1", "prepare").text


def test_an_honest_run_with_a_canary_is_counted_right(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = Policy(rules=PolicyConfig(most_rounds=3))
    monkeypatch.setattr(executor, "policy_of", lambda config, before: policy)
    for protection in ("none", "masking"):
        run = federation(controller={"num_rounds": 3, "canary": True, "protection": protection})
        record = run.run()
        assert record.status == "completed", record.reason
        assert all(len(entry.accepted) == 3 for entry in record.rounds)
