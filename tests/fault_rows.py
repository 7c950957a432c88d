# SPDX-License-Identifier: Apache-2.0
"""Rows of the fault table: what a test marked `fault` says of itself, and what it came to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest


def fault_rows(item: pytest.Item, report: pytest.TestReport) -> Iterator[dict[str, Any]]:
    """Yield a row for each marker `fault(what, phase=..., result=...)` of a test.

    Words in braces stand for parameters of the test, as pytest names their values.
    """
    callspec = getattr(item, "callspec", None)
    given: Mapping[str, Any] = callspec.params if callspec else {}
    for mark in item.iter_markers("fault"):
        texts = {"what": mark.args[0], "phase": mark.kwargs["phase"], "result": mark.kwargs["result"]}
        yield {
            **{name: _filled(text, given) for name, text in texts.items()},
            "test": item.nodeid,
            "outcome": report.outcome,
            "seconds": round(report.duration, 1),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
        }


def _filled(text: str, given: Mapping[str, Any]) -> str:
    for name, value in given.items():
        text = text.replace(f"{{{name}}}", _shown(value))
    return text


def _shown(value: Any) -> str:
    """Return a parameter as the table shows it."""
    if callable(value):
        return str(value.__name__)
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "whole" if value is None else str(value)
