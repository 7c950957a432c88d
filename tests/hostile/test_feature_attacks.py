# SPDX-License-Identifier: Apache-2.0
"""A job that sends features of images: of single ones, or means over very few."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fed_harness import SITES, Federation, allow
from lying_server import LyingServer

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.federation.site import executor

Asked = Callable[..., LyingServer]


@pytest.fixture
def asked(lying_server: Callable[..., LyingServer], monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A server whose job sends features, at sites with the given rules."""

    def make(sent: str, **rules: Any) -> LyingServer:
        allow(monkeypatch, **rules)
        return lying_server(settings={"features": sent})

    return make


@pytest.mark.parametrize("features", ["raw", "prototypes"])
def test_under_the_default_policy_no_feature_of_an_image_leaves(asked: Asked, features: str) -> None:
    """Issue 15, H3: the job alone decided it."""
    server = asked(features)
    answers = server.prepare()
    assert all(
        f"write 'features: {features}' under 'policy' in site.yaml" in a.text for a in answers.values()
    )
    answer = server.send("site-1", "fit", server.initial_state())
    assert answer.refused
    assert not answer.tensors


def test_raw_features_need_their_own_yes(asked: Asked) -> None:
    assert all(
        "policy.features: features of images stay here (raw asked for, prototypes allowed)" in answer.text
        for answer in asked("raw", features="prototypes").prepare().values()
    )
    server = asked("raw", features="raw")
    assert not any(answer.refused for answer in server.prepare().values())
    assert "sum:features.raw.rows" in server.send("site-1", "fit", server.initial_state()).tensors


def test_a_prototype_of_one_image_stays_whatever_the_jobs_k_min(asked: Asked) -> None:
    for least, refused in ((16, True), (2, True)):
        server = asked("prototypes", features="prototypes", min_prototype=least)
        server.prepare()
        answer = server.send("site-1", "fit", server.initial_state())
        assert answer.refused is refused
        assert f"policy.min_prototype: a prototype is of fewer than {least} images" in answer.text
        assert not answer.tensors


def test_a_rule_that_changes_during_a_run_holds_at_once(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = asked("raw", features="raw")
    server.prepare()
    state = server.initial_state()
    assert not server.send("site-1", "fit", state).refused
    allow(monkeypatch)
    assert "policy.features" in server.send("site-1", "fit", state, round=1).text


def test_a_site_that_says_no_costs_itself_the_run_and_nobody_else(
    federation: Callable[..., Federation], monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed = Policy(rules=PolicyConfig(features="raw"))
    monkeypatch.setattr(
        executor, "policy_of", lambda config, before: Policy() if config.site == "site-2" else agreed
    )
    run = federation(settings={"features": "raw"}, controller={"min_responses": 2})
    record = run.run()
    assert record.status == "completed", record.reason
    assert sorted(record.rounds[0].accepted) == [SITES[0], SITES[2]]
    assert "policy.features" in record.rounds[0].absent["site-2"]
