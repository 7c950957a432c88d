# SPDX-License-Identifier: Apache-2.0
"""Shapes of the classical report generators, and how they write."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.models.encoders import EncoderSettings
from medflare.models.report_generator import DecodingSettings

Memory = Literal["none", "unused", "relational"]
"""Whether R2Gen's memory is there: not at all, with its weights but without effect, or at work."""


class TransformerShape(Settings):
    """A Transformer encoder over features and a Transformer decoder of words.

    Attributes:
        attention_heads: of a layer.
        feed_forward: width of a layer's feed-forward network.
        dropout: while training.
        memory: `relational` is R2Gen; `unused` has its weights without their effect, which is what the
            published count of the plain Transformer implies (BL-2).
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

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((self.memory == "none", "memory is 'none'", "slots"))

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

    Attributes:
        contrast_width: of the projections that compare report and image (WCL); null has none.
    """

    encoder: EncoderSettings = EncoderSettings()
    contrast_width: int | None = Field(default=None, ge=2)


class VolumeSettings(Settings):
    """Shape of the volume encoder."""

    image_size: int = Field(default=48, ge=8, description="side of a slice; 480 in the paper")
    slices: int = Field(
        default=4,
        ge=1,
        description="of a volume, which `visits.slices` in site.yaml should be (240 in the paper); fewer are "
        "padded with air on both sides, of more the middle is taken, as in the released code",
    )
    patch: int = Field(default=12, ge=2, description="side of a token's square; 24 in the paper")
    slice_patch: int = Field(default=2, ge=1, description="slices of a token; 12 in the paper")
    width: int = Field(default=64, ge=8, description="of a token; 512 in the paper")
    attention_heads: int = Field(default=4, ge=1, description="of a layer")
    layers: int = Field(default=1, ge=1, description="within a block, and across blocks; 4 in the paper")

    @property
    def stored_size(self) -> int:
        """Side of a stored slice: volumes are not augmented."""
        return self.image_size

    @property
    def blocks(self) -> int:
        """Tokens along the body."""
        return self.slices // self.slice_patch

    @property
    def squares(self) -> int:
        """Tokens of a block."""
        return (self.image_size // self.patch) ** 2

    @model_validator(mode="after")
    def _parts_fit(self) -> VolumeSettings:
        for name, size, part in (
            ("image_size", self.image_size, self.patch),
            ("slices", self.slices, self.slice_patch),
            ("width", self.width, self.attention_heads),
        ):
            if size % part:
                raise ValueError(f"{name} is {size}, expected a multiple of {part}")
        return self


class CT2RepLongModelSettings(TransformerShape):
    """Shape of CT2RepLong."""

    encoder: VolumeSettings = VolumeSettings()
    memory: Memory = "relational"


class DCLModelSettings(Settings):
    """Shape of DCL; image features are brought to the width of text network and graph."""

    encoder: EncoderSettings = EncoderSettings()
    width: int = Field(default=96, ge=8, description="of the text network; 768 in the paper")
    layers: int = Field(default=2, ge=1, description="of the text network; 12 in the paper")
    attention_heads: int = Field(default=4, ge=1, description="of the text network's layers")
    feed_forward: int = Field(default=256, ge=8, description="width of their feed-forward networks")
    graph_heads: int = Field(default=4, ge=1, description="of the graph's layers; 6 in the paper")
    graph_feed_forward: int = Field(default=256, ge=8, description="as feed_forward, of the graph's layers")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="while training")
    positions: int = Field(default=160, ge=2, description="most tokens of a report, with the one before it")
    contrast_width: int = Field(default=64, ge=2, description="of the projections; 256 in the paper")
    retrieved: int = Field(default=3, ge=1, description="reports whose statements enter an image's graph")

    @property
    def prompts(self) -> bool:
        """No diagnosis tokens stand between image and report."""
        return False

    @model_validator(mode="after")
    def _heads_fit(self) -> DCLModelSettings:
        for heads in (self.attention_heads, self.graph_heads):
            if self.width % heads:
                raise ValueError(f"width is {self.width}, expected a multiple of the heads ({heads})")
        return self


class WordSearchSettings(DecodingSettings):
    """Decoding settings of a report: three beams and no penalties, as R2Gen's code."""

    beams: PositiveInt = 3
    max_new_tokens: PositiveInt = 100
    min_new_tokens: NonNegativeInt = 0
    repetition_penalty: PositiveFloat = 1.0
    length_penalty: float = 1.0


class LanguageModelSearchSettings(WordSearchSettings):
    """Decoding settings of a large language model: R2GenGPT's."""

    max_new_tokens: PositiveInt = 120
    min_new_tokens: NonNegativeInt = 80
    repetition_penalty: PositiveFloat = 2.0
    length_penalty: float = 2.0
