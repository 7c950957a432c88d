# SPDX-License-Identifier: Apache-2.0
"""A frozen language model with adapters that answers prompts: what text tasks train and ask.

Paper: Fed-MedLoRA. Loss on the answer's tokens and one end mark only.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.adapters.base import AdapterSettings
from medflare.models.adapters.registry import attach
from medflare.models.backbone import Backbone, autocast
from medflare.models.padding import IGNORED
from medflare.models.report_generator import scaled_logits


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


class TextModel:
    """A frozen decoder with adapters and its tokenizer; knows no task, no data and no federation.

    Raises:
        ConfigError: the tokenizer has no end mark.
    """

    def __init__(
        self, backbone: Backbone, adapter: AdapterSettings, names: tuple[str, ...], seed: int
    ) -> None:
        self.backbone = backbone
        self.adapters: Any = attach(backbone.model, adapter, names, seed)
        tokenizer = backbone.tokenizer
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"backbone '{backbone.name}': its tokenizer has no end mark (eos_token), so an answer could "
                "never end. Add it to tokenizer_config.json, or choose another backbone."
            )
        self.end = int(tokenizer.eos_token_id)
        self.padding = self.end if tokenizer.pad_token_id is None else int(tokenizer.pad_token_id)
        self.begin = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]

    @property
    def context(self) -> int:
        """Positions the backbone has, of prompt and answer together, after those of virtual tokens."""
        found = int(getattr(self.backbone.model.config, "max_position_embeddings", None) or sys.maxsize)
        return found - int(self.adapters.positions)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.backbone.model.device
        return device

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt, after the begin mark where the tokenizer has one."""
        return [[*self.begin, *ids] for ids in self._ids(prompts)]

    def answer_ids(self, answers: Sequence[str]) -> list[list[int]]:
        """Token ids of each answer and one end mark."""
        return [[*ids, self.end] for ids in self._ids(answers)]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:  # transformers' tokenizers raise IndexError
            return []
        found: list[list[int]] = self.backbone.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return found

    def sequences(self, prompts: Sequence[str], answers: Sequence[str]) -> list[Sequenced]:
        """Prompt and answer are tokenised apart, as in generation, and one end mark is added."""
        if not prompts:
            return []
        tails = self.answer_ids(answers)
        heads = self.prompt_ids(prompts)
        return [Sequenced((*head, *tail), len(head)) for head, tail in zip(heads, tails, strict=True)]

    def loss(self, batch: Sequence[Sequenced]) -> tuple[Tensor, int]:
        """Return the summed negative log-likelihood of the answers' tokens, and their number.

        Logits are computed at the answers' positions only.
        """
        ids, targets = _pad(batch, self.padding)  # (N, T)
        ids, targets = ids.to(self.device), targets.to(self.device)
        with autocast(self.backbone.precision, str(self.device)):
            model = self.backbone.model
            hidden = model.get_decoder()(
                input_ids=ids[:, :-1], use_cache=False
            ).last_hidden_state  # (N, T-1, H)
            kept = targets[:, 1:] != IGNORED  # (N, T-1), K true
            logits = model.get_output_embeddings()(hidden[kept]).float()  # (K, vocabulary)
        logits = scaled_logits(logits, model.config)
        return F.cross_entropy(logits, targets[:, 1:][kept], reduction="sum"), int(kept.sum())

    @torch.no_grad()
    def mean_loss(self, sequences: Sequence[Sequenced], batch: int) -> float:
        """Return the mean negative log-likelihood per answer token (ML-4); nan without any sequence."""
        total, count = 0.0, 0
        order = sorted(sequences, key=lambda item: len(item.ids))
        with self.evaluating():
            for start in range(0, len(order), batch):
                loss, tokens = self.loss(order[start : start + batch])
                total, count = total + loss.item(), count + tokens
        return total / count if count else float("nan")

    def answer(self, prompts: Sequence[str], budgets: Sequence[int], batch: int) -> list[Written]:
        """Return greedy answers, each at most its budget of tokens long."""
        return self.continue_prompts(self.prompt_ids(prompts), budgets, batch)

    @torch.no_grad()
    def continue_prompts(
        self, ids: Sequence[list[int]], budgets: Sequence[int], batch: int, beams: int = 1
    ) -> list[Written]:
        """Return what the model writes after each prompt, at most its budget of tokens.

        Prompts of similar length share a batch. An answer ends where the backbone has no more positions. One
        beam is greedy.
        """
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        answers: list[Written] = [Written("", False)] * len(ids)
        with self.evaluating():
            for start in range(0, len(order), batch):
                rows = order[start : start + batch]
                most = max(budgets[i] for i in rows)
                for i, tail in zip(rows, self._generate([ids[i] for i in rows], most, beams), strict=True):
                    answers[i] = self._written(tail, budgets[i])
        return answers

    def _generate(self, rows: list[list[int]], most: int, beams: int) -> list[list[int]]:
        """Return the new tokens of each row; prompts are padded on the left."""
        longest = max(len(row) for row in rows)
        most = min(most, self.context - longest)
        if most < 1:
            return [[] for _ in rows]
        ids = torch.tensor([[self.padding] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        with self._default_generation():
            out = self.backbone.model.generate(
                input_ids=ids.to(self.device),
                attention_mask=mask.to(self.device),
                do_sample=False,
                num_beams=beams,
                max_new_tokens=most,
                pad_token_id=self.padding,
                eos_token_id=self.end,
            )
        tails: list[list[int]] = out[:, longest:].tolist()
        return tails

    @contextlib.contextmanager
    def _default_generation(self) -> Iterator[None]:
        """Generate without the backbone's own generation settings (repetition_penalty, min_length)."""
        from transformers import GenerationConfig

        model = self.backbone.model
        before, model.generation_config = model.generation_config, GenerationConfig()
        try:
            with autocast(self.backbone.precision, str(self.device)), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            model.generation_config = before

    def _written(self, tail: list[int], budget: int) -> Written:
        ended = self.end in tail[:budget]
        kept = tail[: tail.index(self.end)] if ended else tail[:budget]
        text: str = self.backbone.tokenizer.decode(
            kept, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return Written(text, ended)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Set eval mode inside, without dropout and gradient checkpointing, and the former mode after."""
        before = self.backbone.model.training
        self.backbone.model.eval()
        try:
            yield
        finally:
            self.backbone.model.train(before)

    def checkpoint_gradients(self) -> None:
        """Switch on gradient checkpointing: a second forward pass instead of stored activations."""
        model: Any = self.backbone.model
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
        model.config.use_cache = False


def _pad(batch: Sequence[Sequenced], padding: int) -> tuple[Tensor, Tensor]:
    """Right-padded ids (N, T), and targets that are IGNORED in prompts and padding."""
    longest = max(len(item.ids) for item in batch)
    ids = torch.full((len(batch), longest), padding, dtype=torch.long)
    targets = torch.full_like(ids, IGNORED)
    for i, item in enumerate(batch):
        ids[i, : len(item.ids)] = torch.tensor(item.ids)
        targets[i, item.start : len(item.ids)] = ids[i, item.start : len(item.ids)]
    return ids, targets
