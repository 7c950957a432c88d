# SPDX-License-Identifier: Apache-2.0
"""A draft that goes in circles is told from one that repeats a word for style."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from medflare.core.origin import Origin
from medflare.models.report_generator import DecodingSettings
from medflare.tasks.reports.drafting import OpenedImage, draft_images
from medflare.tasks.reports.repetition import repetition


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("chest radiograph " + "radiograph " * 24, "'radiograph' is repeated"),
        ("No effusion. " * 4, "'no effusion.' is repeated"),
        ("the left lung is " * 5, "'the left lung is' is repeated"),
        ("." * 110, "'.' is repeated 10 times or more"),
        ("- " * 12, "'-' is repeated 10 times or more"),
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
        "Nodule .... 4 mm. ---- Impression: stable.",
        "No effusion. No pneumothorax. No effusion. No pneumothorax. No effusion.",
        "The heart is normal in size. The lungs are clear. There is no pleural effusion or pneumothorax. The "
        "bones are unremarkable. No acute cardiopulmonary process. The mediastinum is within normal limits.",
    ],
)
def test_a_report_does_not(text: str) -> None:
    assert repetition(text) is None


@pytest.mark.parametrize(("text", "doubts"), [("", 1), ("...", 1), ("." * 110, 2), ("Lungs clear.", 0)])
def test_a_draft_without_words_says_so(text: str, doubts: int) -> None:
    """A model that was hardly trained writes full stops."""

    class Writer:
        settings = SimpleNamespace(encoder=SimpleNamespace(image_size=4), prompts=False)
        device = "cpu"
        evaluating = staticmethod(nullcontext)
        generate = staticmethod(lambda pixels, decoding: ([text], torch.zeros(1, 14, dtype=torch.long)))

    image = OpenedImage(
        path=Path("a.png"), name="a", pixels=torch.zeros(1, 1, 4, 4), warnings=(), plausibility=None
    )
    (draft,) = draft_images(cast(Any, Writer()), DecodingSettings(), [image], Origin(adapter="a"))
    assert len(draft.warnings) == doubts
    assert ("the draft has no words" in draft.warnings) == (doubts > 0)
