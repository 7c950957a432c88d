# SPDX-License-Identifier: Apache-2.0
"""Extraction by a language model: prompts about windows of notes, and its outputs parsed into marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES
from medflare.data.notes.word_offsets import locate_words
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.text_model import TextModel
from medflare.models.text_result import ExportedText, TextResult
from medflare.tasks.extraction.examples import NER, Example, head_question
from medflare.tasks.extraction.markup import TRUNCATED, Mark, ParsedOutput
from medflare.tasks.extraction.predictor import Predictor
from medflare.tasks.extraction.prompts import ExtractionWording, Format, wording

TASK = "extraction"
MARKUP = 48
"""Tokens that an answer may take besides twice its text; short texts need them for their marks."""
END = 8
MARKS = {
    "html": ('<span class="reference_range">', "</span>"),
    "json": ('{"entity": "reference_range", "text": "', '"}, '),
}
"""Text that an answer adds for one mark; its budget allows for a mark on every second word."""
LEAST = 16
"""Tokens of text below which a window is of no use."""


class Extractor(Predictor):
    """A text model with its wording, and how notes are cut.

    Args:
        sentences: of a window; longest: most tokens of a prompt and its answer.
        batch: prompts of one batch.

    Raises:
        ConfigError: `longest` leaves no room for text beside the prompt.
    """

    def __init__(
        self,
        model: TextModel,
        wording: ExtractionWording,
        sentences: int = 1,
        longest: int = 800,
        batch: int = 32,
    ) -> None:
        self.model, self.wording, self.batch = model, wording, batch
        around = max(len(ids) for ids in model.prompt_ids([wording.prompt(e) for e in _shortest()]))
        # a prompt holds its text once, an answer up to twice: hence a third of what is left
        longest = min(longest, model.context)
        room = (longest - around - MARKUP) // 3
        if room < LEAST:
            raise ConfigError(
                f"max_tokens is {longest}, but a question alone takes up to {around} tokens and an answer "
                f"twice its text and {MARKUP}. Set max_tokens to {around + MARKUP + 3 * LEAST} or more."
            )
        self.mark = sum(self._lengths(list(MARKS[wording.format])))
        super().__init__(sentences, room)

    def count_tokens(self, text: str) -> int:
        return self._lengths([locate_words(text).text])[0]

    def _lengths(self, texts: list[str]) -> list[int]:
        token_ids = self.model.backbone.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return [len(ids) for ids in token_ids]

    def predict(self, examples: Sequence[Example]) -> list[ParsedOutput]:
        """Return one parsed output for each example; an answer that did not end in time is a fault."""
        if not examples:
            return []
        prompts = [self.wording.prompt(example) for example in examples]
        sizes = self._lengths([example.source.text for example in examples])
        budgets = [
            size + END + self.mark * ((len(example.source.words) + 1) // 2)
            for size, example in zip(sizes, examples, strict=True)
        ]
        outputs = []
        written = self.model.answer(prompts, budgets, self.batch)
        for example, answer in zip(examples, written, strict=True):
            output = self.wording.parse(answer.text, example)
            output.faults[TRUNCATED] += not answer.ended
            output.faults += Counter()  # drops kinds that did not occur
            outputs.append(output)
        return outputs


def _shortest() -> list[Example]:
    """Return one example of every kind, about a text of one word."""
    source = locate_words("x")
    heads = [head_question("", source, Mark(label, (0, 1))) for label in ENTITY_TYPES]
    return [Example(note_id="", task=NER, source=source), *heads]


class ExportedExtraction(ExportedText):
    """The `extraction` block of extraction.json."""

    format: Format
    sentences: int


def _build(model: TextModel, exported: ExportedExtraction, batch: int) -> Extractor:
    words = wording(model.backbone.extraction, exported.format)
    return Extractor(model, words, exported.sentences, exported.max_tokens, batch)


load_extractor = TextResult(TASK, ExportedExtraction, _build)
"""Opens what a Fed-MedLoRA run made: a PEFT folder with `extraction.json` beside it."""


def base_extractor(exported: ExportedExtraction, batch: int = 32) -> Extractor:
    """Return a zero-shot extractor: the embedded model with an adapter that adds nothing (B = 0)."""
    base = load_backbone(None, "auto", "cpu", "notes_decoder")
    return _build(TextModel(base, exported.lora, (GENERIC,), 0), exported, batch)
