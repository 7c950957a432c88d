# SPDX-License-Identifier: Apache-2.0
"""A BERT-like encoder that tags words: the encoder baseline of Fed-MedLoRA.

Two linear heads on one encoder: B, I, O over the entity types, and B, I, O over the modifiers of one head,
which the input shows between two marks. The marks are rows of their own and not tokens of the vocabulary: so
any encoder folder does, also one without segment ids (RoBERTa), and its tokenizer stays as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.seeds import seeded
from medflare.models.backbone import autocast
from medflare.models.encoder_folder import TextEncoder
from medflare.models.evaluation_mode import EvaluatedModule
from medflare.models.padding import batches_by_length, pad_rows

TYPES: dict[str, tuple[str, ...]] = {"ner": ENTITY_TYPES, "re": MODIFIER_TYPES}
"""Head -> types that it distinguishes; tag 0 is O, 2k + 1 begins a span of type k, 2k + 2 continues it."""
OUTSIDE = 0


@dataclass(frozen=True, slots=True)
class Tagged:
    """A question as numbers.

    Attributes:
        task: a key of TYPES; types: which of them an answer may hold.
        ids: pieces and marks; firsts: for each word the place of its first piece, -1 where it has none.
        tags: the gold tag of each word; () where it is asked for.
    """

    task: str
    types: tuple[str, ...]
    ids: tuple[int, ...]
    firsts: tuple[int, ...]
    tags: tuple[int, ...] = ()


class Tagger(EvaluatedModule):
    """An encoder with one tag head a task; knows no data and no federation.

    Parameters: `encoder.*`, `heads.*` and `marks.weight`.

    Args:
        freeze_words: leave the table of word embeddings as it is; then it neither learns nor is communicated.
        seed: of heads, and of marks, which start near the embedding of their type's name.
    """

    def __init__(self, text: TextEncoder, freeze_words: bool, seed: int) -> None:
        super().__init__()
        self.text, self.encoder = text, text.model
        words = text.model.get_input_embeddings()
        self.vocabulary = int(words.num_embeddings)
        with seeded(seed):
            width = int(text.model.config.hidden_size)
            self.heads = nn.ModuleDict({t: nn.Linear(width, 2 * len(n) + 1) for t, n in TYPES.items()})
            self.marks = nn.Embedding(len(ENTITY_TYPES) + 1, int(words.embedding_dim))
            nn.init.normal_(self.marks.weight, std=0.02)
        with torch.no_grad():
            for row, name in enumerate(ENTITY_TYPES):
                self.marks.weight[row] += words.weight[self.pieces([[name]])[0][0]].mean(0)
        words.weight.requires_grad_(not freeze_words)
        self.dropout = nn.Dropout(0.1)
        self.to(text.device)

    # ---- words to token ids ------------------------------------------------------------------------------

    def pieces(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the token ids of each word of each text; a word that the tokenizer drops has none."""
        if not texts:
            return []
        encoded = self.text.tokenizer(
            [" ".join(words) for words in texts], add_special_tokens=False, return_offsets_mapping=True
        )
        rows = []
        for words, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
            # words are joined by one space; a token belongs to the word in which its last character lies
            ends = [end - 1 for end in accumulate(len(word) + 1 for word in words)]
            row: list[list[int]] = [[] for _ in words]
            for number, (_, end) in zip(ids, offsets, strict=True):
                row[bisect_right(ends, max(end - 1, 0))].append(number)
            rows.append(row)
        return rows

    def tagged(
        self,
        task: str,
        types: tuple[str, ...],
        pieces: Sequence[Sequence[int]],
        head: tuple[str, tuple[int, int]] | None = None,
        tags: Sequence[int] = (),
    ) -> Tagged:
        """Return a model input; `head` is the type and the words [first, last) to put between marks."""
        ids, firsts = [self.text.begin], []
        for place, numbers in enumerate(pieces):
            if head is not None and place == head[1][0]:
                ids.append(self.vocabulary + ENTITY_TYPES.index(head[0]))
            firsts.append(len(ids) if numbers else -1)
            ids += numbers
            if head is not None and place == head[1][1] - 1:
                ids.append(self.vocabulary + len(ENTITY_TYPES))
        return Tagged(task, types, (*ids, self.text.end), tuple(firsts), tuple(tags))

    # ---- token ids to tags -------------------------------------------------------------------------------

    def loss(self, batch: Sequence[Tagged]) -> tuple[Tensor, int]:
        """Return the summed cross-entropy over words with a piece, and how many there are."""
        total, count = torch.zeros((), device=self.text.device), 0
        for rows, logits in self._logits(batch):
            gold = [batch[i].tags[w] for i, w in rows]
            total = total + F.cross_entropy(logits, torch.tensor(gold, device=logits.device), reduction="sum")
            count += len(rows)
        return total, count

    @torch.no_grad()
    def mean_loss(self, questions: Sequence[Tagged], batch: int) -> float:
        """Return the mean cross-entropy per word over all questions; nan without any."""
        total, count = 0.0, 0
        with self.evaluating():
            for part in batches_by_length([question.ids for question in questions], batch):
                loss, words = self.loss([questions[i] for i in part])
                total, count = total + loss.item(), count + words
        return total / count if count else float("nan")

    @torch.no_grad()
    def tags(self, questions: Sequence[Tagged], batch: int) -> list[list[int]]:
        """Return the most probable allowed tag of each word; O where a word has no token."""
        tags = [[OUTSIDE] * len(question.firsts) for question in questions]
        with self.evaluating():
            for part in batches_by_length([question.ids for question in questions], batch):
                for rows, logits in self._logits([questions[i] for i in part]):
                    for (i, word), tag in zip(rows, logits.argmax(-1).tolist(), strict=True):
                        tags[part[i]][word] = tag
        return tags

    def _logits(self, batch: Sequence[Tagged]) -> Iterator[tuple[list[tuple[int, int]], Tensor]]:
        """Yield for each task the (row, word) of its W words, and their logits (W, tags).

        Words without a token are left out; tags that the input does not allow have -inf.
        """
        hidden = self._hidden(batch)  # (B, T, width)
        for task, names in TYPES.items():
            rows = [
                (i, w)
                for i, item in enumerate(batch)
                if item.task == task
                for w, first in enumerate(item.firsts)
                if first >= 0
            ]
            if not rows:
                continue
            # a word is tagged at its first token
            places = torch.tensor([(i, batch[i].firsts[w]) for i, w in rows], device=hidden.device)  # (W, 2)
            logits = self.heads[task](hidden[places[:, 0], places[:, 1]])  # (W, tags)
            allowed = [_allowed(names, item.types) for item in batch]
            forbidden = ~torch.tensor(allowed, device=hidden.device)[places[:, 0]]  # (W, tags)
            yield rows, logits.float().masked_fill(forbidden, float("-inf"))

    def _hidden(self, batch: Sequence[Tagged]) -> Tensor:
        """Return the encoder's hidden states (B, T, width) in fp32."""
        ids, mask = pad_rows([item.ids for item in batch], self.text.padding, self.text.device)  # (B, T)
        is_mark = ids >= self.vocabulary  # ids above the vocabulary are marks of heads
        words = self.encoder.get_input_embeddings()(ids.masked_fill(is_mark, self.text.padding))  # (B, T, E)
        marks = self.marks((ids - self.vocabulary).clamp(min=0))  # (B, T, E)
        embedded = torch.where(is_mark[..., None], marks, words)
        with autocast(self.text.precision, self.text.device):
            hidden: Tensor = self.encoder(inputs_embeds=embedded, attention_mask=mask).last_hidden_state
        return self.dropout(hidden.float())


def _allowed(names: Sequence[str], types: Sequence[str]) -> list[bool]:
    """Return which tags over `names` an answer with `types` may hold."""
    return [True, *(name in types for name in names for _ in "BI")]
