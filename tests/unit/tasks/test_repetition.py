# SPDX-License-Identifier: Apache-2.0
"""A draft that goes in circles is told from one that repeats a word for style."""

from __future__ import annotations

import pytest

from medflare.tasks.reports.repetition import repetition


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("chest radiograph " + "radiograph " * 24, "'radiograph' is repeated"),
        ("No effusion. " * 4, "'no effusion.' is repeated"),
        ("the left lung is " * 5, "'the left lung is' is repeated"),
        (" ".join("abcde"[int(digit) % 5] for digit in str(2**200)), "different words in 61"),
    ],
)
def test_what_goes_in_circles_is_named(text: str, found: str) -> None:
    assert found in str(repetition(text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Clear, clear, clear.",
        "No effusion. No pneumothorax. No effusion. No pneumothorax. No effusion.",
        "The heart is normal in size. The lungs are clear. There is no pleural effusion or pneumothorax. The "
        "bones are unremarkable. No acute cardiopulmonary process. The mediastinum is within normal limits.",
    ],
)
def test_a_report_does_not(text: str) -> None:
    assert repetition(text) is None
