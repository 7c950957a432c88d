# SPDX-License-Identifier: Apache-2.0
"""The models of messages fit the tables of tasks, and say the same as what writes the messages."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any, get_args

import pytest

from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.egress.declaration import FACTS as DECLARED
from medflare.egress.failures import MessageError
from medflare.protections.registry import PROTECTIONS
from medflare.protocol import messages, replies, requests
from medflare.protocol.strict_model import PROTECTION, json_problem
from medflare.wire.plan_codec import PlanMessage, plan_from_json, plan_to_json


def test_every_task_has_its_model_of_options_and_of_facts() -> None:
    assert set(requests.OPTIONS) == set(messages.TASKS) == set(get_args(requests.TaskName))
    assert set(replies.FACTS) == set(messages.TASKS)


@pytest.mark.parametrize("task", messages.TASKS)
def test_the_server_reads_the_facts_that_egress_lets_out(task: str) -> None:
    assert set(replies.FACTS[task].model_fields) == DECLARED[task]


def test_a_request_has_the_fields_of_its_model_and_a_plan_those_of_its_own() -> None:
    names = {item.name for item in fields(messages.Request)} - set(messages.NOT_IN_META)
    assert names == set(requests.RequestMessage.model_fields)
    assert set(PlanMessage.model_fields) == {item.name for item in fields(RoundPlan)} - {"totals"}
    assert all(re.fullmatch(PROTECTION, name) for name in PROTECTIONS)


def test_a_plan_comes_back_as_it_was_sent() -> None:
    plan = RoundPlan(round=2, rounds=4, fraction=0.5, hints=RoundHints(summed=(0, 2), loss_only=True))
    assert plan_from_json(plan_to_json(plan), {}) == plan


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, 2.0, None, True, "text\nin lines"]}, ""),
        ({"a": "x" * 2000}, "more than 1,000 bytes"),
        ({"a": [0] * 2000}, "more than 1,000 bytes"),
        (nested(100), "levels deep"),
        ({"a": {1: 2}}, "a key that is no plain text"),
        ({"a": {1, 2}}, "a set, which is not JSON"),
        ({"a": "\x1b[2J"}, "control characters"),
    ],
)
def test_plain_json_is_bounded(value: Any, problem: str) -> None:
    result = json_problem(value, 1000)
    assert problem in result
    assert bool(result) == bool(problem)


def test_a_refusal_names_three_problems_at_most() -> None:
    with pytest.raises(MessageError, match="and 7 more") as caught:
        requests.check_request({"task": "fit"}, "fit")
    assert len(str(caught.value)) < 500
