"""What `tools/golden_runs.py` takes for a difference of two recordings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tools.golden_runs import differences, messages

METRICS = {"loss": 0.04713078960776329, "tokens": 43473.0, "rounds": 3}

EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "a renamed key": ({"grace": 60.0}, {"straggler_timeout": 60.0}, 0),
    "a key that the old one may lack": ({}, {"max_share": 0.8}, 0),
    "what differs from run to run": ({"run_id": "a", "seconds": 1.0}, {"run_id": "b", "seconds": 2.0}, 0),
    "rounding, where it is allowed for": (METRICS, METRICS | {"loss": 0.0471308}, 6),
}


@pytest.mark.parametrize("case", EQUAL)
def test_no_difference(case: str) -> None:
    before, after, digits = EQUAL[case]
    assert differences(before, after, digits) == []


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "a missing leaf": ({"a": {"b": 1}}, {"a": {}}, 0, "missing  /a/b: 1"),
    "a new leaf": ({}, {"list": [2]}, 0, "new      /list/0: 2"),
    "another value of a renamed key": (
        {"grace": 60.0},
        {"straggler_timeout": 30.0},
        0,
        "changed  /straggler_timeout: 60.0 -> 30.0",
    ),
    "the last bit": ({"x": 0.1 + 0.2}, {"x": 0.3}, 0, "changed  /x: 0.30000000000000004 -> 0.3"),
    "the sixth digit": ({"x": 4.691312}, {"x": 4.69121}, 6, "changed  /x: 4.691312 -> 4.69121"),
    "a count, to whichever digits": ({"x": 43473.0}, {"x": 43470.0}, 2, "changed  /x: 43473.0 -> 43470.0"),
    "a digest": ({"x": "0a"}, {"x": "0b"}, 6, "changed  /x: '0a' -> '0b'"),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference(case: str) -> None:
    before, after, digits, line = DIFFERENT[case]
    assert differences(before, after, digits) == [line]


def test_messages_are_compared_by_digest_unless_a_protection_makes_them_random() -> None:
    line = {"event": "sent", "round": 0, "task": "fit", "sha256": "a55f4b957a7914f23f03", "protections": []}
    ledger = "\n".join(json.dumps(each) for each in (line, line | {"protections": ["mask"]}))
    assert list(messages(ledger)) == ["sent 0 fit a55f4b957a7914f2", "sent 0 fit protected"]
