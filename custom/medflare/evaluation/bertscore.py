# SPDX-License-Identifier: Apache-2.0
"""BERTScore (Zhang et al., ICLR 2020, section 3): greedily matched token vectors of a local encoder.

Unrescaled, without idf, of the encoder's last layer. As in the authors' program (bert-score 0.3) the marks
before and after a text weigh nothing, and yet a token may be matched with a mark of the other text. No other
library does it here: torchmetrics 1.9 puts rows that it sorted by length back in a wrong order, so that texts
of different studies are compared (its issue 2728), and bert-score stops at a text without tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from medflare.models.frozen_encoder import FrozenEncoder

PIECE = 256
"""Pairs whose token vectors are in memory together."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as an encoder represents it.

    Attributes:
        rows: (T, hidden) of unit norm, marks among them.
        counted: (T,) False for marks.
    """

    rows: Tensor
    counted: Tensor


def matched(hypothesis: Tokens, reference: Tokens) -> tuple[float, float, float]:
    """Return precision, recall and F1 of one pair.

    All are 0 where either text has no token, F1 also where either mean is negative.
    """
    if not hypothesis.counted.any() or not reference.counted.any():
        return 0.0, 0.0, 0.0
    cosines = hypothesis.rows @ reference.rows.T
    precision = float(cosines.amax(1)[hypothesis.counted].mean())
    recall = float(cosines.amax(0)[reference.counted].mean())
    f1 = 2 * precision * recall / (precision + recall) if min(precision, recall) > 0 else 0.0
    return precision, recall, f1


class TokenEncoder:
    """A frozen encoder of a local folder.

    Raises ConfigError as `open_encoder` does.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import GPT2Tokenizer, RobertaTokenizer

        self.frozen = FrozenEncoder(folder, "scorers.bertscore")
        tokenizer = self.frozen.tokenizer
        marks = {tokenizer.cls_token_id, tokenizer.sep_token_id} - {None}
        self.marks = torch.tensor(sorted(marks), dtype=torch.long)
        self.spaced = isinstance(tokenizer, GPT2Tokenizer | RobertaTokenizer)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text with its marks; a first word is a word like any other."""
        return self.frozen.ids([f" {text.strip()}" if self.spaced else text.strip() for text in texts])

    def encoded(self, texts: Sequence[str], batch: int = 32) -> list[Tokens]:
        """Return the token vectors of each text, in the order given."""
        encoded: dict[int, Tokens] = {}
        for encoded_batch in self.frozen.batches(self.ids(texts), batch):
            rows, counted = (
                normalize(encoded_batch.hidden, dim=-1),
                ~torch.isin(encoded_batch.ids, self.marks),
            )
            for i, place in enumerate(encoded_batch.places):
                present = encoded_batch.mask[i].bool()
                encoded[place] = Tokens(rows[i][present], counted[i][present])
        return [encoded[i] for i in range(len(texts))]


def bertscores(references: Sequence[str], hypotheses: Sequence[str], encoder: TokenEncoder) -> np.ndarray:
    """Return (N, 3): precision, recall and F1 of each pair; a pair with an empty text has 0.

    Each different pair is matched once, and each different text of PIECE pairs encoded once.
    """
    given = list(zip(references, hypotheses, strict=True))
    pairs = [pair for pair in dict.fromkeys(given) if all(text.strip() for text in pair)]
    pairs.sort(key=lambda pair: pair[1])  # what was written often is in few pieces
    scored: dict[tuple[str, str], tuple[float, float, float]] = {}
    for start in range(0, len(pairs), PIECE):
        piece = pairs[start : start + PIECE]
        texts = list(dict.fromkeys(text for pair in piece for text in pair))
        tokens = dict(zip(texts, encoder.encoded(texts), strict=True))
        scored |= {(one, other): matched(tokens[other], tokens[one]) for one, other in piece}
    return np.array([scored.get(pair, (0.0, 0.0, 0.0)) for pair in given]).reshape(-1, 3)
