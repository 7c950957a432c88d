# SPDX-License-Identifier: Apache-2.0
"""A frozen language model that continues prompts: tokens, positions and generation."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from medflare.core.errors import ConfigError
from medflare.models.backbone import Backbone, autocast
from medflare.models.padding import pad_rows


class TextBackbone:
    """A backbone and its tokenizer.

    Attributes:
        begin: the begin mark of a prompt, [] where the tokenizer has none; end, padding: token numbers.

    Raises:
        ConfigError: the tokenizer has no end mark.
    """

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
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
        """Positions of prompt and answer together."""
        return int(getattr(self.backbone.model.config, "max_position_embeddings", None) or sys.maxsize)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.backbone.model.device
        return device

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each prompt, after the begin mark where the tokenizer has one."""
        return [[*self.begin, *ids] for ids in self.token_ids(prompts)]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text without marks."""
        if not texts:  # transformers' tokenizers raise IndexError
            return []
        rows: list[list[int]] = self.backbone.tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return rows

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, spaces as they are."""
        text: str = self.backbone.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def generate_ids(self, rows: Sequence[Sequence[int]], most: int, **search: Any) -> list[list[int]]:
        """Return the new tokens of each prompt, without sampling; none where the prompts fill the context.

        The backbone's own generation settings (repetition_penalty, min_length) are left out.

        Args:
            rows: token ids of the prompts, which are padded on the left.
            most: new tokens at most.
            search: further arguments of transformers' `generate`.
        """
        from transformers import GenerationConfig

        ids, mask = pad_rows(rows, self.padding, self.device, left=True)  # (N, T)
        most = min(most, self.context - ids.shape[1])
        if most < 1:
            return [[] for _ in rows]
        model = self.backbone.model
        before, model.generation_config = model.generation_config, GenerationConfig()
        try:
            with autocast(self.backbone.precision, str(self.device)), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = model.generate(  # (N, T + new)
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=False,
                    max_new_tokens=most,
                    pad_token_id=self.padding,
                    eos_token_id=self.end,
                    **search,
                )
        finally:
            model.generation_config = before
        new: list[list[int]] = out[:, ids.shape[1] :].tolist()
        return new
