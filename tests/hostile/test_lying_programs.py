# SPDX-License-Identifier: Apache-2.0
"""The hostile programs themselves: without a lie they are an ordinary server and an ordinary site."""

from __future__ import annotations

from collections.abc import Callable

import torch
from fed_harness import SITES, Federation
from lying_server import LyingServer
from lying_site import lying, scaled

ADAPTER = "adapter.base_model.model.layer.lora_A.weight"


def test_without_a_lie_the_server_runs_a_round(lying_server: Callable[..., LyingServer]) -> None:
    server = lying_server()
    assert not any(answer.refused for answer in server.prepare().values())
    state = server.initial_state()
    assert set(state) == {ADAPTER, "head.weight"}
    for site in SITES:
        answer = server.send(site, "fit", state)
        assert answer.failure == {}
        assert set(answer.tensors) == set(state)
        assert answer.facts["examples"] > 0


def test_a_site_that_restarts_answers_by_what_is_on_disk(lying_server: Callable[..., LyingServer]) -> None:
    server = lying_server()
    server.prepare()
    state = server.initial_state()
    server.restart("site-1")
    assert "nothing was declared yet" in server.send("site-1", "fit", state).text


def test_a_lie_reaches_the_rule(federation: Callable[..., Federation]) -> None:
    honest, lied = federation(), federation(tamper=lying("site-2", {"fit": scaled(0.5)}))
    for run in (honest, lied):
        record = run.run()
        assert record.status == "completed", record.reason
    ours, theirs = (torch.tensor(run.record().rounds[0].checks["update_norm"]) for run in (honest, lied))
    assert not torch.isclose(ours, theirs)
