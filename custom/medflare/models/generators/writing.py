# SPDX-License-Identifier: Apache-2.0
"""A report generator with a vocabulary of its own: images in, reports out, all of its weights learn.

The vocabulary is that of a tokenizer that every site has before round 1: ours, or that of the folder that
site.yaml names as `backbone.folder` (BL-4). Nothing of a site's reports decides what is in it.
"""

from __future__ import annotations

import hashlib
import warnings
from abc import abstractmethod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.core.seeds import seeded
from medflare.core.site_description import OWN
from medflare.models.backbone import LOADING, autocast, load_tokenizer
from medflare.models.embedded import decoder_folder
from medflare.models.encoder_folder import first_token
from medflare.models.encoders import VisualEncoder
from medflare.models.evaluation_mode import EvaluatedModule
from medflare.models.generators.beam_search import search
from medflare.models.generators.settings import TransformerSettings
from medflare.models.generators.transformer import ReportTransformer
from medflare.models.padding import IGNORED
from medflare.models.report_generator import DecodingSettings, decoded_reports, search_arguments

NEW = f"{OWN}new-generator"
WORDS = "tokenizer.json"


class ReportVocabulary:
    """A tokenizer that all sites share, by a digest.

    Attributes:
        name: of its folder.
        digest: SHA-256 of tokenizer.json.
        begin, end: numbers of the tokens before and after a report.
        size: tokens.
    """

    def __init__(self, folder: Path | None) -> None:
        source = decoder_folder() if folder is None else folder
        if not (source / WORDS).is_file():
            raise ConfigError(
                f"backbone.folder: '{source}' has no {WORDS}. Copy the tokenizer that all sites agreed on "
                "there, or leave the folder out for ours."
            )
        with LOADING:
            self.tokenizer: Any = load_tokenizer(source)
        self.name = NEW if folder is None else source.name
        self.digest = hashlib.sha256((source / WORDS).read_bytes()).hexdigest()
        self.begin = first_token(self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        self.end = first_token(self.tokenizer.eos_token_id)
        self.size = len(self.tokenizer)

    def tokenise(self, reports: list[str], most: int) -> list[list[int]]:
        """Return token ids of each report, cut to `most`, with one end token."""
        rows = self.tokenizer(reports, add_special_tokens=False)["input_ids"] if reports else []
        return [[*ids[:most], self.end] for ids in rows]


class VocabularyWriter(EvaluatedModule):
    """Base of generators with a vocabulary of their own; every weight of them learns and is communicated.

    A subclass adds `encode` and `logits`.

    Attributes:
        encoder: of images or volumes; `shared_names` are the names of its communicated tensors.

    Args:
        precision: fp32 or bf16, of the arithmetic; weights are fp32, as all of them learn.
    """

    encoder: Any

    def __init__(self, settings: Any, vocabulary: ReportVocabulary, precision: str) -> None:
        super().__init__()
        self.settings, self.vocabulary, self.precision = settings, vocabulary, precision
        self.name = vocabulary.name

    # ---- what a generator adds ---------------------------------------------------------------------------

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """Return what the decoder looks at: (B, 1, H, W) in [0, 1] -> (B, S, width)."""

    @abstractmethod
    def logits(self, image: Tensor, ids: Tensor) -> Tensor:
        """Return the logits of the word after each word, (B, T, vocabulary)."""

    @abstractmethod
    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per report token.

        Args:
            images: (B, 1, H, W) in [0, 1].
            reports: (B, T) ids that end in EOS, padded with anything.
            targets: the same, IGNORED where padded.
        """

    # ---- facts -------------------------------------------------------------------------------------------

    @property
    def fingerprint(self) -> str:
        """A hash of shape and vocabulary; the weights come from one site before round 1."""
        return hashlib.sha256((self.settings.model_dump_json() + self.vocabulary.digest).encode()).hexdigest()

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def tokenizer(self) -> Any:
        return self.vocabulary.tokenizer

    def tokenise(self, reports: list[str], max_tokens: int) -> list[list[int]]:
        """Return token ids of each report with one end token, cut to `max_tokens` and the positions."""
        return self.vocabulary.tokenise(reports, min(max_tokens, self.settings.positions - 1))

    def after_begin(self, reports: Tensor) -> Tensor:
        """Return what the decoder reads, (B, T), to predict each token of the reports (B, T)."""
        first = torch.full_like(reports[:, :1], self.vocabulary.begin)
        return torch.cat([first, reports[:, :-1]], 1)

    # ---- what is communicated ----------------------------------------------------------------------------

    def shared_tensors(self) -> dict[str, Tensor]:
        """Return every weight, and running statistics unless they stay local."""
        shared = self.encoder.shared_tensors()
        rest = {n: p for n, p in self.named_parameters() if not n.startswith("encoder.")}
        return shared | rest

    def local_buffers(self) -> dict[str, Tensor]:
        """Return the running statistics that stay at the site (`batch_norm: local`)."""
        return self.encoder.local_buffers()

    # ---- drafts ------------------------------------------------------------------------------------------

    def patch_tokens(self, images: Tensor) -> Tensor:
        """Return what the image encoder makes of images (B, 1, H, W): patch tokens (B, S, C)."""
        tokens: Tensor = self.encoder(images)[0]
        return tokens

    @torch.no_grad()
    def write(self, image: Tensor, decoding: DecodingSettings) -> list[str]:
        """Search reports of encoded images (B, S, width)."""
        most = min(decoding.max_new_tokens, self.settings.positions - 1)
        arguments = search_arguments(decoding.model_copy(update={"max_new_tokens": most}), self.tokenizer)
        with autocast(self.precision, str(self.device)), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Passing `repetition_penalty`")
            ids = search(self.logits, image, self.vocabulary.begin, self.vocabulary.size, arguments)
        return decoded_reports(self.tokenizer, ids)

    @torch.no_grad()
    def generate(self, images: Tensor, decoding: DecodingSettings) -> tuple[list[str], Tensor]:
        """Generate reports of images (B, 1, H, W).

        Returns:
            The reports, and diagnosis codes (B, 14) that are all BLANK: no diagnosis prompts the report.
        """
        with autocast(self.precision, str(self.device)):
            image = self.encode(images)
        texts = self.write(image, decoding)
        return texts, torch.full((len(texts), len(CONDITIONS)), int(Code.BLANK))


class ReportWriter(VocabularyWriter):
    """Image encoder and `ReportTransformer`, image to report.

    Args:
        encoder_file: weights of the image encoder that the site names.
    """

    def __init__(
        self,
        settings: TransformerSettings,
        vocabulary: ReportVocabulary,
        precision: str,
        seed: int,
        encoder_file: Path | None = None,
    ) -> None:
        super().__init__(settings, vocabulary, precision)
        with seeded(seed):
            self.encoder = VisualEncoder(settings.encoder, encoder_file)
            self.transformer = ReportTransformer(settings, self.encoder.width, vocabulary.size)
            self.compare = (
                None
                if settings.contrast_width is None
                else torch.nn.ModuleDict(
                    {
                        "image": torch.nn.Linear(settings.width, settings.contrast_width),
                        "report": torch.nn.Linear(settings.width, settings.contrast_width),
                    }
                )
            )

    # ---- image to words ----------------------------------------------------------------------------------

    def encode(self, images: Tensor) -> Tensor:
        return self.transformer.encode(self.encoder(images)[0])

    def logits(self, image: Tensor, ids: Tensor) -> Tensor:
        logits: Tensor = self.transformer(image, ids)
        return logits

    def hidden(self, image: Tensor, reports: Tensor) -> Tensor:
        """Return the decoder's states, (B, T, width), that predict each token of the reports (B, T)."""
        return self.transformer.hidden(image, self.after_begin(reports))

    def word_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood per report token; targets (B, T), IGNORED where padded."""
        return word_loss(self.transformer.out(hidden), targets)

    def report_loss(self, images: Tensor, reports: Tensor, targets: Tensor) -> Tensor:
        with autocast(self.precision, str(self.device)):
            return self.word_loss(self.hidden(self.encode(images), reports), targets)


def word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of targets (B, T), IGNORED where padded."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


def parameter_counts(model: VocabularyWriter) -> dict[str, int]:
    """Return the communicated parameters by part; running statistics are left out."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if part == "transformer" and name.split(".")[1] in ("memory", "words", "out"):
            part = name.split(".")[1]
        counts[part] = counts.get(part, 0) + parameter.numel()
    return counts
