# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts by an encoder that does not learn, in fp32 on the processor: the same at every site."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medflare.models.encoder_folder import first_token, open_encoder, positions


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

    Raises ConfigError as `open_encoder` does.
    """

    def __init__(self, folder: Path, setting: str) -> None:
        self.model, self.tokenizer = open_encoder(folder, setting)
        self.model.eval()
        self.width = int(self.model.config.hidden_size)
        self.longest = min(int(self.tokenizer.model_max_length), positions(self.model))
        self._end = first_token(self.tokenizer.sep_token_id, self.tokenizer.eos_token_id)
        self._padding = first_token(self.tokenizer.pad_token_id, self._end)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text with its marks; the end mark alone where there would be none.

        A text longer than the encoder loses its end.
        """
        if not texts:
            return []
        told = self.tokenizer(list(texts), truncation=True, max_length=self.longest)
        return [row or [self._end] for row in told["input_ids"]]

    @torch.inference_mode()
    def batches(self, rows: Sequence[Sequence[int]], size: int) -> Iterator[Encoded]:
        """Texts of like length together, shortest first."""
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        for start in range(0, len(order), size):
            places = order[start : start + size]
            longest = len(rows[places[-1]])
            lacking = [longest - len(rows[i]) for i in places]
            ids = torch.tensor(
                [[*rows[i], *[self._padding] * n] for i, n in zip(places, lacking, strict=True)]
            )
            mask = torch.tensor([[1] * (longest - n) + [0] * n for n in lacking])
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            yield Encoded(places, ids, mask, hidden)
