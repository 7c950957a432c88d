# SPDX-License-Identifier: Apache-2.0
"""Exact comparison when sites vanish, err or lie, and when a server asks for more than was agreed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_clock import ExchangeClock
from fed_graphs import (
    FIRST,
    SECOND,
    SHARED,
    SITES,
    TASKS,
    THIRD,
    compared,
    lines,
    not_compared,
    sizes,
)
from fed_tamper import Change, changed, spoiled

from medflare.core.errors import UpdateError
from medflare.egress.failures import Failure, FailureCode
from medflare.federation.flare_messages import failure_reply
from medflare.federation.server.channel import Channel
from medflare.knowledge.private_intersection import fingerprint
from medflare.knowledge.sketch_key import SketchKey
from medflare.protocol.messages import Reply
from medflare.worker.exact_comparison import ExactSide, PairRequest


def rubbish(tensors: dict[str, Any], facts: dict[str, Any]) -> None:
    """Other bytes in place of a message's own."""
    for name, value in tensors.items():
        tensors[name] = torch.tensor(list(os.urandom(value.numel())), dtype=torch.uint8)


@pytest.mark.parametrize(("task", "site"), [*zip(TASKS, [THIRD, THIRD, THIRD, FIRST], strict=True)])
def test_a_site_that_vanishes_is_not_waited_for_again_and_the_run_goes_on(
    graph_hospitals, clock: ExchangeClock, task: str, site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, run = graph_hospitals

    def vanish(name: str, asked: str, message: Any) -> None:
        if (name, asked) == (site, task):
            clock.miss(name)

    federation = run(mislead=vanish, deadline=100.0)
    sent, send = list[tuple[str, frozenset[str]]](), Channel.send_to_each

    def noted(channel: Channel, step: str, take: Any, orders: Any) -> Any:
        sent.append((step, frozenset(orders)))
        return send(channel, step, take, orders)

    monkeypatch.setattr(Channel, "send_to_each", noted)
    report = compared(federation)
    assert sum(site in sites for step, sites in sent if step == task) == 1, "one deadline, not one a pair"
    left = tuple(other for other in SITES if other != site)
    assert sizes(report)[left] == SHARED[left]
    assert "no reply within the deadline" in report["without"][site]
    gone = not_compared(report)
    assert set(gone) == (set() if task == "count" else {pair for pair in SHARED if site in pair})
    assert all(f"{site}: no reply within" in why for why in gone.values())


@pytest.mark.parametrize("task", TASKS)
def test_a_step_that_fails_costs_its_pair_alone(graph_hospitals, task: str) -> None:
    _, run = graph_hospitals
    site = THIRD if task == "answer" else FIRST
    broken: list[str] = []

    def fail(name: str, asked: str, reply: Any) -> Any:
        if (name, asked) == (site, task) and not broken:
            broken.append(task)
            return failure_reply(Failure(FailureCode.UNEXPECTED, "its worker died"), -1)
        return None

    report = compared(run(tamper=fail))
    if task == "count":
        assert "its worker died" in report["without"][site]
        assert sizes(report) == {(SECOND, THIRD): 40}
    else:
        assert list(not_compared(report).values()) == [f"{site}: E40 its worker died"]
        assert len(sizes(report)) == 2
        assert report["without"] == {}


@pytest.mark.parametrize(("task", "site"), [("offer", FIRST), ("offer", THIRD), ("answer", THIRD)])
def test_rubbish_in_place_of_encrypted_elements_is_noticed_by_the_partner(
    graph_hospitals, task: str, site: str
) -> None:
    _, run = graph_hospitals
    report = compared(run(tamper=spoiled(site, task, rubbish)))
    left = tuple(other for other in SITES if other != site)
    assert sizes(report) == {left: SHARED[left]}
    assert all("E4 UpdateError" in why for why in not_compared(report).values())
    matrix = report["distances"]["matrix"]
    i, j, k = (SITES.index(s) for s in (site, *left))
    assert matrix[i][j] == matrix[i][k] == matrix[j][k]


def longer(tensors: dict[str, Any], facts: dict[str, Any]) -> None:
    for name, value in tensors.items():
        tensors[name] = torch.cat([value, value])


def floats(tensors: dict[str, Any], facts: dict[str, Any]) -> None:
    tensors.update({name: value.float() for name, value in tensors.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (longer, "bytes; 1416 are the most"),
        (lambda tensors, facts: tensors.update(patients=torch.zeros(3)), "2 tensors where one is expected"),
        (
            lambda tensors, facts: facts.update(partner="site-9"),
            "for site-9, where another message was asked for",
        ),
        (floats, "expected bytes"),
    ],
)
def test_what_is_no_message_of_this_pair_is_not_passed_on(
    graph_hospitals, change: Change, message: str
) -> None:
    _, run = graph_hospitals
    federation = run(tamper=spoiled(FIRST, "offer", change))
    report = compared(federation)
    assert len(not_compared(report)) == 2
    assert all(message in why for why in not_compared(report).values()), not_compared(report)
    assert sizes(report) == {(SECOND, THIRD): 40}
    assert "answer" not in {
        line.task for line in lines(federation, SECOND) if line.exact.get("partner") == FIRST
    }


@pytest.mark.parametrize("both", [41, -1, "ten", None, True])
def test_an_impossible_size_is_not_taken(graph_hospitals, both: Any) -> None:
    _, run = graph_hospitals
    lie = spoiled(FIRST, "compare", lambda tensors, facts: facts.update(shared=both))
    report = compared(run(tamper=lie))
    assert sizes(report) == {(SECOND, THIRD): 40}
    assert set(not_compared(report)) == {(FIRST, SECOND), (FIRST, THIRD)}


@pytest.mark.parametrize(
    ("site", "message"),
    [
        (THIRD, "a request of 40 elements where 41 were agreed"),
        (FIRST, "a set-up of 90 elements where 91 were agreed"),
    ],
)
def test_a_server_that_tells_other_counts_gets_no_answer(graph_hospitals, site: str, message: str) -> None:
    _, run = graph_hospitals

    def one_more(tensors: dict[str, Any], words: dict[str, Any]) -> None:
        words["options"] = {**words["options"], "elements": words["options"]["elements"] + 1}

    report = compared(run(mislead=changed(site, "offer", one_more)))
    assert message in not_compared(report)[FIRST, THIRD]
    left = tuple(other for other in SITES if other != site)
    assert sizes(report) == {left: SHARED[left]}


def test_a_server_that_ignores_a_refused_size_gets_no_step(
    graph_hospitals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on with a size that it made up, as if the site had told it."""
    cohorts, run = graph_hospitals
    cohorts.write(FIRST, min_examples=2)
    federation = run()
    send = Channel.send_to_each

    def ignore(channel: Channel, task: str, take: Any, orders: Any) -> Any:
        outcome = send(channel, task, take, orders)
        if task == "count":
            assert "policy.min_examples" in outcome.absent.pop(FIRST)
            config = cohorts.settings(FIRST).knowledge
            key = fingerprint(SketchKey.read(config.key, config.context))
            count = {"state": "counted", "elements": 40, "examples": 9, "key": key}
            assert take(FIRST, Reply(-1, count, {})) is None
        return outcome

    monkeypatch.setattr(Channel, "send_to_each", ignore)
    report = compared(federation)
    assert sizes(report) == {(SECOND, THIRD): 40}
    assert all("policy.min_examples: a comparison" in why for why in not_compared(report).values())
    assert [line.task for line in lines(federation, FIRST) if line.event == "sent"] == []
    assert {line.task for line in lines(federation, FIRST) if line.event == "blocked"} == {"count", "offer"}


@pytest.mark.parametrize(("site", "step"), [(THIRD, "answer"), (FIRST, "compare")])
def test_each_step_meets_the_policy_as_it_is_then(graph_hospitals, site: str, step: str) -> None:
    cohorts, run = graph_hospitals

    def forbid(name: str, asked: str, message: Any) -> None:
        if (name, asked) == (site, step):
            cohorts.write(site, min_examples=2)

    federation = run(mislead=forbid)
    report = compared(federation)
    left = tuple(other for other in SITES if other != site)
    assert left in sizes(report)
    assert any("policy.min_examples: a comparison" in why for why in not_compared(report).values())
    assert step not in {line.task for line in lines(federation, site) if line.event == "sent"}


# ---- what a site refuses, whoever asks ---------------------------------------------------------------------


@pytest.fixture
def sides(graph_hospitals, tmp_path: Path) -> Callable[..., Any]:
    """Sites that have told their sizes, each with folder and settings; again: as after a restart."""
    cohorts, _ = graph_hospitals

    def side(site: str, run_id: str = "run", count: bool = True) -> tuple[ExactSide, Any]:
        side = ExactSide(tmp_path / "state" / site, run_id)
        if count:
            side.count(cohorts.settings(site), [other for other in SITES if other != site])
        return side, cohorts.settings(site)

    return side


def test_a_pair_is_compared_once_in_a_run_whatever_is_asked(sides, graph_hospitals) -> None:
    one, site = sides(FIRST)
    assert set(one.offer(site, SITES, PairRequest(SECOND, 60, True))) == {"request"}
    with pytest.raises(
        UpdateError, match="was compared with that of 'site-2' in this run: once for each pair"
    ):
        one.offer(site, SITES, PairRequest(SECOND, 60, False))
    again, _ = sides(FIRST)
    with pytest.raises(UpdateError, match="once for each pair"):
        again.offer(site, SITES, PairRequest(SECOND, 60, True))
    assert set(again.offer(site, SITES, PairRequest(THIRD, 90, False))) == {"setup"}
    other, _ = sides(FIRST, "another run")
    assert set(other.offer(site, SITES, PairRequest(SECOND, 60, True))) == {"request"}


def test_a_size_is_told_once_and_a_graph_that_changed_is_not_compared(sides, graph_hospitals) -> None:
    cohorts, _ = graph_hospitals
    one, _ = sides(FIRST)
    cohorts.know(FIRST, range(41))
    restarted, site = sides(FIRST, count=False)
    assert restarted.count(site, SITES)["elements"] == 40
    with pytest.raises(UpdateError, match="has changed since its size was told"):
        restarted.offer(site, SITES, PairRequest(SECOND, 60, True))
    assert set(one.offer(site, SITES, PairRequest(SECOND, 60, True))) == {"request"}, (
        "those that were counted"
    )


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (PairRequest("site-9", 60, True), "'site-9' was no partner"),
        (PairRequest(SECOND, 19, True), "has 19 elements; expected 20 to 100000"),
        (PairRequest(SECOND, 100_001, True), "expected 20 to 100000"),
    ],
)
def test_a_pair_that_was_not_agreed_is_refused(sides, part: PairRequest, message: str) -> None:
    one, site = sides(FIRST)
    with pytest.raises(UpdateError, match=message):
        one.offer(site, [*SITES, "site-9"], part)


def test_nothing_is_offered_before_a_size_was_told(sides) -> None:
    one, site = sides(FIRST, count=False)
    with pytest.raises(UpdateError, match="told no size"):
        one.offer(site, SITES, PairRequest(SECOND, 60, True))


def test_a_step_out_of_order_or_a_second_one_is_refused(sides) -> None:
    (one, site), (other, theirs) = sides(FIRST), sides(SECOND)
    with pytest.raises(UpdateError, match="no comparison with 'site-2' is open"):
        one.compare(SECOND, {})
    request = one.offer(site, SITES, PairRequest(SECOND, 60, True))
    setup = other.offer(theirs, SITES, PairRequest(FIRST, 40, False))
    with pytest.raises(UpdateError, match="no comparison with 'site-3' is open"):
        other.answer(THIRD, request)
    with pytest.raises(UpdateError, match="no comparison with 'site-1' is open"):
        other.answer(FIRST, request)
    assert set(setup) == {"setup"}
    with pytest.raises(UpdateError, match="'site-2' is to answer in this pair"):
        one.answer(SECOND, request)


def test_a_message_without_what_the_step_needs_is_refused(sides) -> None:
    one, site = sides(FIRST)
    request = one.offer(site, SITES, PairRequest(SECOND, 60, True))
    with pytest.raises(UpdateError, match="holds no setup"):
        one.compare(SECOND, request)
