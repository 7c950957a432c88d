# SPDX-License-Identifier: Apache-2.0
"""Extraction by a language model: prompts about windows of notes, and its outputs parsed into marks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pydantic import PositiveInt

from medflare.core.errors import ConfigError
from medflare.core.inventory import ENTITY_TYPES
from medflare.data.notes.word_offsets import locate_words
from medflare.data.records import Note
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.greedy_decoding import Guide
from medflare.models.text_model import Sequenced, TextModel
from medflare.models.text_result import ExportedText, TextResult
from medflare.tasks.extraction.copying import CopyWords
from medflare.tasks.extraction.examples import NER, Example, LostMarks, head_question
from medflare.tasks.extraction.markup import TRUNCATED, Mark, ParsedOutput
from medflare.tasks.extraction.predictor import Predictor, training_examples
from medflare.tasks.extraction.prompts import Decoding, ExtractionWording, Format, wording

TASK = "extraction"
MARKUP = 48
"""Tokens that an answer may take besides twice its text; short texts need them for their marks."""
END = 8
LOST = ("nested or crossing entity", "crossing modifier", "entity without words")
"""Kinds of `LostMarks` by which a mark is in no answer; others bend its borders."""
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
        decoding: "copy" allows nothing but copies and marks (ML-16), "free" whatever the model writes.

    Raises:
        ConfigError: `longest` leaves no room for text beside the prompt, or copying is not possible.
    """

    def __init__(
        self,
        model: TextModel,
        wording: ExtractionWording,
        sentences: int = 1,
        longest: int = 800,
        batch: int = 32,
        decoding: Decoding = "free",
    ) -> None:
        self.model, self.wording, self.batch, self.free = model, wording, batch, decoding == "free"
        self.longest = min(longest, model.context)
        self.copy_words = _copy_words(model, wording.format, decoding)
        around = max(len(ids) for ids in model.prompt_ids([wording.prompt(e) for e in _shortest()]))
        # a prompt holds its text once, an answer up to twice: hence a third of what is left
        room = (self.longest - around - MARKUP) // 3
        if room < LEAST:
            needed = around + MARKUP + 3 * LEAST
            takes = (
                f"a question alone takes up to {around} tokens and an answer twice its text and {MARKUP}, "
                f"{needed} for the shortest window of a note"
            )
            if model.context < needed:
                raise ConfigError(
                    f"backbone '{model.backbone.name}' has a context of {model.context} tokens, but {takes}. "
                    "Choose a model with a longer context, or shorten its wording in medflare_prompt.json."
                )
            raise ConfigError(f"max_tokens is {longest}, but {takes}. Set max_tokens to {needed} or more.")
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
        written = self.model.answer(prompts, budgets, self.batch, self._guides(examples))
        for example, answer in zip(examples, written, strict=True):
            output = self.wording.parse(answer.text, example)
            output.faults[TRUNCATED] += not answer.ended
            output.faults += Counter()  # drops kinds that did not occur
            outputs.append(output)
        return outputs

    def rows(self, notes: Sequence[Note]) -> tuple[list[Sequenced], Counter[str]]:
        """Return a row for each question about notes, within their tasks, and what of them no row holds."""
        losses, words = LostMarks(), self.wording
        examples, lost = training_examples(self, notes, losses)
        rows = self.model.sequences([words.prompt(e) for e in examples], [words.answer(e) for e in examples])
        kept = [row for row in rows if len(row.ids) <= self.longest]
        lost["example too long"] = len(rows) - len(kept)
        lost.update({reason: losses.counts[reason] for reason in LOST})
        return kept, +lost

    def _guides(self, examples: Sequence[Example]) -> list[Guide] | None:
        """Return what is known of each answer before it is written."""
        if self.copy_words is None:
            return None
        return [self.copy_words.guide(e.source, e.types, free=self.free) for e in examples]


def _copy_words(model: TextModel, format: Format, decoding: Decoding) -> CopyWords | None:
    """Return how a model copies; None where it writes freely in a form that cannot be foreseen."""
    if decoding == "copy" and format != "html":
        raise ConfigError(
            f"settings.decoding 'copy' copies the text with marks in it, and settings.format '{format}' has "
            "none. Set format to 'html', or decoding to 'free'."
        )
    table = model.token_table if format == "html" else None
    if decoding == "copy" and table is None:
        raise ConfigError(
            f"settings.decoding 'copy' needs a byte-level or SentencePiece vocabulary, and backbone "
            f"'{model.backbone.name}' has another. Set settings.decoding to 'free'."
        )
    return None if table is None else CopyWords(model, table)


def _shortest() -> list[Example]:
    """Return one example of every kind, about a text of one word."""
    source = locate_words("x")
    heads = [head_question("", source, Mark(label, (0, 1))) for label in ENTITY_TYPES]
    return [Example(note_id="", task=NER, source=source), *heads]


class ExportedExtraction(ExportedText):
    """The `extraction` block of extraction.json."""

    format: Format
    sentences: PositiveInt
    decoding: Decoding = "free"


def _build(model: TextModel, exported: ExportedExtraction, batch: int) -> Extractor:
    words = wording(model.backbone.extraction, exported.format)
    return Extractor(model, words, exported.sentences, exported.max_tokens, batch, exported.decoding)


load_extractor = TextResult(TASK, ExportedExtraction, _build)
"""Opens what a Fed-MedLoRA run made: a PEFT folder with `extraction.json` beside it."""


def base_extractor(exported: ExportedExtraction, batch: int = 32) -> Extractor:
    """Return a zero-shot extractor: the embedded model with an adapter that adds nothing (B = 0)."""
    base = load_backbone(None, "auto", "cpu", "notes_decoder")
    return _build(TextModel(base, exported.lora, (GENERIC,), 0), exported, batch)
