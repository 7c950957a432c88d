# SPDX-License-Identifier: Apache-2.0
"""Shapes of the classical report generators, and how they write."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from medflare.core.config import Settings
from medflare.models.encoders import EncoderSettings
from medflare.models.report_generator import DecodingSettings

Memory = Literal["none", "unused", "relational"]
"""Whether R2Gen's memory is there: not at all, with its weights but without effect, or at work."""


class TransformerShape(Settings):
    """A Transformer encoder over features and a Transformer decoder of words.

    memory: `relational` is R2Gen; `unused` has its weights without their effect, which is what the published
        count of the plain Transformer implies (BL-2).
    """

    width: int = Field(default=128, ge=8, description="of the Transformer; 512 in the papers")
    layers: int = Field(default=3, ge=1, description="of the encoder, and of the decoder")
    attention_heads: int = Field(default=8, ge=1)
    feed_forward: int = Field(default=512, ge=8)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    positions: int = Field(default=160, ge=2, description="most tokens of a report, with the one before it")
    memory: Memory = "none"
    slots: int = Field(default=3, ge=1, description="rows of the relational memory")

    @property
    def prompts(self) -> bool:
        """No diagnosis tokens stand between image and report."""
        return False

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.width % self.attention_heads or self.width % 2:
            raise ValueError(
                f"width is {self.width}, expected an even multiple of attention_heads "
                f"({self.attention_heads})"
            )
        return self


class TransformerSettings(TransformerShape):
    """The Transformer of R2Gen's family over the features of an image.

    contrast_width: of the projections that compare report and image (WCL); None has none.
    """

    encoder: EncoderSettings = EncoderSettings()
    contrast_width: int | None = Field(default=None, ge=2)


class WordSearchSettings(DecodingSettings):
    """Decoding settings of a report: three beams and no penalties, as R2Gen's code."""

    beams: int = 3
    max_new_tokens: int = 100
    min_new_tokens: int = 0
    repetition_penalty: float = 1.0
    length_penalty: float = 1.0


class LanguageModelSearchSettings(WordSearchSettings):
    """Decoding settings of a large language model: R2GenGPT's."""

    max_new_tokens: int = 120
    min_new_tokens: int = 80
    repetition_penalty: float = 2.0
    length_penalty: float = 2.0
