# SPDX-License-Identifier: Apache-2.0
"""What a model is asked and learns, what is cut where a question is too long, and what it chooses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medflare.core.errors import ConfigError
from medflare.data.records import Question, Summary
from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.text_model import TextModel
from medflare.tasks.questions.answerer import CUT_OPTION, CUT_QUESTION, Answerer, OptionScores
from medflare.tasks.summaries.summariser import CUT, TOO_LONG, Summariser, WritingSettings

QUESTION = Question(
    question_id="q1",
    text="Which drug treats {gout}?",
    options=(("A", "salbutamol"), ("B", "colchicine"), ("C", "low dose acetylsalicylic acid")),
    answer="B",
)
SUMMARY = Summary(summary_id="s1", source="A large effusion. Heart normal.", target="Large effusion.")


@pytest.fixture(scope="module")
def model(tiny_backbone: Path) -> TextModel:
    return TextModel(load_backbone(tiny_backbone, "fp32"), LoraSettings(rank=2, lora_alpha=4), (GENERIC,), 0)


def answerer(
    model: TextModel, scoring: Any = "options", per_token: bool = False, longest: int = 200
) -> Answerer:
    return Answerer(model, scoring, per_token, longest, 4)


def text(model: TextModel, ids: tuple[int, ...]) -> str:
    return str(model.backbone.tokenizer.decode(ids, skip_special_tokens=True)).strip()


def test_options_are_scored_after_the_question_alone(model: TextModel) -> None:
    predictor = answerer(model)
    assert predictor.prompt(QUESTION) == "Question: Which drug treats {gout}?\nAnswer:"
    assert predictor.answers(QUESTION) == [" salbutamol", " colchicine", " low dose acetylsalicylic acid"]


def test_letters_are_scored_where_the_prompt_lists_the_options(model: TextModel) -> None:
    predictor = answerer(model, "letters")
    listed = "A. salbutamol\nB. colchicine\nC. low dose acetylsalicylic acid"
    assert predictor.prompt(QUESTION) == f"Question: Which drug treats {{gout}}?\n{listed}\nAnswer:"
    assert predictor.answers(QUESTION) == [" A", " B", " C"]


@pytest.mark.parametrize(("scoring", "learnt"), [("options", "colchicine"), ("letters", "B")])
def test_what_is_learnt_is_the_right_option_and_an_end_mark(
    model: TextModel, scoring: Any, learnt: str
) -> None:
    (row,), cut = answerer(model, scoring).rows([QUESTION])
    assert text(model, row.ids[row.start :]) == learnt
    assert row.ids[-1] == model.end
    assert not cut


def test_a_score_is_minus_the_loss_of_training_and_per_token_its_mean(model: TextModel) -> None:
    (row,), _ = answerer(model).rows([QUESTION])
    loss, tokens = model.loss([row])
    whole, mean = (answerer(model, per_token=each).score([QUESTION])[0].options[1] for each in (False, True))
    assert whole == pytest.approx(-loss.item(), abs=1e-4)
    assert mean == pytest.approx(-loss.item() / tokens, abs=1e-4)


def test_a_long_question_loses_its_beginning_and_is_counted(model: TextModel) -> None:
    long = replace(QUESTION, text="A long history. " * 60 + QUESTION.text)
    predictor = answerer(model, longest=64)
    one, whole = predictor.encode([long])[0], predictor.encode([QUESTION])[0]
    assert one.cuts == (CUT_QUESTION,)
    assert one.prompt[: len(model.begin)] == tuple(model.begin)
    assert len(one.prompt) + max(map(len, one.options)) == 64
    assert text(model, one.prompt).endswith(text(model, whole.prompt).removeprefix("Question: "))
    assert predictor.rows([long, QUESTION])[1] == {CUT_QUESTION: 1}


def test_an_option_takes_at_most_half_of_the_room_and_keeps_its_end_mark(model: TextModel) -> None:
    long = replace(QUESTION, options=(*QUESTION.options[:2], ("C", "very " * 80 + "low dose")))
    one = answerer(model, longest=64).encode([long])[0]
    assert CUT_OPTION in one.cuts
    assert max(map(len, one.options)) == 32
    assert all(ids[-1] == model.end for ids in one.options)


def test_of_equal_options_the_first_is_chosen() -> None:
    assert OptionScores((-2.0, -1.0, -1.0), ()).chosen == 1


def test_a_backbone_may_bring_its_own_wording(model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    custom = {"question_answering": {"options": "{question} =>"}, "summarisation": {"summary": "{source} =>"}}
    monkeypatch.setattr(model.backbone, "wordings", custom)
    assert answerer(model).prompt(QUESTION) == "Which drug treats {gout}? =>"
    prompts = Summariser(model, WritingSettings(), 200, 4).prompts([SUMMARY])
    assert text(model, tuple(prompts[0])) == "A large effusion. Heart normal. =>"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"letters": "{question} is"}, r"letters has no \{options\}"),
        ({"options": "What?"}, r"options has no \{question\}"),
        ({"essay": "{question}"}, "'essay', which nothing reads; expected 'options' and 'letters'"),
    ],
)
def test_a_wording_that_cannot_ask_is_refused(
    model: TextModel, monkeypatch: pytest.MonkeyPatch, words: dict[str, str], message: str
) -> None:
    monkeypatch.setattr(model.backbone, "wordings", {"question_answering": words})
    with pytest.raises(ConfigError, match=message):
        answerer(model)


# ---- summaries --------------------------------------------------------------------------------------------


def test_a_summary_is_learnt_after_its_source(model: TextModel) -> None:
    (row,), lost = Summariser(model, WritingSettings(), 200, 4).rows([SUMMARY])
    tokenizer = model.backbone.tokenizer
    assert (
        text(model, row.ids[: row.start])
        == tokenizer.decode(
            tokenizer("Findings: A large effusion. Heart normal.\nImpression:")["input_ids"],
            skip_special_tokens=True,
        ).strip()
    )
    assert text(model, row.ids[row.start :]) == "Large effusion."
    assert not lost


def test_long_sources_are_cut_and_long_targets_left_out_of_training(model: TextModel) -> None:
    summariser = Summariser(model, WritingSettings(max_new_tokens=8), 64, 4)
    long = replace(SUMMARY, source="Nothing new. " * 60 + SUMMARY.source)
    endless = replace(SUMMARY, target="Large effusion. " * 40)
    rows, lost = summariser.rows([SUMMARY, long, endless])
    assert [len(row.ids) <= 64 for row in rows] == [True, True]
    assert lost == {CUT: 1, TOO_LONG: 1}
    assert [one.cut for one in summariser.write([SUMMARY, long, endless])] == [False, True, False]


@pytest.mark.parametrize("beams", [1, 3])
def test_beams_write_within_their_budget_and_again_the_same(model: TextModel, beams: int) -> None:
    summariser = Summariser(model, WritingSettings(beams=beams, max_new_tokens=6), 200, 2)
    several = [SUMMARY, replace(SUMMARY, source="Clear lungs."), replace(SUMMARY, source="Mild edema.")]
    first, again = summariser.write(several), summariser.write(several)
    assert first == again
    assert all(len(model.backbone.tokenizer(one.text)["input_ids"]) <= 8 for one in first)
