# SPDX-License-Identifier: Apache-2.0
"""From a site's texts to triples by the site's own language model.

Texts go to a model on this machine and nowhere else. Whether a model can do it is the model's affair: the
embedded decoders cannot, and the counts of an extraction say so.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from medflare.core.errors import ConfigError
from medflare.data.notes.sentences import sentences
from medflare.knowledge.rule_extraction import chunks
from medflare.knowledge.triple_parsing import KNOWN, read_answer
from medflare.knowledge.triples import Triple
from medflare.models.plain_text import GreedyAnswer, PlainText

_log = logging.getLogger(__name__)

PROMPT = (
    "### Task\nList the medical facts of the text, one in each line, as\nhead | relation | tail\n"
    "Heads and tails are words of the text, or patient. Relations: {relations}. "
    "Write none if there is no fact.\n\n### Text\n{text}\n\n### Facts\n"
)
CUT = "answer cut short"


class ModelExtractor:
    """Asks a model chunk by chunk.

    Args:
        most: tokens of an answer.
        batch: prompts at a time.

    Attributes:
        counts: chunks asked, triples kept, and what was left out, over all calls.
    """

    def __init__(self, model: PlainText, most: int = 256, batch: int = 4) -> None:
        self.model, self.most, self.batch = model, most, batch
        self.counts: Counter[str] = Counter()
        self._room = model.context - most - len(model.ids(prompt("")))
        if self._room < 32:
            raise ConfigError(
                f"backbone '{model.backbone.name}' has {model.context} positions: {self._room} are left for "
                "a text beside question and answer, and 32 are the least. Take `extractor: rules`, fewer "
                "`answer_tokens`, or a backbone with a longer context."
            )

    def triples(self, texts: Iterable[str], *, of_patients: bool = True) -> list[tuple[Triple, float]]:
        """Return (triple in the text's words, confidence) of many texts.

        Confidence is the geometric mean of the probabilities of a line's tokens. It says how sure the model
        was of its wording, and is not calibrated.

        Args:
            of_patients: whether the texts speak of patients, as `RuleExtractor.triples`.
        """
        pieces = [piece for text in texts for chunk in chunks(text) for piece in self._fitting(chunk)]
        answers = self.model.write([prompt(piece) for piece in pieces], self.most, self.batch)
        triples = [
            item
            for piece, spoken in zip(pieces, answers, strict=True)
            for item in self._triples_of_answer(piece, spoken, of_patients)
        ]
        self.counts["chunks"] += len(pieces)
        self.counts["triples"] += len(triples)
        _log.info("Extraction by %s: %s", self.model.backbone.name, dict(self.counts))
        return triples

    def _triples_of_answer(
        self, piece: str, spoken: GreedyAnswer, of_patient: bool
    ) -> Iterator[tuple[Triple, float]]:
        text = spoken.text
        if not spoken.ended:  # a line that was cut may name half a word
            self.counts[CUT] += 1
            text = text[: text.rfind("\n") + 1]
        for triple, start, end in read_answer(text, piece, self.counts, of_patient=of_patient):
            yield triple, self.model.confidence(spoken, start, end)

    def _fitting(self, chunk: str) -> Iterator[str]:
        """Yield a chunk, or where it is too long as many of its sentences at a time as fit."""
        if self._size(chunk) <= self._room:
            yield chunk
            return
        piece = ""
        for start, end in sentences(chunk):
            longer = f"{piece} {chunk[start:end]}".strip()
            if piece and self._size(longer) > self._room:
                yield self._head(piece)
                longer = chunk[start:end]
            piece = longer
        if piece:
            yield self._head(piece)

    def _head(self, text: str) -> str:
        """Return a text, or of a single sentence that is too long as much as fits."""
        while self._size(text) > self._room:
            text = text[: len(text) * 9 // 10]
        return text

    def _size(self, text: str) -> int:
        return len(self.model.ids(text))


def prompt(text: str) -> str:
    """Return the question about a text; a model writes on from its end."""
    return PROMPT.replace("{relations}", ", ".join(KNOWN)).replace("{text}", text, 1)
