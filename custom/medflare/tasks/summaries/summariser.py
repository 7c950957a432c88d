# SPDX-License-Identifier: Apache-2.0
"""Summaries by a text model: findings in, impression out (DDCS).

The wording is our own; a backbone folder may bring its own in `medflare_prompt.json` under `summarisation`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from medflare.core.config import Settings
from medflare.data.records import Summary
from medflare.models.templates import filled, worded
from medflare.models.text_model import Sequenced, TextModel
from medflare.models.text_result import ExportedText, TextResult
from medflare.tasks.truncation import keep_end

TASK = "summarisation"
KIND = "summary"
WORDING: dict[str, str] = {KIND: "Findings: {source}\nImpression:"}
NEEDED: dict[str, tuple[str, ...]] = {KIND: ("source",)}
CUT, TOO_LONG = "source cut at its front", "target too long to learn from"


class WritingSettings(Settings):
    """Decoding settings of a summary."""

    beams: int = Field(default=1, ge=1, description="1 is greedy")
    max_new_tokens: int = Field(default=80, ge=1, description="of a summary")


@dataclass(frozen=True, slots=True)
class GeneratedSummary:
    """A text of the model; whether it ended by itself, and whether the source had to be cut."""

    text: str
    ended: bool
    cut: bool


class Summariser:
    """Writes summaries with the adapter that is in use.

    Args:
        max_tokens: of a prompt with its summary; a longer prompt loses its beginning, which is counted.
        batch: texts at once.
    """

    def __init__(self, model: TextModel, writing: WritingSettings, max_tokens: int, batch: int) -> None:
        self.model, self.writing, self.batch = model, writing, batch
        wording: Mapping[str, str] | None = model.backbone.wordings.get(TASK)
        self.template = worded(TASK, wording, WORDING, NEEDED)[KIND]
        self.longest = min(max_tokens, model.context)

    def prompts(self, summaries: Sequence[Summary]) -> list[list[int]]:
        """Return token ids of the prompts; the model continues at their end."""
        return self.model.prompt_ids([filled(self.template, {"source": s.source}) for s in summaries])

    def rows(self, summaries: Sequence[Summary]) -> tuple[list[Sequenced], Counter[str]]:
        """Return each source with its target, to train on; kind -> how many were cut or left out.

        A target that takes more than half of the room is left out: it would be learnt without its source.
        """
        targets = self.model.answer_ids([f" {summary.target}" for summary in summaries])
        rows, lost = [], Counter[str]()
        for prompt, target in zip(self.prompts(summaries), targets, strict=True):
            if len(target) > self.longest // 2:
                lost[TOO_LONG] += 1
                continue
            kept = keep_end(prompt, self.longest - len(target), self.model.begin)
            lost[CUT] += len(kept) < len(prompt)
            rows.append(Sequenced((*kept, *target), len(kept)))
        return rows, +lost

    def write(self, summaries: Sequence[Summary]) -> list[GeneratedSummary]:
        """Return a summary of each source."""
        budget = min(self.writing.max_new_tokens, self.longest // 2)
        prompts = self.prompts(summaries)
        kept = [list(keep_end(prompt, self.longest - budget, self.model.begin)) for prompt in prompts]
        written = self.model.continue_prompts(kept, [budget] * len(kept), self.batch, self.writing.beams)
        return [
            GeneratedSummary(one.text.strip(), one.ended, len(ids) < len(prompt))
            for one, ids, prompt in zip(written, kept, prompts, strict=True)
        ]


class ExportedSummaries(ExportedText):
    """The block of summarisation.json."""

    writing: WritingSettings


def _build(model: TextModel, exported: ExportedSummaries, batch: int) -> Summariser:
    return Summariser(model, exported.writing, exported.max_tokens, batch)


load_summariser = TextResult(TASK, ExportedSummaries, _build)
"""Opens the result folder of a run that summarises."""
