# SPDX-License-Identifier: Apache-2.0
"""A frozen language model with adapters that answers prompts: what text tasks train and ask.

Paper: Fed-MedLoRA. Loss on the answer's tokens and one end mark only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.models.adapters.base import AdapterSettings
from medflare.models.adapters.registry import attach
from medflare.models.attention import use_attention
from medflare.models.backbone import Backbone, autocast, scaled_logits
from medflare.models.evaluation_mode import evaluation_mode
from medflare.models.fused_decoder import FusedDecoder, can_fuse
from medflare.models.fused_reading import FusedReader
from medflare.models.greedy_decoding import Guide, write_greedily
from medflare.models.packed_batch import PackedBatch, hidden_states, pack
from medflare.models.padding import IGNORED, batches_by_length, pad_rows
from medflare.models.recomputation import recompute_activations
from medflare.models.text_backbone import TextBackbone


@dataclass(frozen=True, slots=True)
class Sequenced:
    """Token ids of prompt and answer; `start` is where the answer begins."""

    ids: tuple[int, ...]
    start: int


@dataclass(frozen=True, slots=True)
class Written:
    """One answer, and whether it ended by itself within its budget."""

    text: str
    ended: bool


class TextModel(TextBackbone):
    """A frozen decoder with adapters and its tokenizer; knows no task, no data and no federation.

    Attributes:
        packs: whether rows of a batch share the computation of their common beginnings.

    Raises:
        ConfigError: the tokenizer has no end mark.
    """

    def __init__(
        self, backbone: Backbone, adapter: AdapterSettings, names: tuple[str, ...], seed: int
    ) -> None:
        self.adapters: Any = attach(backbone.model, adapter, names, seed)
        super().__init__(backbone)
        # virtual tokens and dropout are of a row, and cannot be shared
        alone = self.adapters.positions or self.adapters.dropout
        self._sees_all = use_attention(backbone.model)
        self.packs = self._sees_all and not alone
        fuses = can_fuse(backbone.model, gpu=True)
        self.fused = FusedDecoder(backbone.model, self.adapters) if fuses else None
        self._reader: FusedReader | None = None

    @property
    def context(self) -> int:
        """Positions of prompt and answer together, after those of virtual tokens."""
        return super().context - int(self.adapters.positions)

    def answer_ids(self, answers: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each answer and one end mark."""
        return [[*ids, self.end] for ids in self.token_ids(answers)]

    def sequences(self, prompts: Sequence[str], answers: Sequence[str]) -> list[Sequenced]:
        """Return prompts and answers, tokenised apart as in generation, with one end mark."""
        if not prompts:
            return []
        tails = self.answer_ids(answers)
        heads = self.prompt_ids(prompts)
        return [Sequenced((*head, *tail), len(head)) for head, tail in zip(heads, tails, strict=True)]

    def loss(self, batch: Sequence[Sequenced], alone: bool = False) -> tuple[Tensor, int]:
        """Return the summed negative log-likelihood of the answers' tokens, and their number.

        Logits are computed at the answers' positions only.

        Args:
            alone: whether each row is computed by itself, so that it has a gradient of its own.
        """
        model = self.backbone.model
        packs = self.packs and not alone
        if packs and self.fused is not None and self.fused.available():
            packed = self._packed(batch)
            return self.fused.loss(packed), len(packed.targets)
        with autocast(self.backbone.precision, str(self.device)):
            hidden, targets = self._answer_states(batch, packs)  # (K, H), (K,)
            logits = model.get_output_embeddings()(hidden).float()  # (K, vocabulary)
        logits = scaled_logits(logits, model.config)
        return F.cross_entropy(logits, targets, reduction="sum"), len(targets)

    def _answer_states(self, batch: Sequence[Sequenced], packed_rows: bool) -> tuple[Tensor, Tensor]:
        """Return the hidden states (K, H) before the answers' K tokens, and these tokens (K,)."""
        decoder = self.backbone.model.get_decoder()
        if packed_rows:
            packed = self._packed(batch)
            return hidden_states(decoder, packed)[packed.sources], packed.targets
        ids, targets = _pad(batch, self.padding)  # (N, T)
        ids, targets = ids.to(self.device), targets[:, 1:].to(self.device)
        hidden = decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (N, T-1, H)
        kept = targets != IGNORED  # (N, T-1), K true
        return hidden[kept], targets[kept]

    def _packed(self, batch: Sequence[Sequenced]) -> PackedBatch:
        return pack([item.ids for item in batch], [item.start for item in batch], self.device)

    @torch.no_grad()
    def mean_loss(self, sequences: Sequence[Sequenced], batch: int) -> float:
        """Return the mean negative log-likelihood per answer token (ML-4); nan without any sequence."""
        total, count = 0.0, 0
        with self.evaluating():
            for rows in batches_by_length([item.ids for item in sequences], batch):
                loss, tokens = self.loss([sequences[i] for i in rows])
                total, count = total + loss.item(), count + tokens
        return total / count if count else float("nan")

    def answer(
        self,
        prompts: Sequence[str],
        budgets: Sequence[int],
        batch: int,
        guides: Sequence[Guide] | None = None,
    ) -> list[Written]:
        """Return greedy answers, each at most its budget of tokens long or ended by its guide."""
        return self._write(self.prompt_ids(prompts), budgets, batch, guides)

    @torch.no_grad()
    def continue_prompts(
        self, ids: Sequence[list[int]], budgets: Sequence[int], batch: int, beams: int = 1
    ) -> list[Written]:
        """Return what the model writes after each prompt, at most its budget of tokens.

        Prompts of similar length share a batch. An answer ends where the backbone has no more positions. One
        beam is greedy.
        """
        if beams == 1:
            return self._write(ids, budgets, batch, None)
        answers: list[Written] = [Written("", False)] * len(ids)
        with self.evaluating():
            for rows in batches_by_length(ids, batch):
                most = max(budgets[i] for i in rows)
                continued = self.generate_ids([ids[i] for i in rows], most, num_beams=beams)
                for i, new in zip(rows, continued, strict=True):
                    answers[i] = self._written(new, budgets[i])
        return answers

    def _write(
        self,
        ids: Sequence[list[int]],
        budgets: Sequence[int],
        batch: int,
        guides: Sequence[Guide] | None,
    ) -> list[Written]:
        """Return greedy answers, with the adapters merged into the weights meanwhile."""
        with self.reading():
            written = write_greedily(self, ids, budgets, batch, guides)
        return [self._written(new, len(new)) for new in written]

    def _written(self, new: list[int], budget: int) -> Written:
        """Return an answer from its new tokens, cut at the end mark or the budget."""
        ended = self.end in new[:budget]
        return Written(self.decoded(new[: new.index(self.end)] if ended else new[:budget]), ended)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Merge the adapters in use into the weights inside, in eval mode; nothing may learn there."""
        with self.evaluating(), self.adapters.merged():
            plain = self.adapters.adapted_layers() is not None
            if self._sees_all and self.fused is not None and plain:
                self._reader = FusedReader(self.backbone.model, self.adapters)
            try:
                yield
            finally:
                self._reader = None

    def read(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        if self._reader is None:
            return super().read(ids, mask, positions, cache)
        return self._reader.read(ids, mask, positions, cache)

    def read_rows(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Any]:
        if self._reader is None or not self._reader.holds(rows):
            return super().read_rows(rows)
        return self._reader.read_rows(rows)

    def evaluating(self) -> AbstractContextManager[None]:
        """Set eval mode inside, without dropout and gradient checkpointing, and the former mode after."""
        return evaluation_mode(self.backbone.model)

    def checkpoint_gradients(self) -> None:
        """Switch on gradient checkpointing: a second forward pass instead of stored activations."""
        model: Any = self.backbone.model
        recompute_activations(model)
        model.enable_input_require_grads()
        model.config.use_cache = False


def _pad(batch: Sequence[Sequenced], padding: int) -> tuple[Tensor, Tensor]:
    """Return right-padded ids (N, T), and targets that are IGNORED in prompts and padding."""
    ids, mask = pad_rows([item.ids for item in batch], padding)  # (N, T)
    starts = torch.tensor([item.start for item in batch])  # (N,)
    answers = (mask == 1) & (torch.arange(ids.shape[1]) >= starts[:, None])  # (N, T)
    return ids, ids.masked_fill(~answers, IGNORED)
