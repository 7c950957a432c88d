# SPDX-License-Identifier: Apache-2.0
"""Galleries of questions and of summaries."""

from __future__ import annotations

from pathlib import Path

import pytest
from page_reader import gallery_html, read_html

from record_builders import GENERATED, QUESTIONS, REFERENCES, answered, written_for

FILE = Path("predictions.jsonl")
SUMMARIES = written_for(REFERENCES, GENERATED)


def test_the_page_shows_right_and_wrong_answers_and_escapes_them() -> None:
    shown = gallery_html("questions", [(FILE, QUESTIONS)], 4)
    assert "north: 4 of 4 questions" in shown
    assert shown.count("chosen, right") == 3
    assert shown.count("chosen, wrong") == 1
    assert "Which &lt;drug&gt;?" in shown
    assert "Did not fit whole: question cut at its front." in shown


def test_adapters_are_named_where_there_are_several() -> None:
    files = [(FILE, [answered(1, "A", "A")]), (FILE, [answered(1, "A", "A", adapter="personalised")])]
    shown = read_html(gallery_html("questions", files, 4)).text
    assert "north, generic adapter: 1 of 1 questions" in shown
    assert "north, personalised adapter: 1 of 1 questions" in shown


def test_the_page_shows_source_reference_and_generated_side_by_side() -> None:
    shown = gallery_html("summaries", [(FILE, SUMMARIES)], 3)
    assert "north: 3 of 3 texts" in shown
    for word in ("Source", "Reference", "Generated", "The &lt;heart&gt;", "(empty)", "did not end within"):
        assert word in shown
    assert shown.index("ROUGE-L 100") < shown.index("ROUGE-L 0"), "good ones first"


@pytest.mark.parametrize(("task", "items"), [("questions", QUESTIONS), ("summaries", SUMMARIES)])
def test_without_predictions_or_with_an_empty_gallery_nothing_is_shown(task: str, items: list) -> None:
    assert gallery_html(task, [], 4) == gallery_html(task, [(FILE, items)], 0) == ""
