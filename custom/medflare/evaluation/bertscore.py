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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medflare.errors import ConfigError

PIECE = 256
"""Pairs whose token vectors are in memory together."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """A text as an encoder sees it.

    Attributes:
        rows: (T, hidden) of unit norm, marks among them. counted: (T,) False for marks.
    """

    rows: Tensor
    counted: Tensor


def matched(hypothesis: Tokens, reference: Tokens) -> tuple[float, float, float]:
    """Precision, recall and F1 of one pair; 0 where either has no token, F1 where either mean is negative."""
    if not hypothesis.counted.any() or not reference.counted.any():
        return 0.0, 0.0, 0.0
    cosines = hypothesis.rows @ reference.rows.T
    precision = float(cosines.amax(1)[hypothesis.counted].mean())
    recall = float(cosines.amax(0)[reference.counted].mean())
    f1 = 2 * precision * recall / (precision + recall) if min(precision, recall) > 0 else 0.0
    return precision, recall, f1


class TokenEncoder:
    """A frozen encoder of a local folder, in fp32 on the processor.

    Raises ConfigError for a folder without safetensors weights; what transformers raises for one it cannot
    read.
    """

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModel, AutoTokenizer
        from transformers.utils import logging

        if not list(folder.glob("*.safetensors")):
            raise ConfigError(f"{folder} has no *.safetensors file; pickled weights (.bin) are not loaded")
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # heads of a published encoder are left behind on purpose
        logging.disable_progress_bar()
        try:
            self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            self.model: Any = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
        finally:
            logging.set_verbosity(verbosity)
        self.model.eval()
        self.marks = {self.tokenizer.cls_token_id, self.tokenizer.sep_token_id}
        self.longest = min(int(self.tokenizer.model_max_length), _positions(self.model))

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokens of each text with its marks; what is longer than the encoder is cut off."""
        from transformers import GPT2Tokenizer, RobertaTokenizer

        spaced = isinstance(self.tokenizer, GPT2Tokenizer | RobertaTokenizer)  # a first word like any other
        given = [f" {text.strip()}" if spaced else text.strip() for text in texts]
        found: list[list[int]] = self.tokenizer(given, truncation=True, max_length=self.longest)["input_ids"]
        return found

    @torch.inference_mode()
    def encoded(self, texts: Sequence[str], batch: int = 32) -> list[Tokens]:
        """Each text, in the order given; batches are of texts of like length."""
        rows = self.ids(texts)
        order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
        found: dict[int, Tokens] = {}
        padding = self.tokenizer.pad_token_id or 0
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            longest = len(rows[chosen[-1]])
            ids = torch.tensor([rows[i] + [padding] * (longest - len(rows[i])) for i in chosen])
            mask = torch.tensor([[1] * len(rows[i]) + [0] * (longest - len(rows[i])) for i in chosen])
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
            hidden = torch.nn.functional.normalize(hidden, dim=-1)
            for i, states in zip(chosen, hidden, strict=True):
                counted = torch.tensor([token not in self.marks for token in rows[i]], dtype=torch.bool)
                found[i] = Tokens(states[: len(rows[i])].clone(), counted)
        return [found[i] for i in range(len(rows))]


def bertscores(references: Sequence[str], hypotheses: Sequence[str], encoder: TokenEncoder) -> np.ndarray:
    """(N, 3): precision, recall and F1 of each pair; a pair with an empty text has 0.

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


def _positions(model: Any) -> int:
    """Positions an encoder has; RoBERTa's begin behind its padding index."""
    positions = int(getattr(model.config, "max_position_embeddings", None) or 512)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    behind = getattr(table, "padding_idx", None)
    return positions if behind is None else positions - int(behind) - 1
