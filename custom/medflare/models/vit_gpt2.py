# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2's model: a ViT sees the image, GPT-2 with cross-attention writes the report.

Paper: FedViT-GPT2, section 3.2. It is transformers' VisionEncoderDecoderModel without the
ViT's pooling layer, which nothing would train. vit_gpt2_folder.py opens it.
"""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.config import Settings
from medflare.models.backbone import autocast
from medflare.models.evaluation_mode import EvaluatedModule
from medflare.models.report_generator import DecodingSettings, decoded_reports, search_arguments

FILE = "vit_gpt2"
PositiveChannels = Annotated[int, Field(ge=1)]


class ViTSettings(Settings):
    """The image encoder where a site names no folder; a folder's own configuration decides otherwise.

    Attributes:
        layers, attention_heads: how many.
        width: of a hidden state.
        image_size, patch: sides of the image that it sees and of a patch, in pixels.
        stem_channels: of convolutions that halve the image before patches are projected, as many as make
            `patch` (8: three); none for the ViT's own projection (models.vit_stem).
        crop_margin: side of a stored image over `image_size`: what training may crop at random.
    """

    layers: int = Field(default=3, ge=1)
    width: int = Field(default=96, ge=8)
    attention_heads: int = Field(default=3, ge=1)
    image_size: int = Field(default=64, ge=8)
    patch: int = Field(default=8, ge=1)
    stem_channels: tuple[PositiveChannels, ...] = ()
    crop_margin: float = Field(default=256 / 224, ge=1)

    @property
    def stored_size(self) -> int:
        """Side of a stored image, from which `image_size` is cut."""
        return round(self.image_size * self.crop_margin)


class GPT2Settings(Settings):
    """The decoder where a site names no folder.

    Attributes:
        layers, attention_heads: how many.
        width: of a hidden state.
        positions: most tokens of a report, with the one before it.
    """

    layers: int = Field(default=3, ge=1)
    width: int = Field(default=96, ge=8)
    attention_heads: int = Field(default=3, ge=1)
    positions: int = Field(default=160, ge=2)


class ViTGPT2Settings(Settings):
    """Shape of the model.

    Attributes:
        dropout: of a new model; a folder brings its own.
    """

    encoder: ViTSettings = ViTSettings()
    decoder: GPT2Settings = GPT2Settings()
    dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def prompts(self) -> bool:
        """No diagnosis tokens stand between image and report."""
        return False

    @model_validator(mode="after")
    def _fits(self) -> ViTGPT2Settings:
        for name, part in (("encoder", self.encoder), ("decoder", self.decoder)):
            if part.width % part.attention_heads:
                raise ValueError(
                    f"{name}.width is {part.width}, expected a multiple of its attention_heads "
                    f"({part.attention_heads})"
                )
        if self.encoder.image_size % self.encoder.patch:
            raise ValueError(
                f"encoder.image_size is {self.encoder.image_size}, expected a multiple of encoder.patch "
                f"({self.encoder.patch})"
            )
        stem = self.encoder.stem_channels
        if stem and 2 ** len(stem) != self.encoder.patch:
            raise ValueError(
                f"encoder.stem_channels has {len(stem)} convolutions, which make patches of "
                f"{2 ** len(stem)}, and encoder.patch is {self.encoder.patch}"
            )
        return self


class BeamSettings(DecodingSettings):
    """Decoding settings of a report; the paper names none, so 4 beams and 128 tokens."""

    beams: PositiveInt = 4
    max_new_tokens: PositiveInt = 128
    min_new_tokens: NonNegativeInt = 0
    repetition_penalty: PositiveFloat = 1.0
    length_penalty: float = 1.0


class ViTGPT2(EvaluatedModule):
    """ViT encoder and GPT-2 decoder with cross-attention, image to report; all weights learn.

    Args:
        network: a VisionEncoderDecoderModel.
        name, fingerprint: of the weights it began with.
        begin: the token before a report.
        normalisation: mean and standard deviation of each channel that the ViT was trained on.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        settings: ViTGPT2Settings,
        *,
        name: str,
        fingerprint: str,
        precision: str,
        begin: int,
        normalisation: tuple[list[float], list[float]],
    ) -> None:
        super().__init__()
        self.network, self.tokenizer, self.settings = network, tokenizer, settings
        self.name, self.fingerprint, self.precision = name, fingerprint, precision
        self.begin, self.normalisation = begin, normalisation
        self.network.encoder.pooler = None
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in normalisation)
        self.register_buffer("mean", mean, persistent=False)
        self.register_buffer("std", std, persistent=False)

    @property
    def device(self) -> torch.device:
        return self.mean.device

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return the parameters by name; GPT-2's output layer is its word table, so it is listed once."""
        return dict(self.network.named_parameters())

    def freeze_tables(self) -> None:
        """Let only the blocks of both parts learn, and the projection between them; no table does."""
        self.network.encoder.embeddings.requires_grad_(False)
        for table in (self.network.decoder.transformer.wte, self.network.decoder.transformer.wpe):
            table.requires_grad_(False)

    def pixels(self, images: Tensor) -> Tensor:
        """Normalise images for the ViT: (batch, 1, H, W) in [0, 1] -> (batch, channels, H, W)."""
        return (images.expand(-1, self.mean.shape[1], -1, -1) - self.mean) / self.std

    def patch_tokens(self, images: Tensor) -> Tensor:
        """Return the ViT's states of images (B, 1, H, W): class token and patch tokens (B, 1 + S, C)."""
        with autocast(self.precision, str(self.device)):
            states: Tensor = self.network.encoder(self.pixels(images)).last_hidden_state
        return states

    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per report token.

        Args:
            images: (B, 1, H, W) in [0, 1].
            reports: (B, T) ids that end in EOS, padded with anything. Padding needs no mask: it stands
                behind what is predicted.
            targets: the same, -100 where padded.
        """
        return F.cross_entropy(self.logits(images, reports).flatten(0, 1), targets.flatten())

    def logits(self, images: Tensor, reports: Tensor) -> Tensor:
        """Return the logits (B, T, vocabulary), fp32, of reports (B, T) of images (B, 1, H, W)."""
        first = torch.full_like(reports[:, :1], self.begin)  # (B, 1)
        inputs = torch.cat([first, reports[:, :-1]], 1)  # (B, T): targets moved right by one
        with autocast(self.precision, str(self.device)):
            logits: Tensor = self.network(
                pixel_values=self.pixels(images), decoder_input_ids=inputs, use_cache=False
            ).logits  # (B, T, vocabulary)
        return logits.float()

    @torch.no_grad()
    def generate(self, images: Tensor, decoding: DecodingSettings) -> tuple[list[str], Tensor]:
        """Generate reports of images (B, 1, H, W).

        Returns:
            The reports, and diagnosis codes (B, 14) that are all BLANK: this model has no diagnosis prompts.
        """
        with autocast(self.precision, str(self.device)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Passing `repetition_penalty`")
            ids = self.network.generate(
                pixel_values=self.pixels(images),
                decoder_start_token_id=self.begin,
                bos_token_id=self.begin,
                **search_arguments(decoding, self.tokenizer),
            )
        texts = decoded_reports(self.tokenizer, ids)
        codes = torch.full((len(texts), len(CONDITIONS)), int(Code.BLANK))
        return texts, codes

    def tokenise(self, reports: list[str], max_tokens: int) -> list[list[int]]:
        """Return token ids of each report with one EOS, cut to `max_tokens` and the decoder's positions."""
        kept = min(max_tokens, self.settings.decoder.positions - 1)
        rows = self.tokenizer(reports, add_special_tokens=False)["input_ids"]
        return [[*ids[:kept], self.tokenizer.eos_token_id] for ids in rows]


def parameter_counts(model: ViTGPT2) -> dict[str, int]:
    """Return the communicated parameters by part; `decoder` is without the cross-attention."""
    counts = {"encoder": 0, "cross_attention": 0, "decoder": 0, "projection": 0}
    for name, tensor in model.shared_tensors().items():
        cross = "crossattention" in name or "ln_cross_attn" in name
        part = "cross_attention" if cross else name.split(".")[0]
        counts["projection" if part == "enc_to_dec_proj" else part] += tensor.numel()
    return counts


def export_settings(model: ViTGPT2, decoding: DecodingSettings) -> dict[str, Any]:
    """Return what a reader needs besides tensors to rebuild the model, and the name of its file."""
    return {
        "file": FILE,
        "format": 1,
        "model": model.settings.model_dump(mode="json"),
        "network": model.network.config.to_dict(),
        "normalisation": list(model.normalisation),
        "decoding": decoding.model_dump(mode="json"),
        "backbone": {"name": model.name, "fingerprint": model.fingerprint},
    }
