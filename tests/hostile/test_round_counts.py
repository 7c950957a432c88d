# SPDX-License-Identifier: Apache-2.0
"""A server that calls its rounds as it likes: a site counts by what it has answered, and remembers it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import Federation
from lying_server import Answer, LyingServer

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.egress.report import read_ledger
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

        def fit(number: int, other: float = 0.0, **changes: Any) -> Answer:
            sent = {name: value + other for name, value in state.items()}
            return server.send("site-1", "fit", sent, round=number, **changes)

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
    first = fit(2)
    assert first.tensors
    if how != "same process":
        again(server, how)
    assert "a second update of round 3 was asked for" in fit(2, other=1e-3).text
    longer = {"round": 2, "rounds": 5, "steps": 3}
    assert "a second update of round 3 was asked for" in fit(2, plan=longer).text
    assert "a second update of round 3 was asked for" in fit(2, uplink="bfloat16").text
    assert_same(fit(2), first)
    assert "an update of round 2 was asked for after round 3" in fit(1).text
    assert fit(3).tensors


def assert_same(answer: Answer, first: Answer) -> None:
    """The very same request has the very same answer: a server that lost it in a crash learns nothing new."""
    assert answer.facts["examples"] == first.facts["examples"]
    for metrics in (answer.facts["metrics"], first.facts["metrics"]):
        for measured in ("memory_share", "peak_gb"):  # of the machine at that moment, not of the data
            metrics.pop(measured, None)
    assert answer.facts["metrics"] == first.facts["metrics"]
    assert answer.tensors.keys() == first.tensors.keys()
    assert all(torch.equal(value, first.tensors[name]) for name, value in answer.tensors.items())


@pytest.mark.parametrize("restarts", [False, True])
def test_the_same_request_has_the_same_answer_and_counts_once(
    opened: Callable[..., Any], restarts: bool
) -> None:
    limits = {} if restarts else {"max_bytes_per_round": 700}  # each restart prepares once more
    server, fit = opened(most_rounds=5, **limits)
    first = fit(0)
    for _ in range(8):
        if restarts:
            again(server, "restarted")
        assert_same(fit(0), first)
    assert fit(1).tensors
    lines = read_ledger(server.root / "site-1/local_state/job/egress.jsonl")
    assert lines.problems == []
    events = [line.event for line in lines.lines if line.task == "fit"]
    assert events == ["sent", *["resent"] * 8, "sent"]


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
    first = fit(0, **CANARY)
    assert first.tensors
    assert "a second update of the canary was asked for" in fit(0, other=1e-3, **CANARY).text
    assert_same(fit(0, **CANARY), first)
    assert fit(0).tensors
    assert "an update of the canary was asked for after round 1" in fit(0, other=1e-3, **CANARY).text
    server.restart("site-1")
    server.send("site-1", "prepare")
    assert fit(0, other=1e-3, **CANARY).refused


def test_a_failed_round_may_be_asked_for_again_as_nothing_of_it_left(opened: Callable[..., Any]) -> None:
    server, fit = opened()
    assert server.send("site-1", "fit", {}, round=0).refused
    assert fit(0).tensors
    assert fit(0, other=1e-3).refused


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


def test_two_jobs_at_once_do_not_have_a_budget_each(
    opened: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "SECONDS_TO_GO", 0.2)
    server, fit = opened()
    assert fit(0).tensors
    first = server.executors["site-1"]
    server.deploy("site-1", "job")
    answer = server.send("site-1", "prepare", job="job2")
    assert "another job works on this run at this site (job)" in answer.text
    first.close()
    assert not server.send("site-1", "prepare", job="job2").refused
    state = {n: value + 1 for n, value in server.send("site-2", "initialise").tensors.items()}
    assert "a second update of round 1" in server.send("site-1", "fit", state, round=0, job="job2").text


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"run_id": "run-2"}, "run_id is run-2"),
        ({"seed": 99}, "seed is 99"),
        ({"roster": ["site-1", "site-2"]}, "roster"),
    ],
)
def test_a_job_goes_on_with_the_run_that_it_was_and_no_other(
    opened: Callable[..., Any], change: dict[str, Any], words: str
) -> None:
    server, fit = opened()
    assert fit(0).tensors
    server.executors["site-1"].close()
    server.deploy("site-1", "job")
    assert words in server.send("site-1", "prepare", job="job2", **change).text
    server.executors["site-1"].close()
    server.deploy("site-1", "job", bias=1.0)
    assert server.send("site-1", "prepare", job="job2").refused, "other settings"


def test_a_hospital_may_refuse_to_go_on_with_runs(opened: Callable[..., Any]) -> None:
    server, fit = opened(resume=False)
    assert fit(0).tensors
    server.executors["site-1"].close()
    server.deploy("site-1", "job")
    assert "policy.resume" in server.send("site-1", "prepare", job="job2").text
