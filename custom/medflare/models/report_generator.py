# SPDX-License-Identifier: Apache-2.0
"""The FedMRG model: image encoder, diagnosis head, prompt tokens and a frozen LLM with adapters.

Paper: FedMRG, sections III-A and III-B. Decoder input:
`BOS · prefix · S visual tokens · suffix · 14 diagnosis tokens · instruction · report · EOS`.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.core.seeds import seeded
from medflare.models.adapters.base import AdapterSettings
from medflare.models.adapters.lora import LoraChoice, LoraSettings
from medflare.models.adapters.none import NoAdapters
from medflare.models.adapters.registry import PeftChoice, attach, effective_settings, unused_lora
from medflare.models.attention import use_attention
from medflare.models.backbone import Backbone, autocast, scaled_logits
from medflare.models.encoders import EncoderSettings, VisualEncoder
from medflare.models.evaluation_mode import EvaluatedModule
from medflare.models.fused_decoder import SHAPES, FusedDecoder, can_fuse
from medflare.models.fused_reading import FusedReader
from medflare.models.padding import IGNORED
from medflare.models.report_writing import write_after
from medflare.models.token_losses import Softened, word_loss

ADAPTER_PREFIX = "adapter."


class ModelSettings(Settings):
    """Shape of the report generator.

    Attributes:
        peft: the parameter-efficient method; `lora` holds the numbers of LoRA, and the targets of all.
        projection_norm: LayerNorm after the visual projection.
        prompts: diagnosis tokens between image and report (HCP).
    """

    encoder: EncoderSettings = EncoderSettings()
    lora: LoraSettings = LoraSettings()
    peft: PeftChoice = LoraChoice()
    projection_norm: bool = False
    prompts: bool = True

    @property
    def adapter(self) -> AdapterSettings:
        """The settings of the adapters: `peft`, or `lora` where that is the method."""
        return effective_settings(self.peft, self.lora)

    @property
    def without_effect(self) -> dict[str, str]:
        return unused_lora(self.peft)


class DecodingSettings(Settings):
    """Decoding settings of a report. Defaults are R2GenGPT's for a 7B model.

    Attributes:
        beams: 1 takes the likeliest token each time.
        max_new_tokens, min_new_tokens: length of a report, in tokens.
        repetition_penalty: that logits of tokens written already are divided by; 1 for none.
        length_penalty: exponent of the length that a beam's score is divided by; above 1 for longer ones.
    """

    beams: PositiveInt = 3
    max_new_tokens: PositiveInt = 120
    min_new_tokens: NonNegativeInt = 80
    repetition_penalty: PositiveFloat = 2.0
    length_penalty: float = 2.0

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if((self.beams == 1, "beams is 1", "length_penalty"))

    @property
    def greedy(self) -> bool:
        """Whether every token is the likeliest after those before it."""
        return self.beams == 1 and self.repetition_penalty == 1.0


SHORT_REPORTS: dict[str, Any] = {
    "beams": 1,
    "max_new_tokens": 110,
    "min_new_tokens": 0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
}
"""Greedy, for models of 0.1 to 1 billion parameters: penalties made for 7 billion garble their reports."""


@dataclass(slots=True)
class VisualFeatures:
    """Features of a batch of images.

    Attributes:
        visual: (B, S, hidden) projected patch tokens.
        pooled: (B, C) pooled feature, not normalised.
        logits: (B, 14, 4) of the diagnosis head, by condition and code.
    """

    visual: Tensor
    pooled: Tensor
    logits: Tensor

    def detach(self) -> VisualFeatures:
        return VisualFeatures(self.visual.detach(), self.pooled.detach(), self.logits.detach())


@dataclass(slots=True)
class Decoded:
    """Outputs at the K report tokens of a batch, row by row. logits: (K, vocabulary); hidden: (K, h)."""

    logits: Tensor
    hidden: Tensor
    _softened: dict[float, Softened] = field(default_factory=dict)

    def detach(self) -> Decoded:
        return Decoded(self.logits.detach(), self.hidden.detach(), self._softened)

    def softened(self, temperature: float) -> Softened:
        """Return the distributions at a temperature, which a student and a later teacher share."""
        if temperature not in self._softened:
            self._softened[temperature] = Softened.of(self.logits, temperature)
        return self._softened[temperature]


class ReportGenerator(EvaluatedModule):
    """Image encoder, projection, diagnosis head and a frozen decoder with adapters.

    Knows no data set, no loss and no federation.
    """

    marks: Tensor | None

    def __init__(
        self,
        backbone: Backbone,
        settings: ModelSettings,
        adapters: tuple[str, ...],
        seed: int,
        encoder_file: Path | None = None,
    ) -> None:
        super().__init__()
        self.settings, self.backbone = settings, backbone
        with seeded(seed):
            self.encoder = VisualEncoder(settings.encoder, encoder_file)
            self.projection = nn.Sequential(nn.Linear(self.encoder.width, backbone.hidden))
            if settings.projection_norm:
                self.projection.append(nn.LayerNorm(backbone.hidden))
            self.head = nn.Linear(self.encoder.width, len(CONDITIONS) * len(Code))
        own_attention = use_attention(backbone.model)
        # a layer of its own, not a bare parameter: per-example gradients are taken at layers
        self.prompt_table = nn.Embedding.from_pretrained(self._first_prompts(seed), freeze=False)
        self.register_buffer("marks", self._marks(), persistent=False)
        self.adapters: Any = (
            attach(backbone.model, settings.adapter, adapters, seed)
            if adapters
            else NoAdapters(backbone.model)
        )
        fuses = own_attention and can_fuse(backbone.model)
        self.fused = FusedDecoder(backbone.model, self.adapters) if fuses else None
        self._segments = {
            name: self._ids(backbone.template[name], bos=name == "prefix")
            for name in ("prefix", "suffix", "instruction")
        }

    # ---- parts -------------------------------------------------------------------------------------------

    @property
    def prompts(self) -> Tensor:
        """The rows [BLA] [POS] [NEG] [UNC], (4, hidden), which learn."""
        return self.prompt_table.weight

    @property
    def device(self) -> torch.device:
        return self.prompts.device

    def body(self) -> list[nn.Parameter]:
        """Return the trainable tensors outside encoder and adapters: projection, head, prompt rows."""
        return [*self.projection.parameters(), *self.head.parameters(), self.prompt_table.weight]

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return the tensors outside the adapters that may be communicated, by name."""
        shared = self.encoder.shared_tensors()
        shared |= {f"projection.{n}": p for n, p in self.projection.named_parameters()}
        shared |= {f"head.{n}": p for n, p in self.head.named_parameters()}
        shared["prompts"] = self.prompts
        return shared

    def local_buffers(self) -> dict[str, Tensor]:
        """Return the running statistics that stay at the site (`batch_norm: local`)."""
        return self.encoder.local_buffers()

    def encode_images(self, images: Tensor) -> VisualFeatures:
        """Return the features of images (B, 1, H, W) in [0, 1]: `encode`, then `project`."""
        return self.project(*self.encode(images))

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run the image encoder alone: (B, 1, H, W) -> patch tokens (B, S, C) and fp32 pooled (B, C)."""
        with autocast(self.backbone.precision, str(self.device)):
            tokens, pooled = self.encoder(images)
        return tokens, pooled.float()

    def patch_tokens(self, images: Tensor) -> Tensor:
        """Return what the image encoder makes of images (B, 1, H, W): patch tokens (B, S, C)."""
        return self.encode(images)[0]

    def project(self, tokens: Tensor, pooled: Tensor) -> VisualFeatures:
        """Apply projection and diagnosis head to what `encode` returned."""
        with autocast(self.backbone.precision, str(self.device)):
            visual = self.projection(tokens)  # (B, S, C) -> (B, S, hidden)
        logits = self.head(pooled).unflatten(1, (len(CONDITIONS), len(Code)))  # (B, 56) -> (B, 14, 4)
        return VisualFeatures(visual, pooled, logits)

    def prefix(self, features: VisualFeatures, codes: Tensor) -> Tensor:
        """Return everything before the report, (B, P, hidden).

        Args:
            features: of the images.
            codes: (B, 14) of Code, which select the diagnosis prompts.
        """
        table = self._table()
        batch, dtype = len(features.visual), features.visual.dtype
        fixed = {  # (B, length of the segment, hidden)
            n: table(ids.to(self.device)).to(dtype).expand(batch, -1, -1) for n, ids in self._segments.items()
        }
        parts = [fixed["prefix"], features.visual, fixed["suffix"]]
        if self.settings.prompts:
            marks = 0 if self.marks is None else self.marks  # (14, hidden)
            parts.append((self.prompt_table(codes) + marks).to(dtype))  # (B, 14, hidden)
        return torch.cat([*parts, fixed["instruction"]], 1)  # (B, P, hidden)

    def decode(
        self,
        prefix: Tensor,
        reports: Tensor,
        kept: Tensor | None = None,
        present: Tensor | None = None,
        alone: bool = False,
    ) -> Decoded:
        """Run the decoder over prefix and reports (teacher forcing).

        Logits are computed at the K report tokens only, not over prefix and padding.

        Args:
            prefix: (B, P, hidden).
            reports: (B, T) token ids ending in EOS, right-padded with anything.
            kept: (B, T) bool, false at that padding; K true in all. None where no report is padded.
            present: (B, P) bool, false where a shorter prefix is padded at its left; None where none is.
            alone: whether each row is computed by itself, so that it has a gradient of its own.
        """
        kept = torch.ones_like(reports, dtype=torch.bool) if kept is None else kept
        embedded = self._table()(reports).to(prefix.dtype)  # (B, T, hidden)
        # the last report token is never an input: nothing after it is predicted
        inputs = torch.cat([prefix, embedded[:, :-1]], 1)  # (B, P + T - 1, hidden)
        model = self.backbone.model
        fused = None if alone else self._fused_decoder()
        if fused is not None:
            before = torch.ones_like(prefix[..., 0], dtype=torch.bool) if present is None else present
            computed = torch.cat([before, kept[:, 1:]], 1)  # (B, P + T - 1)
            # position P - 1 predicts token 0
            wanted = torch.cat([torch.zeros_like(before[:, 1:]), kept], 1)  # (B, P + T - 1)
            hidden = fused.states(inputs, computed, wanted)  # (K, hidden)
            rows = F.pad(hidden, (0, 0, 0, -len(hidden) % SHAPES))
            logits = model.get_output_embeddings()(rows)[: len(hidden)].float()  # (K, vocabulary)
            return Decoded(scaled_logits(logits, model.config), hidden.float())
        positions = {} if present is None else self._mask_and_positions(present, inputs.shape[1])
        with autocast(self.backbone.precision, str(self.device)):
            hidden = model.get_decoder()(
                inputs_embeds=inputs, use_cache=False, **positions
            ).last_hidden_state  # (B, P + T - 1, hidden)
            hidden = hidden[:, prefix.shape[1] - 1 :][kept]  # (K, hidden)
            logits = model.get_output_embeddings()(hidden).float()  # (K, vocabulary)
        return Decoded(scaled_logits(logits, model.config), hidden.float())

    def _fused_decoder(self) -> FusedDecoder | None:
        """Return it, where all that the decoder computes now is frozen matrices and pairs of low rank."""
        return self.fused if self.fused is not None and self.fused.available() else None

    def _mask_and_positions(self, present: Tensor, length: int) -> dict[str, Tensor]:
        """Return the mask (B, length), and positions from each row's first token if the decoder takes any."""
        mask = F.pad(present.long(), (0, length - present.shape[1]), value=1)
        arguments = {"attention_mask": mask}
        if "position_ids" in inspect.signature(self.backbone.model.get_decoder().forward).parameters:
            arguments["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        return arguments

    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per report token with predicted prompts, as at test time.

        images: (batch, 1, H, W); reports: (batch, T) ids; targets: the same, -100 where padded.
        """
        features = self.encode_images(images)
        kept = targets != IGNORED
        decoded = self.decode(self.prefix(features, features.logits.argmax(-1)), reports, kept)
        return word_loss(decoded.logits, targets[kept])

    @torch.no_grad()
    def generate(
        self, images: Tensor, decoding: DecodingSettings, codes: Tensor | None = None
    ) -> tuple[list[str], Tensor]:
        """Generate reports of images (B, 1, H, W) with the adapters in use.

        Returns:
            The reports, and the diagnosis codes (B, 14) that prompted them: predicted from the image unless
            `codes` is given.
        """
        features = self.encode_images(images)
        codes = features.logits.argmax(-1) if codes is None else codes  # (B, 14)
        return self.write(self.prefix(features, codes), decoding), codes

    @torch.no_grad()
    def write(self, prefix: Tensor, decoding: DecodingSettings, present: Tensor | None = None) -> list[str]:
        """Generate a report after each prefix (B, P, hidden); `present` as in `decode`."""
        prefix = prefix.to(self._table().weight.dtype)
        tokenizer = self.backbone.tokenizer
        mask = torch.ones(prefix.shape[:2], dtype=torch.long, device=self.device)
        if decoding.greedy:
            written = self._write_fused(prefix, mask.bool() if present is None else present, decoding)
            if written is not None:
                return decoded_reports(tokenizer, written)
        with autocast(self.backbone.precision, str(self.device)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Passing `repetition_penalty`")  # as it should be
            ids = self.backbone.model.generate(
                inputs_embeds=prefix,
                attention_mask=mask if present is None else present.long(),
                **search_arguments(decoding, tokenizer),
            )
        return decoded_reports(tokenizer, ids)

    def _write_fused(
        self, prefix: Tensor, present: Tensor, decoding: DecodingSettings
    ) -> list[list[int]] | None:
        """Return a greedy report's tokens after each prefix.

        None where the decoder does not compute matrices alone, with adapters merged into them.
        """
        if self.fused is None:
            return None
        with self.adapters.merged():
            if self.adapters.adapted_layers() is None:
                return None
            reader = FusedReader(self.backbone.model, self.adapters)
            end = int(self.backbone.tokenizer.eos_token_id)
            return write_after(reader, prefix, present, decoding.max_new_tokens, decoding.min_new_tokens, end)

    def tokenise(self, reports: list[str], max_tokens: int) -> list[list[int]]:
        """Return token ids of each report, cut to `max_tokens`, with one EOS."""
        eos = self.backbone.tokenizer.eos_token_id
        rows = self.backbone.tokenizer(reports, add_special_tokens=False)["input_ids"]
        return [[*ids[:max_tokens], eos] for ids in rows]

    def train(self, mode: bool = True) -> ReportGenerator:
        """Train mode for the encoder and heads; the frozen decoder only for an adapter's dropout."""
        super().train(mode)
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            self.encoder.eval()
        self.backbone.model.train(mode and self.adapters.dropout > 0)
        return self

    # ---- inside ------------------------------------------------------------------------------------------

    def _table(self) -> nn.Embedding:
        table: nn.Embedding = self.backbone.model.get_input_embeddings()
        return table

    def _ids(self, text: str, bos: bool) -> Tensor:
        tokenizer = self.backbone.tokenizer
        ids = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        if bos and tokenizer.bos_token_id is not None:
            ids = [tokenizer.bos_token_id, *ids]
        return torch.tensor([ids], dtype=torch.long)

    def _first_prompts(self, seed: int) -> Tensor:
        """Return start values of [BLA] [POS] [NEG] [UNC]: the backbone's words for them, or noise."""
        table = self._table().weight.detach().float()
        if self.backbone.code_words:
            return self._embeddings(self.backbone.code_words)
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn((len(Code), table.shape[1]), generator=generator)
        return noise.to(table.device) * table.std()

    def _marks(self) -> Tensor | None:
        """Return frozen embeddings (14, hidden) of the conditions, if the backbone has words for them."""
        return self._embeddings(self.backbone.condition_words) if self.backbone.condition_words else None

    def _embeddings(self, words: tuple[str, ...]) -> Tensor:
        """Return one row a word: the mean of its tokens' input embeddings."""
        table = self._table().weight.detach().float()
        return torch.stack([table[self._ids(word, bos=False)[0]].mean(0) for word in words])


def decoded_reports(tokenizer: Any, ids: Tensor | Sequence[Sequence[int]]) -> list[str]:
    """Return the texts of B rows of token ids without special tokens, white space as single spaces."""
    return [" ".join(text.split()) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]


def search_arguments(decoding: DecodingSettings, tokenizer: Any) -> dict[str, Any]:
    """Return arguments of transformers' `generate`: the search, and the tokens that end and pad a report."""
    end, padding = tokenizer.eos_token_id, tokenizer.pad_token_id
    return {
        "num_beams": decoding.beams,
        "do_sample": False,
        "max_new_tokens": decoding.max_new_tokens,
        "min_new_tokens": decoding.min_new_tokens or None,
        "repetition_penalty": decoding.repetition_penalty,
        "length_penalty": decoding.length_penalty if decoding.beams > 1 else None,
        "pad_token_id": end if padding is None else padding,
        "eos_token_id": end,
    }


def parameter_counts(model: ReportGenerator, adapter: str) -> dict[str, int]:
    """Return the trainable, communicated parameters by part; buffers are left out."""
    return {
        "encoder": sum(p.numel() for p in model.encoder.parameters()),
        "projection": sum(p.numel() for p in model.projection.parameters()),
        "head": sum(p.numel() for p in model.head.parameters()),
        "prompts": model.prompts.numel(),
        "adapter": sum(p.numel() for p in model.adapters.parameters(adapter)),
    }


def export_settings(model: ReportGenerator, decoding: DecodingSettings) -> dict[str, Any]:
    """Return what a reader needs besides tensors to rebuild the generator, and the name of its file."""
    generated = model.adapters.not_communicated()
    return {
        "file": "report_generator",
        "format": 1,
        "model": model.settings.model_dump(mode="json"),
        "decoding": decoding.model_dump(mode="json"),
        "backbone": {"name": model.backbone.name, "fingerprint": model.backbone.fingerprint},
        "conditions": list(CONDITIONS),
    } | ({"untravelled": generated} if generated else {})
