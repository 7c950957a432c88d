# SPDX-License-Identifier: Apache-2.0
"""A BERT-like encoder that tags words: the encoder baseline of Fed-MedLoRA (algorithms.md 4.5).

Two linear heads on one encoder: B, I, O over the entity types, and B, I, O over the modifiers of one head,
which the input shows between two marks. The marks are rows of their own and not tokens of the vocabulary: so
any encoder folder does, also one without segment ids (RoBERTa), and its tokenizer stays as it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.seeds import seeded
from medflare.models.backbone import autocast
from medflare.models.encoder_folder import TextEncoder

TYPES: dict[str, tuple[str, ...]] = {"ner": ENTITY_TYPES, "re": MODIFIER_TYPES}
"""What each head tells apart; tag 0 is O, 2k + 1 begins a span of type k, 2k + 2 continues it."""
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


class Tagger(nn.Module):
    """Knows no data and no federation. Parameters: `encoder.*`, `heads.*` and `marks.weight`.

    Args:
        freeze_words: leave the table of word embeddings as it is; then it neither learns nor travels.
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

    # ---- words to numbers --------------------------------------------------------------------------------

    def pieces(self, texts: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Of each text's words, the numbers of their pieces; a word the tokenizer drops has none."""
        if not texts:
            return []
        found = self.text.tokenizer(
            [" ".join(words) for words in texts], add_special_tokens=False, return_offsets_mapping=True
        )
        rows = []
        for words, ids, offsets in zip(texts, found["input_ids"], found["offset_mapping"], strict=True):
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
        """A question of word pieces; `head` is the type and the words [first, last) to put between marks."""
        ids, firsts = [self.text.begin], []
        for place, numbers in enumerate(pieces):
            if head is not None and place == head[1][0]:
                ids.append(self.vocabulary + ENTITY_TYPES.index(head[0]))
            firsts.append(len(ids) if numbers else -1)
            ids += numbers
            if head is not None and place == head[1][1] - 1:
                ids.append(self.vocabulary + len(ENTITY_TYPES))
        return Tagged(task, types, (*ids, self.text.end), tuple(firsts), tuple(tags))

    # ---- numbers to tags ---------------------------------------------------------------------------------

    def loss(self, batch: Sequence[Tagged]) -> tuple[Tensor, int]:
        """Summed cross-entropy over words with a piece, and how many there are."""
        total, count = torch.zeros((), device=self.text.device), 0
        for rows, logits in self._logits(batch):
            gold = [batch[i].tags[w] for i, w in rows]
            total = total + F.cross_entropy(logits, torch.tensor(gold, device=logits.device), reduction="sum")
            count += len(rows)
        return total, count

    @torch.no_grad()
    def mean_loss(self, questions: Sequence[Tagged], batch: int) -> float:
        """Mean cross-entropy per word over all questions; nan without any."""
        total, count = 0.0, 0
        with self.evaluating():
            for part in _by_length(questions, batch):
                loss, words = self.loss([questions[i] for i in part])
                total, count = total + loss.item(), count + words
        return total / count if count else float("nan")

    @torch.no_grad()
    def tags(self, questions: Sequence[Tagged], batch: int) -> list[list[int]]:
        """The most probable tag of each word among those its question allows; O where it has no piece."""
        found = [[OUTSIDE] * len(question.firsts) for question in questions]
        with self.evaluating():
            for part in _by_length(questions, batch):
                for rows, logits in self._logits([questions[i] for i in part]):
                    for (i, word), tag in zip(rows, logits.argmax(-1).tolist(), strict=True):
                        found[part[i]][word] = tag
        return found

    def _logits(self, batch: Sequence[Tagged]) -> Iterator[tuple[list[tuple[int, int]], Tensor]]:
        """For each task: (row, word) of words with a piece, and their logits; -inf what is not allowed."""
        hidden = self._hidden(batch)
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
            places = torch.tensor([(i, batch[i].firsts[w]) for i, w in rows], device=hidden.device)
            logits = self.heads[task](hidden[places[:, 0], places[:, 1]])
            allowed = [_allowed(names, item.types) for item in batch]
            shut = ~torch.tensor(allowed, device=hidden.device)[places[:, 0]]
            yield rows, logits.float().masked_fill(shut, float("-inf"))

    def _hidden(self, batch: Sequence[Tagged]) -> Tensor:
        """(batch, pieces, width) in fp32."""
        longest = max(len(item.ids) for item in batch)
        ids = torch.full((len(batch), longest), self.text.padding, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for i, item in enumerate(batch):
            ids[i, : len(item.ids)] = torch.tensor(item.ids)
            mask[i, : len(item.ids)] = 1
        ids, mask = ids.to(self.text.device), mask.to(self.text.device)
        own = ids >= self.vocabulary
        words = self.encoder.get_input_embeddings()(ids.masked_fill(own, self.text.padding))
        shown = torch.where(own[..., None], self.marks((ids - self.vocabulary).clamp(min=0)), words)
        with autocast(self.text.precision, self.text.device):
            hidden: Tensor = self.encoder(inputs_embeds=shown, attention_mask=mask).last_hidden_state
        return self.dropout(hidden.float())

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """No dropout inside, the former mode after."""
        before = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(before)


def _allowed(names: Sequence[str], types: Sequence[str]) -> list[bool]:
    """Which tags over `names` an answer with `types` may hold."""
    return [True, *(name in types for name in names for _ in "BI")]


def _by_length(questions: Sequence[Tagged], batch: int) -> list[list[int]]:
    """Positions of questions of similar length, `batch` at a time."""
    order = sorted(range(len(questions)), key=lambda i: len(questions[i].ids))
    return [order[start : start + batch] for start in range(0, len(order), batch)]
