# SPDX-License-Identifier: Apache-2.0
"""A backbone as it is, without adapters: what it writes and how sure it is of it, and texts as vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from medflare.models.backbone import autocast
from medflare.models.padding import batches_by_length, pad_rows
from medflare.models.text_backbone import TextBackbone


@dataclass(frozen=True, slots=True)
class GreedyAnswer:
    """One greedy answer, without its end mark.

    Attributes:
        ids: its tokens.
        probabilities: of each of them when it was written.
        ended: it came to its end within its budget.
    """

    text: str
    ids: tuple[int, ...]
    probabilities: tuple[float, ...]
    ended: bool


class PlainText(TextBackbone):
    """A backbone without adapters; knows no task and no data.

    Raises:
        ConfigError: the tokenizer has no end mark.
    """

    def ids(self, text: str) -> list[int]:
        """Return the token ids of one text, after the begin mark where the tokenizer has one."""
        return self.prompt_ids([text])[0]

    @torch.no_grad()
    def write(self, prompts: Sequence[str], most: int, batch: int = 4) -> list[GreedyAnswer]:
        """Return a greedy answer of at most `most` tokens to each prompt, in the order given."""
        rows = self.prompt_ids(prompts)
        answers = [GreedyAnswer("", (), (), False)] * len(rows)
        for chosen in batches_by_length(rows, batch):
            for i, answer in zip(chosen, self._write([rows[i] for i in chosen], most), strict=True):
                answers[i] = answer
        return answers

    def _write(self, rows: list[list[int]], most: int) -> list[GreedyAnswer]:
        from transformers import LogitsProcessorList

        steps: list[Tensor] = []

        def record(_: Tensor, scores: Tensor) -> Tensor:
            """Keep the probability of the most likely token of each row, (N,), at every step."""
            steps.append(scores.float().softmax(-1).amax(-1).cpu())
            return scores

        continued = self.generate_ids(rows, most, logits_processor=LogitsProcessorList([record]))
        table = torch.stack(steps, 1).tolist() if steps else [[] for _ in rows]  # (N, new tokens)
        return [self._answer(new, row) for new, row in zip(continued, table, strict=True)]

    def _answer(self, new: list[int], probabilities: list[float]) -> GreedyAnswer:
        size = new.index(self.end) if self.end in new else len(new)
        kept = tuple(new[:size])
        return GreedyAnswer(self.decoded(kept), kept, tuple(probabilities[:size]), size < len(new))

    @torch.no_grad()
    def embed(self, texts: Sequence[str], batch: int = 64) -> np.ndarray:
        """Return the mean of the last hidden states of each text: (N, hidden), not of unit norm."""
        encoded = [[*self.begin, *ids] for ids in self.token_ids(texts)]
        rows = [(ids or [self.end])[: self.context] for ids in encoded]
        vectors = np.zeros((len(rows), self.backbone.hidden))
        for chosen in batches_by_length(rows, batch):
            ids, mask = pad_rows([rows[i] for i in chosen], self.padding, self.device, left=True)  # (B, T)
            with autocast(self.backbone.precision, str(self.device)):
                hidden = self.backbone.model.get_decoder()(
                    input_ids=ids, attention_mask=mask, use_cache=False
                ).last_hidden_state  # (B, T, hidden)
            weights = mask.to(hidden.device, torch.float32)[..., None]  # (B, T, 1)
            vectors[chosen] = ((hidden.float() * weights).sum(1) / weights.sum(1)).cpu().numpy()
        return vectors

    def confidence(self, answer: GreedyAnswer, start: int, end: int) -> float:
        """Return how sure the model was of characters start … end − 1 of its answer.

        The geometric mean of the probabilities of the tokens they are made of; 0 where there is none.
        """
        logs, before = list[float](), 0
        for count, probability in enumerate(answer.probabilities, 1):
            after = len(self.decoded(answer.ids[:count]))
            if after > start and before < end:
                logs.append(math.log(max(probability, 1e-12)))
            before = after
        return math.exp(sum(logs) / len(logs)) if logs else 0.0
