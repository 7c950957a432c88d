# SPDX-License-Identifier: Apache-2.0
"""Check that a language model predicts text, and measure how fast this machine reads and writes with it."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from medflare.models.backbone import autocast
from medflare.models.plain_text import PlainText

SAMPLE = (
    "The patient is a 64 year old man with a history of high blood pressure and type 2 diabetes who came to "
    "the emergency department with chest pain that began two hours earlier. An electrocardiogram showed no "
    "acute changes, and the first troponin was normal. He was given aspirin and admitted for observation. "
    "The chest radiograph showed a normal heart size and clear lungs without effusion or pneumothorax."
)
"""Plain clinical English, written for this check."""
NEW = 32


@dataclass(frozen=True, slots=True)
class TextCheck:
    """A model's predictions of a text, measured.

    Attributes:
        perplexity: of each token; shuffled: the same with the text's words in another order.
        read, written: tokens a second of one text in one forward pass, and of greedy writing.
    """

    perplexity: float
    shuffled: float
    read: float
    written: float

    @property
    def predicts(self) -> bool:
        """True if the order of words matters to the model; to untrained and broken weights it does not."""
        return self.perplexity < 0.5 * self.shuffled


def check_text(model: PlainText, text: str = SAMPLE, seed: int = 0) -> TextCheck:
    """Measure a model on a text and on the same words shuffled."""
    words = text.split()
    random.Random(seed).shuffle(words)
    perplexity, shuffled = _perplexity(model, text), _perplexity(model, " ".join(words))
    started = time.monotonic()
    _perplexity(model, text)
    read = len(model.ids(text)) / (time.monotonic() - started)
    started = time.monotonic()
    written = model.generate_ids([model.ids(text)], NEW, min_new_tokens=NEW)[0]
    return TextCheck(perplexity, shuffled, read, len(written) / (time.monotonic() - started))


@torch.no_grad()
def _perplexity(model: PlainText, text: str) -> float:
    begin = model.begin or [model.end]
    ids = torch.tensor([[*begin, *model.token_ids([text])[0]]], device=model.device)[:, : model.context]
    with autocast(model.backbone.precision, str(model.device)):
        logits = model.backbone.model(input_ids=ids, use_cache=False).logits[0, :-1].float()  # (T-1, V)
    loss = F.cross_entropy(logits, ids[0, 1:]).item()
    return math.exp(min(loss, 50.0)) if math.isfinite(loss) else math.inf
