# SPDX-License-Identifier: Apache-2.0
"""Opens FedViT-GPT2's model: new and small, from local ViT and GPT-2 folders, or from what a run made."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import Field

from medflare.core.config import parse
from medflare.core.errors import ConfigError, DataError
from medflare.core.model_folders import check_folder
from medflare.core.seeds import seeded
from medflare.models.backbone import LOADING, fingerprint, load_tokenizer, quiet_transformers
from medflare.models.embedded import decoder_folder
from medflare.models.encoder_folder import first_token, trained_precision
from medflare.models.result_files import ResultFacts, copy_tensors
from medflare.models.vit_gpt2 import BeamSettings, ViTGPT2, ViTGPT2Settings
from medflare.models.vit_stem import KEY, new_vit, read_vit, stem_of

METHOD, NEW = "fedvit_gpt2", "medflare-new-vit-gpt2"
MODEL_TYPES = {"encoder": "vit", "decoder": "gpt2"}
Channels = Annotated[list[float], Field(min_length=1)]
MOST_RATIO = 2
"""Of a network's weights to those that a result holds, at most: it lacks a ViT's pooling layer."""
HALF = [0.5, 0.5, 0.5]
"""Mean and standard deviation of Google's ViT checkpoints, where a folder says nothing else."""


class ViTGPT2Facts(ResultFacts):
    """Contents of vit_gpt2.json.

    Attributes:
        network: transformers' configuration of both parts.
        normalisation: mean and standard deviation of each channel.
    """

    model: ViTGPT2Settings
    decoding: BeamSettings
    network: dict[str, Any]
    normalisation: tuple[Channels, Channels]


def load_vit_gpt2(
    folder: Path | None, precision: str, device: str, settings: ViTGPT2Settings, seed: int
) -> ViTGPT2:
    """Return the model before round 1, in fp32, with `settings` as they were built.

    Args:
        folder: holds `encoder/` (a ViT) and `decoder/` (a GPT-2 with its tokenizer), each a local Hugging
            Face folder; their configurations go before `settings`. None for a small new model.
        seed: of everything that no folder brings, the cross-attention included.

    Raises:
        ConfigError: the folder is missing or holds something else, or the precision cannot learn.
    """
    chosen = trained_precision(precision, device, METHOD)
    words = decoder_folder() if folder is None else folder / "decoder"
    if folder is not None:
        check_parts(folder)
    tokenizer = load_tokenizer(words)
    with seeded(seed), quiet_transformers():
        network = _new(settings, tokenizer) if folder is None else _assembled(folder)
    _check_vocabulary(tokenizer, network, words)
    model = ViTGPT2(
        network,
        tokenizer,
        as_built(settings, network.config),
        name=NEW if folder is None else folder.name,
        fingerprint=fingerprint_of_new(settings) if folder is None else fingerprint_of_parts(folder),
        precision=chosen,
        begin=first_token(tokenizer.bos_token_id, tokenizer.eos_token_id),
        normalisation=(HALF, HALF) if folder is None else _normalisation(folder / "encoder"),
    )
    return model.to(device)


def open_vit_gpt2(
    folder: Path,
    facts: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    backbone: Path | None,
    precision: str,
    device: str,
) -> tuple[ViTGPT2, BeamSettings]:
    """Return the model of a result folder in eval mode, and its decoding.

    Args:
        facts, tensors: what `vit_gpt2.json` and `vit_gpt2.safetensors` of `folder` hold.
        backbone: the folder the run began with, whose tokenizer is needed; None for a new model.
    """
    written = parse(ViTGPT2Facts, facts, str(folder / "vit_gpt2.json"))
    settings = written.model
    chosen = trained_precision(precision, device, METHOD)
    if backbone is not None:
        check_parts(backbone)
    tokenizer = load_tokenizer(decoder_folder() if backbone is None else backbone / "decoder")
    network = _network(written.network, tensors, folder)
    actual = fingerprint_of_new(settings) if backbone is None else fingerprint_of_parts(backbone)
    recorded = written.backbone
    if actual != recorded.get("fingerprint"):
        used = NEW if backbone is None else backbone.name
        raise ConfigError(
            f"{folder}: was trained from '{recorded.get('name')}' with fingerprint "
            f"{str(recorded.get('fingerprint'))[:16]}, but '{used}' here has {actual[:16]}. "
            "Give the same weights with --backbone."
        )
    model = ViTGPT2(
        network,
        tokenizer,
        settings,
        name=recorded.get("name", ""),
        fingerprint=actual,
        precision=chosen,
        begin=first_token(tokenizer.bos_token_id, tokenizer.eos_token_id),
        normalisation=written.normalisation,
    )
    copy_tensors(model.shared_tensors(), tensors, folder / "vit_gpt2.safetensors")
    return model.to(device).eval(), written.decoding


def _network(written: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], folder: Path) -> Any:
    """Return the network that a result's configuration asks for, with random weights.

    The configuration is transformers' own and may ask for anything; so the network is first made without
    memory, and compared with the weights that the result holds.

    Raises:
        DataError: there is no such network, or one of another size.
    """
    from transformers import VisionEncoderDecoderConfig

    file = folder / "vit_gpt2.json"
    try:
        with quiet_transformers():
            config: Any = VisionEncoderDecoderConfig.from_dict(dict(written))
            layers = max(config.encoder.num_hidden_layers, config.decoder.n_layer)
            held, asked = sum(value.numel() for value in tensors.values()), math.inf
            if layers <= len(tensors):
                with torch.device("meta"):
                    asked = sum(value.numel() for value in network_of(config).parameters())
    except Exception as error:  # of transformers and torch, of any kind
        raise DataError(
            f"{file}: 'network' is no configuration of a ViT and a GPT-2 ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:200] if str(error) else 'no reason given'}). Take the folder from "
            "its source again."
        ) from None
    if not held <= asked <= MOST_RATIO * held:
        size = f"{layers:,} layers" if asked == math.inf else f"{asked:,} weights"
        raise DataError(
            f"{file}: its network has {size}, and vit_gpt2.safetensors beside it holds {held:,} weights. The "
            "files are not of one result: take the folder from its source again."
        )
    with quiet_transformers():
        return network_of(config)


def check_parts(folder: Path) -> None:
    """Raise ConfigError unless `encoder/` holds a ViT and `decoder/` a GPT-2."""
    from transformers import AutoConfig

    for part, expected in MODEL_TYPES.items():
        check_folder(folder / part)
        model_type = AutoConfig.from_pretrained(folder / part, local_files_only=True).model_type
        if model_type != expected:
            raise ConfigError(
                f"backbone.folder: '{folder / part}' holds a model of the kind '{model_type}', expected "
                f"'{expected}'. fedvit_gpt2 wants a folder with a ViT in encoder/ and a GPT-2 in decoder/; "
                "leave the folder out for a small new model."
            )


def fingerprint_of_parts(folder: Path) -> str:
    """Return the SHA-256 over the fingerprints of both folders and the images' normalisation."""
    parts = [fingerprint(folder / part) for part in MODEL_TYPES]
    return hashlib.sha256(json.dumps([*parts, _normalisation(folder / "encoder")]).encode()).hexdigest()


def fingerprint_of_new(settings: ViTGPT2Settings) -> str:
    """Return a hash of shape and vocabulary; the weights come from one site before round 1."""
    unset = None if settings.encoder.stem_channels else {"encoder": {"stem_channels"}}  # as it was before
    total = hashlib.sha256(settings.model_dump_json(exclude=unset).encode())
    total.update((decoder_folder() / "tokenizer.json").read_bytes())
    return total.hexdigest()


def as_built(settings: ViTGPT2Settings, config: Any) -> ViTGPT2Settings:
    """Return `settings` with the sizes of the network."""
    vit, gpt2 = config.encoder, config.decoder
    if not isinstance(vit.image_size, int) or not isinstance(vit.patch_size, int):
        raise ConfigError(
            f"backbone.folder: encoder/ expects images of {vit.image_size} in patches of {vit.patch_size}; "
            "only square ones are supported."
        )
    encoder = settings.encoder.model_copy(
        update={
            "layers": vit.num_hidden_layers,
            "width": vit.hidden_size,
            "attention_heads": vit.num_attention_heads,
            "image_size": vit.image_size,
            "patch": vit.patch_size,
            "stem_channels": stem_of(vit),
        }
    )
    decoder = settings.decoder.model_copy(
        update={
            "layers": gpt2.n_layer,
            "width": gpt2.n_embd,
            "attention_heads": gpt2.n_head,
            "positions": gpt2.n_positions,
        }
    )
    return settings.model_copy(update={"encoder": encoder, "decoder": decoder})


def _new(settings: ViTGPT2Settings, tokenizer: Any) -> Any:
    """Return a network with random weights and the embedded decoder's vocabulary."""
    from transformers import GPT2Config, VisionEncoderDecoderConfig, ViTConfig

    vit, gpt2, rate = settings.encoder, settings.decoder, settings.dropout
    stem: dict[str, Any] = {KEY: list(vit.stem_channels)} if vit.stem_channels else {}
    encoder = ViTConfig(
        hidden_size=vit.width,
        num_hidden_layers=vit.layers,
        num_attention_heads=vit.attention_heads,
        intermediate_size=4 * vit.width,
        image_size=vit.image_size,
        patch_size=vit.patch,
        hidden_dropout_prob=rate,
        attention_probs_dropout_prob=0.0,
        **stem,
    )
    decoder = GPT2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        n_embd=gpt2.width,
        n_layer=gpt2.layers,
        n_head=gpt2.attention_heads,
        n_positions=gpt2.positions,
        resid_pdrop=rate,
        embd_pdrop=rate,
        attn_pdrop=0.0,  # with it torch leaves the fast path: three times the seconds on a processor
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return network_of(VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder))


def network_of(config: Any) -> Any:
    """Return a VisionEncoderDecoderModel with random weights, its ViT with the stem that `config` names."""
    from transformers import VisionEncoderDecoderModel

    stem = stem_of(config.encoder)
    return VisionEncoderDecoderModel(config, encoder=new_vit(config.encoder) if stem else None)


def _assembled(folder: Path) -> Any:
    """Return pretrained ViT and GPT-2 with new cross-attention between them."""
    from transformers import GPT2Config, GPT2LMHeadModel, VisionEncoderDecoderModel

    with LOADING:
        vit = read_vit(folder / "encoder")
    config = GPT2Config.from_pretrained(folder / "decoder", local_files_only=True)
    config.is_decoder = config.add_cross_attention = True
    with LOADING:
        gpt2 = GPT2LMHeadModel.from_pretrained(
            folder / "decoder", config=config, local_files_only=True, dtype=torch.float32
        )
    return VisionEncoderDecoderModel(encoder=vit, decoder=gpt2)


def _check_vocabulary(tokenizer: Any, network: Any, words: Path) -> None:
    if len(tokenizer) > network.config.decoder.vocab_size:
        raise ConfigError(
            f"backbone.folder: the tokenizer in '{words}' has {len(tokenizer)} tokens, the model beside it "
            f"{network.config.decoder.vocab_size}. Give the model's own tokenizer."
        )


def _normalisation(folder: Path) -> tuple[list[float], list[float]]:
    """Return mean and standard deviation of each channel that the ViT's own preprocessor names, or 0.5."""
    file = folder / "preprocessor_config.json"
    named = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return list(named.get("image_mean", HALF)), list(named.get("image_std", HALF))
