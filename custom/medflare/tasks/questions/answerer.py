# SPDX-License-Identifier: Apache-2.0
"""Multiple-choice questions by a text model: training rows, and the log-likelihood of every option.

DDCS evaluates accuracy by the log-likelihood of options. The wording is our own; a
backbone folder may bring its own in `medflare_prompt.json` under `question_answering`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from medflare.data.records import Question
from medflare.models.continuations import log_likelihoods
from medflare.models.templates import filled, worded
from medflare.models.text_model import Sequenced, TextModel
from medflare.models.text_result import ExportedText, TextResult
from medflare.tasks.truncation import keep_end

Scoring = Literal["options", "letters"]
TokenTuple = tuple[int, ...]

TASK = "question_answering"
WORDING: dict[str, str] = {
    "options": "Question: {question}\nAnswer:",
    "letters": "Question: {question}\n{options}\nAnswer:",
}
NEEDED: dict[str, tuple[str, ...]] = {"options": ("question",), "letters": ("question", "options")}
CUT_QUESTION, CUT_OPTION = "question cut at its front", "option cut at its end"


@dataclass(frozen=True, slots=True)
class EncodedQuestion:
    """Token ids of a question's prompt and of its options, each option with the end mark."""

    prompt: TokenTuple
    options: tuple[TokenTuple, ...]
    right: int
    cuts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OptionScores:
    """The model's score of every option of a question, in the options' order."""

    options: tuple[float, ...]
    cuts: tuple[str, ...]

    @property
    def chosen(self) -> int:
        """Index of the likeliest option; of equal ones the first."""
        return max(range(len(self.options)), key=lambda i: self.options[i])


class Answerer:
    """Answers multiple-choice questions with the adapter that is in use.

    Args:
        scoring: `options`: the prompt is the question, and each option's text is scored after it. `letters`:
            the prompt lists the options, and their letters are scored.
        per_token: mean log-likelihood of an option's tokens in place of their sum; long options are less
            likely than short ones whatever they say.
        max_tokens: of a prompt with an option; a longer prompt loses its beginning, which is counted.
        batch: questions of one batch.
    """

    def __init__(
        self, model: TextModel, scoring: Scoring, per_token: bool, max_tokens: int, batch: int
    ) -> None:
        self.model, self.scoring, self.per_token, self.batch = model, scoring, per_token, batch
        wording: Mapping[str, str] | None = model.backbone.wordings.get(TASK)
        self.template = worded(TASK, wording, WORDING, NEEDED)[scoring]
        self.longest = min(max_tokens, model.context)

    def prompt(self, question: Question) -> str:
        """Return the prompt; the model continues at its end."""
        listed = "\n".join(f"{letter}. {text}" for letter, text in question.options)
        return filled(self.template, {"question": question.text, "options": listed})

    def answers(self, question: Question) -> list[str]:
        """Return what could follow the prompt, in the options' order."""
        return [f" {letter if self.scoring == 'letters' else text}" for letter, text in question.options]

    def encode(self, questions: Sequence[Question]) -> list[EncodedQuestion]:
        """Return token ids of all prompts and options, truncated where they do not fit together.

        The prompt is cut at its front, and an option that alone takes more than half of the room at its end.
        """
        prompts = self.model.prompt_ids([self.prompt(question) for question in questions])
        texts = [text for question in questions for text in self.answers(question)]
        ids = iter(self.model.answer_ids(texts))
        return [
            self._truncated(prompt, [next(ids) for _ in question.options], question)
            for prompt, question in zip(prompts, questions, strict=True)
        ]

    def _truncated(self, prompt: list[int], options: list[list[int]], question: Question) -> EncodedQuestion:
        most, cuts = self.longest // 2, []
        if any(len(ids) > most for ids in options):
            cuts.append(CUT_OPTION)
            options = [ids if len(ids) <= most else [*ids[: most - 1], ids[-1]] for ids in options]
        room = self.longest - max(map(len, options))
        if len(prompt) > room:
            cuts.append(CUT_QUESTION)
        right = [letter for letter, _ in question.options].index(question.answer)
        return EncodedQuestion(
            keep_end(prompt, room, self.model.begin), tuple(map(tuple, options)), right, tuple(cuts)
        )

    def rows(self, questions: Sequence[Question]) -> tuple[list[Sequenced], Counter[str]]:
        """Return each question with its right option, to train on; kind -> how many were cut."""
        encoded = self.encode(questions)
        rows = [Sequenced((*one.prompt, *one.options[one.right]), len(one.prompt)) for one in encoded]
        return rows, Counter(cut for one in encoded for cut in one.cuts)

    def score(self, questions: Sequence[Question]) -> list[OptionScores]:
        """Return the log-likelihood of every option and its end mark: minus the loss of training."""
        encoded = self.encode(questions)
        sums = log_likelihoods(
            self.model, [one.prompt for one in encoded], [one.options for one in encoded], self.batch
        )
        return [
            OptionScores(self._per_length(values, one.options), one.cuts)
            for one, values in zip(encoded, sums, strict=True)
        ]

    def _per_length(self, sums: Sequence[float], options: Sequence[TokenTuple]) -> tuple[float, ...]:
        lengths = [len(ids) if self.per_token else 1 for ids in options]
        return tuple(value / length for value, length in zip(sums, lengths, strict=True))


class ExportedQuestions(ExportedText):
    """The block of question_answering.json."""

    scoring: Scoring
    per_token: bool


def _build(model: TextModel, exported: ExportedQuestions, batch: int) -> Answerer:
    return Answerer(model, exported.scoring, exported.per_token, exported.max_tokens, batch)


load_answerer = TextResult(TASK, ExportedQuestions, _build)
"""Opens the result folder of a run that answers questions."""
