# SPDX-License-Identifier: Apache-2.0
"""Requests that no honest server sends: every field is refused with what was found and what was expected."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lying_server import REQUEST, LyingServer
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable

Servers = Callable[..., LyingServer]
PLAN = {"round": 0, "rounds": 5, "steps": 2}
STEP = {"round": 0, "rounds": 5}

FIELDS: list[tuple[str, dict[str, Any], str]] = [
    ("fit", {"round": 0.25}, "'round' is 0.25"),
    ("fit", {"round": True}, "'round' is True"),
    ("fit", {"round": -1_000_000_000}, "'round' is -1000000000"),
    ("fit", {"round": -2}, "round -2"),
    ("fit", {"round": 10**9}, "'round' is 1000000000"),
    ("fit", {"round": 3, "plan": PLAN}, "expected the same number"),
    ("fit", {"plan": {}}, "without a plan"),
    ("fit", {"run_id": "../../../etc"}, "'run_id' is '../../../etc'"),
    ("fit", {"run_id": "a" * 65}, "'run_id' is 'aaa"),
    ("fit", {"run_id": ...}, "'run_id' is missing"),
    ("fit", {"roster": []}, "'roster'"),
    ("fit", {"roster": ["site-1"] * 3}, "a site stands twice"),
    ("fit", {"roster": ["site-1", "../x"]}, "'roster.1' is '../x'"),
    ("fit", {"roster": ["site-2", "site-3"]}, "'site-1' is not in its roster"),
    ("fit", {"deadline": math.nan}, "'deadline' is nan"),
    ("fit", {"deadline": math.inf}, "'deadline' is inf"),
    ("fit", {"deadline": -1.0}, "'deadline' is -1.0"),
    ("fit", {"uplink": "int2"}, "'uplink' is 'int2'"),
    ("fit", {"downlink": "zip"}, "'downlink' is 'zip'"),
    ("fit", {"protection": "../plain"}, "'protection' is '../plain'"),
    ("fit", {"seed": 2**63}, "'seed'"),
    ("fit", {"surprise": 1}, "'surprise' is no field of it"),
    ("fit", {"plan": {**PLAN, "rounds": 0}}, "'rounds' is 0"),
    ("fit", {"plan": {**PLAN, "round": 9}, "round": 9}, "round 9 of 5 rounds"),
    ("fit", {"plan": {**PLAN, "steps": 0}}, "'steps' is 0"),
    ("fit", {"plan": {**PLAN, "fraction": 1.5}}, "'fraction' is 1.5"),
    ("fit", {"plan": {**PLAN, "limit": -1}}, "'limit' is -1"),
    ("fit", {"plan": {**PLAN, "totals": {}}}, "'totals' is no field of it"),
    ("fit", {"plan": {**PLAN, "hints": {"probe": -1}}}, "'hints.probe' is -1"),
    ("fit", {"plan": {**PLAN, "hints": {"secret": 1}}}, "'hints.secret' is no field of it"),
    ("fit", {"plan": {**PLAN, "hints": {"fedprox": {"mu": math.nan}}}}, "'hints.fedprox.mu' is nan"),
    ("fit", {"plan": {**PLAN, "hints": {"profiles": "moments"}}}, "sums of profiles in rounds before -1"),
    ("fit", {"options": {"folder": "/etc"}}, "'folder' is no field of it"),
    ("fit", {"options": {"canary": True}}, "a canary of 2 steps, expected 1"),
    ("fit", {"options": {"canary": 1}}, "'canary' is 1"),
    ("evaluate", {}, "'split' is missing"),
    ("evaluate", {"options": {"split": "../test"}}, "'split' is '../test'"),
    ("evaluate", {"options": {"split": "test"}, "round": -7}, "'evaluate' of round -7"),
    ("finish", {"options": {"folder": "/etc"}}, "'folder' is no field of it"),
    ("prepare", {"options": {"sites": 10**9}}, "'sites' is no field of it"),
    ("prepare", {"options": {"mixture": {"components": 10**6}}}, "'mixture.components' is 1000000"),
    ("prepare", {"round": 5}, "'prepare' of round 5"),
    ("initialise", {"round": 0}, "'initialise' of round 0"),
    ("sketch", {"round": -1, "options": {"held": {}, "exchange": "x", "growth": 0.1}}, "'exchange' is 'x'"),
    ("offer", {"round": -1, "options": {"partner": "../a", "elements": 1, "asks": True}}, "'partner'"),
    ("offer", {"round": -1, "options": {"partner": "a", "elements": -1, "asks": True}}, "'elements' is -1"),
    ("answer", {"round": -1, "options": {"partner": "a", "partners": ["a"]}}, "'partners' is no field of it"),
    ("keys", {"plan": STEP, "options": {"secure_sum": {}}}, "'secure_sum.terms' is missing"),
    ("shares", {"plan": STEP, "options": {"secure_sum": {"adverts": {"../a": {}}}}}, "secure_sum.adverts"),
    ("confirm", {"plan": STEP, "options": {"secure_sum": {"survivors": "all"}}}, "secure_sum.survivors"),
    ("reveal", {"plan": STEP, "options": {}}, "'secure_sum' is missing"),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """One site that was prepared as usual; returns what it says to a request."""
    with pytest.MonkeyPatch.context() as patch:
        from fed_harness import use_toy_sites

        use_toy_sites(patch)
        server = LyingServer(tmp_path_factory.mktemp("requests"))
        assert not server.send("site-1", "prepare").refused
        state = server.initial_state()

        def send(task: str, **changes: Any) -> Any:
            return server.send("site-1", task, state if task in ("fit", "evaluate") else {}, **changes)

        yield send
        server.close()


@pytest.mark.parametrize(("task", "changes", "text"), FIELDS)
def test_a_field_that_no_honest_server_sends_is_refused_in_words(
    said: Callable[..., Any], task: str, changes: dict[str, Any], text: str
) -> None:
    answer = said(task, **changes)
    assert answer.refused
    assert answer.failure["code"] == 23, answer.text
    assert text in answer.text


def test_a_protection_that_this_job_did_not_come_with_is_refused(said: Callable[..., Any]) -> None:
    answer = said("fit", protection="plain")
    assert answer.refused
    assert answer.failure["code"] == 2, answer.text
    assert "asks for protection 'plain', and this job came to this site with 'none'" in answer.text


@pytest.mark.parametrize(
    ("meta", "data", "text"),
    [
        ({}, {}, "holds no request (KeyError)"),
        ({REQUEST: "fit"}, {}, "cannot be read"),
        ({REQUEST: ["fit"]}, {}, "cannot be read"),
        (None, {"\x1b[2J": torch.ones(1)}, "a tensor's name is"),
        (None, {"w": [1.0, 2.0]}, "'w' is a list, expected a dense tensor"),
        (None, {"w": torch.ones(2, dtype=torch.complex64)}, "expected real numbers"),
    ],
)
def test_a_message_of_another_form_is_refused_in_words(
    lying_server: Servers, meta: dict[str, Any] | None, data: dict[str, Any], text: str
) -> None:
    from lying_server import request_fields

    server = lying_server()
    fields = {REQUEST: request_fields("fit")} if meta is None else meta
    message = DXO(DataKind.WEIGHTS if data else DataKind.APP_DEFINED, data=data, meta=fields).to_shareable()
    answer = server.send_raw("site-1", "fit", message)
    assert answer.failure["code"] == 23
    assert text in answer.text
    assert server.send_raw("site-1", "fit", Shareable()).refused


def test_a_task_of_another_name_than_flares_is_refused(lying_server: Servers) -> None:
    server = lying_server()
    server.prepare()
    assert "it is for 'initialise'" in server.send("site-1", "initialise", flare_task="evaluate").text


def test_a_job_id_is_no_path_at_a_site(lying_server: Servers, tmp_path: Path) -> None:
    server = lying_server()
    assert server.send("site-1", "prepare", job="../../outside").refused
    assert not list(tmp_path.rglob("outside*"))


def test_a_job_is_one_run_also_after_a_restart(lying_server: Servers) -> None:
    server = lying_server()
    server.prepare(run_id="run-1")
    state = server.initial_state(run_id="run-1")
    for change, text in (
        ({"run_id": "run-2"}, "the request's run_id is run-2; since its first 'prepare' this job has run-1"),
        ({"roster": ["site-1", "site-2"]}, "the request's roster is"),
        ({"seed": 7}, "the request's seed is 7"),
    ):
        assert text in server.send("site-1", "fit", state, **change).text
        assert text in server.send("site-1", "prepare", **change).text
    server.restart("site-1")
    assert "this job has run-1" in server.send("site-1", "prepare", run_id="run-2").text
    server.restart("site-1")
    assert not server.send("site-1", "prepare", job="another", run_id="run-2").refused


def test_nothing_comes_before_prepare(lying_server: Servers) -> None:
    server = lying_server()
    for task, options in (("evaluate", {"split": "train"}), ("finish", {}), ("initialise", {})):
        answer = server.send("site-1", task, options=options)
        assert f"'{task}' came before 'prepare'" in answer.text


def test_the_words_of_a_refusal_are_short_and_plain(lying_server: Servers) -> None:
    server = lying_server()
    answer = server.send("site-1", "prepare", run_id="\x1b[31m" * 10**6, **{"\x1b]0;title\x07": 1})
    assert answer.refused
    assert len(answer.text) < 2100
    assert answer.text.isprintable()
