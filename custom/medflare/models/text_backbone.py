# SPDX-License-Identifier: Apache-2.0
"""A frozen language model that continues prompts: tokens, positions and generation."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.backbone import Backbone, autocast
from medflare.models.padding import pad_rows
from medflare.models.templates import FilledText
from medflare.models.token_table import TokenTable, token_table

CACHE = (
    "cache"
    if [int(part) for part in version("transformers").split(".")[:2]] >= [5, 24]
    else "past_key_values"
)
"""Name that transformers has for keys and values of earlier tokens; since 5.24 it warns of the old one."""


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
        added = {row.content for row in tokenizer.added_tokens_decoder.values() if row.special}
        marks = sorted(re.escape(mark) for mark in {*added, *tokenizer.all_special_tokens} if len(mark) > 1)
        # a lookahead finds marks that overlap too
        self._marks = re.compile(f"(?=({'|'.join(marks)}))") if marks else None

    @property
    def context(self) -> int:
        """Positions of prompt and answer together."""
        return int(getattr(self.backbone.model.config, "max_position_embeddings", None) or sys.maxsize)

    def parameter_count(self) -> int:
        """Return the number of all parameters, adapters among them."""
        return sum(values.numel() for values in self.backbone.model.parameters())

    @property
    def device(self) -> torch.device:
        device: torch.device = self.backbone.model.device
        return device

    @cached_property
    def token_table(self) -> TokenTable | None:
        """The tokens by their bytes, where the vocabulary has any."""
        return token_table(self.backbone.tokenizer)

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each prompt, after the begin mark where the tokenizer has one.

        Marks in a prompt's wording are marks; in the fields of a FilledText, which are data, they are text.
        """
        rows = self._encode([piece for prompt in prompts for piece in self._wording_and_data(prompt)])
        counts = [len(self._wording_and_data(prompt)) for prompt in prompts]
        pieces = iter(rows)
        return [[*self.begin, *(i for _ in range(count) for i in next(pieces))] for count in counts]

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text; what looks like a mark of the model is text."""
        pieces = [self._without_marks(text, [(0, len(text))]) for text in texts]
        rows = iter(self._encode([piece for cut in pieces for piece in cut]))
        return [[i for _ in cut for i in next(rows)] for cut in pieces]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:  # transformers' tokenizers raise IndexError
            return []
        rows: list[list[int]] = self.backbone.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return rows

    def _wording_and_data(self, prompt: str) -> list[str]:
        return self._without_marks(prompt, prompt.fields if isinstance(prompt, FilledText) else ())

    def _without_marks(self, text: str, fields: Sequence[tuple[int, int]]) -> list[str]:
        """Return a text in pieces that are tokenised apart: cut within each mark that stands in a field."""
        starts = [] if self._marks is None else [mark.start() for mark in self._marks.finditer(text)]
        cuts = [start + 1 for start in starts if any(first <= start < end for first, end in fields)]
        return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, spaces as they are."""
        text: str = self.backbone.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def read(self, ids: Tensor, mask: Tensor, positions: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """Return the last layer's states of new tokens, and the keys and values of all tokens so far.

        Args:
            ids: (N, T) new tokens; positions: (N, T) theirs in each row.
            mask: (N, tokens before + T), 1 for what is to be seen.
            cache: what the pass before returned, None at first; it is changed.

        Returns:
            (N, T, hidden), and the cache.
        """
        with autocast(self.backbone.precision, str(self.device)):
            out = self.backbone.model.get_decoder()(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{CACHE: cache},
            )
        return out.last_hidden_state, out[CACHE]

    def read_rows(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Any]:
        """Read rows of tokens, what all of them begin with once.

        Returns:
            (N, T, hidden) the last layer's states, 0 where all rows are alike, (N, T) the rows' mask with
            padding at the right, and the cache.
        """
        shared = _common_beginning(rows)
        cache = self._read_beginning(shared)
        cache.batch_repeat_interleave(len(rows))
        ids, new = pad_rows([row[len(shared) :] for row in rows], self.padding, self.device)  # (N, L)
        mask = torch.cat([new.new_ones(len(rows), len(shared)), new], 1)  # (N, T)
        positions = len(shared) + (new.cumsum(1) - 1).clamp(min=0)  # (N, L)
        states, cache = self.read(ids, mask, positions, cache)
        return F.pad(states, (0, 0, len(shared), 0)), mask, cache

    def _read_beginning(self, shared: Sequence[int]) -> Any:
        """Return the keys and values of what all rows begin with.

        All of them are kept, also of layers with a sliding window: what is drafted in vain counts as nothing.
        """
        from transformers import DynamicCache

        cache = DynamicCache()
        if not shared:
            return cache
        ids = torch.tensor([shared], device=self.device)
        positions = torch.arange(len(shared), device=self.device)[None]
        return self.read(ids, torch.ones_like(ids), positions, cache)[1]

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


def _common_beginning(rows: Sequence[Sequence[int]]) -> list[int]:
    """Return what all rows begin with, at least one token short of the shortest."""
    first, last = min(map(list, rows)), max(map(list, rows))  # in the order of lists, these two differ first
    most = min(map(len, rows)) - 1
    size = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first[:most], last[:most], strict=True))))
    return first[:size]
