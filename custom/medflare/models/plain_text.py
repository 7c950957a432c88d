# SPDX-License-Identifier: Apache-2.0
"""A backbone as it is, without adapters: what it writes and how sure it is of it, and texts as vectors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.backbone import Backbone, autocast


@dataclass(frozen=True, slots=True)
class Spoken:
    """One greedy answer, without its end mark.

    Attributes:
        ids: its tokens.
        chances: probability of each of them when it was written.
        ended: it came to its end within its budget.
    """

    text: str
    ids: tuple[int, ...]
    chances: tuple[float, ...]
    ended: bool


class PlainText:
    """Knows no task and no data; ConfigError for a tokenizer without an end mark."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone, self.tokenizer = backbone, backbone.tokenizer
        if self.tokenizer.eos_token_id is None:
            raise ConfigError(
                f"backbone '{backbone.name}': its tokenizer has no end mark (eos_token), so an answer could "
                "never end. Add it to tokenizer_config.json, or choose another backbone."
            )
        self.end = int(self.tokenizer.eos_token_id)
        self.padding = self.end if self.tokenizer.pad_token_id is None else int(self.tokenizer.pad_token_id)

    @property
    def context(self) -> int:
        """Positions of prompt and answer together."""
        return int(getattr(self.backbone.model.config, "max_position_embeddings", None) or 1 << 30)

    def ids(self, text: str) -> list[int]:
        """Tokens of a text, after the begin mark where the tokenizer has one."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        begin = self.tokenizer.bos_token_id
        return found if begin is None else [int(begin), *found]

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of tokens, spaces as they are."""
        found: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return found

    @torch.no_grad()
    def write(self, prompts: Sequence[str], most: int, batch: int = 4) -> list[Spoken]:
        """Return a greedy answer of at most `most` tokens to each prompt, in the order given."""
        rows = [self.ids(prompt) for prompt in prompts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = [Spoken("", (), (), False)] * len(rows)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for i, spoken in zip(chosen, self._write([rows[i] for i in chosen], most), strict=True):
                found[i] = spoken
        return found

    def _write(self, rows: list[list[int]], most: int) -> list[Spoken]:
        from transformers import GenerationConfig, LogitsProcessorList

        ids, mask = _padded_left(rows, self.padding)
        most = min(most, self.context - ids.shape[1])
        if most < 1:
            return [Spoken("", (), (), False) for _ in rows]
        model, chances = self.backbone.model, list[Tensor]()

        def keep(_: Tensor, scores: Tensor) -> Tensor:
            chances.append(scores.float().softmax(-1).amax(-1).cpu())
            return scores

        before, model.generation_config = model.generation_config, GenerationConfig()
        try:
            with autocast(self.backbone.precision, str(model.device)), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = model.generate(
                    input_ids=ids.to(model.device),
                    attention_mask=mask.to(model.device),
                    do_sample=False,
                    max_new_tokens=most,
                    pad_token_id=self.padding,
                    eos_token_id=self.end,
                    logits_processor=LogitsProcessorList([keep]),
                )
        finally:
            model.generation_config = before
        table = torch.stack(chances, 1).tolist()
        tails: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return [self._spoken(tail, row) for tail, row in zip(tails, table, strict=True)]

    def _spoken(self, tail: list[int], chances: list[float]) -> Spoken:
        size = tail.index(self.end) if self.end in tail else len(tail)
        kept = tuple(tail[:size])
        return Spoken(self.decoded(kept), kept, tuple(chances[:size]), size < len(tail))

    @torch.no_grad()
    def embed(self, texts: Sequence[str], batch: int = 64) -> np.ndarray:
        """Mean of the last hidden states of each text: (N, hidden), not of unit norm."""
        model = self.backbone.model
        rows = [(self.ids(text) or [self.end])[: self.context] for text in texts]
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found = np.zeros((len(rows), self.backbone.hidden))
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            ids, mask = _padded_left([rows[i] for i in chosen], self.padding)
            with autocast(self.backbone.precision, str(model.device)):
                hidden = model.get_decoder()(
                    input_ids=ids.to(model.device), attention_mask=mask.to(model.device), use_cache=False
                ).last_hidden_state
            weights = mask.to(hidden.device, torch.float32)[..., None]
            found[chosen] = ((hidden.float() * weights).sum(1) / weights.sum(1)).cpu().numpy()
        return found

    def chance(self, spoken: Spoken, start: int, end: int) -> float:
        """Return how sure the model was of characters start … end − 1 of its answer.

        The geometric mean of the probabilities of the tokens they are made of; 0 where there is none.
        """
        logs, before = list[float](), 0
        for count, chance in enumerate(spoken.chances, 1):
            after = len(self.decoded(spoken.ids[:count]))
            if after > start and before < end:
                logs.append(math.log(max(chance, 1e-12)))
            before = after
        return math.exp(sum(logs) / len(logs)) if logs else 0.0


def _padded_left(rows: list[list[int]], padding: int) -> tuple[Tensor, Any]:
    """Ids and mask (N, T)."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[padding] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return ids, mask
