# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts by an encoder that does not learn, in fp32 on the processor: the same at every site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medflare.models.encoder_folder import first_token, open_encoder, positions
from medflare.models.padding import batches_by_length, pad_rows


@dataclass(frozen=True, slots=True)
class Encoded:
    """A batch of texts.

    Attributes:
        places: (B,) where in the texts as given the rows belong.
        ids, mask: (B, T) tokens with marks, and 1 where there is one. hidden: (B, T, hidden), the last layer.
    """

    places: list[int]
    ids: Tensor
    mask: Tensor
    hidden: Tensor


class FrozenEncoder:
    """An encoder's folder, opened to be read.

    Args:
        setting: what names the folder, for error messages.

    Attributes:
        width: of its vectors. longest: most tokens of a text, marks included.

    Raises:
        ConfigError: as `open_encoder`.
    """

    def __init__(self, folder: Path, setting: str) -> None:
        self.model, self.tokenizer = open_encoder(folder, setting)
        self.model.eval()
        self.width = int(self.model.config.hidden_size)
        self.longest = min(int(self.tokenizer.model_max_length), positions(self.model))
        self._end = first_token(self.tokenizer.sep_token_id, self.tokenizer.eos_token_id)
        self._padding = first_token(self.tokenizer.pad_token_id, self._end)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text with its marks; the end mark alone where there would be none.

        A text longer than the encoder loses its end.
        """
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), truncation=True, max_length=self.longest)
        return [row or [self._end] for row in encoded["input_ids"]]

    @torch.inference_mode()
    def batches(self, rows: Sequence[Sequence[int]], size: int) -> Iterator[Encoded]:
        """Yield texts of similar length together, shortest first."""
        for places in batches_by_length(rows, size):
            ids, mask = pad_rows([rows[i] for i in places], self._padding)  # (B, T)
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            yield Encoded(places, ids, mask, hidden)
