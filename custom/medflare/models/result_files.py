# SPDX-License-Identifier: Apache-2.0
"""The files of a result folder: JSON, tensors, and whether the backbone is the one of the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from medflare.core.config import Settings
from medflare.core.errors import ConfigError, DataError
from medflare.core.model_folders import stored_with
from medflare.models.adapters.base import GENERIC, AdapterSet
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.encoder_folder import TextEncoder


class ResultFacts(Settings):
    """Facts in the JSON file of a result, as far as they are read; a method adds its own blocks."""

    model_config = ConfigDict(extra="ignore")

    backbone: dict[str, str]


def check_fingerprint(folder: Path, recorded: Mapping[str, str], base: Backbone | TextEncoder) -> None:
    """Raise ConfigError unless `base` is the model that a run began with."""
    if base.fingerprint != recorded.get("fingerprint"):
        raise ConfigError(
            f"{folder}: was trained on backbone '{recorded.get('name')}' with fingerprint "
            f"{str(recorded.get('fingerprint'))[:16]}, but '{base.name}' here has {base.fingerprint[:16]}. "
            f"Give the same weights with --backbone, or add them with 'medflare models add'."
        )


def load_base(
    folder: Path,
    recorded: Mapping[str, str],
    given: Path | None,
    precision: str,
    device: str,
    embedded: Literal["decoder", "notes_decoder"] = "decoder",
) -> Backbone:
    """Return the model that a run began with: of a folder, one of this machine, or an embedded one.

    Args:
        folder: of the result; recorded: its block `backbone`.
        given: the model's folder where a user names one.

    Raises:
        ConfigError: it is another model.
    """
    base = load_backbone(given or stored_with(recorded.get("fingerprint")), precision, device, embedded)
    check_fingerprint(folder, recorded, base)
    return base


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file of a result folder; DataError when it is missing or holds none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: there is no such file. Name the folder `result/adapter` of a finished run."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of JSON, found {type(content).__name__}.")
    return content


def block_of(facts: Mapping[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return a block of a result's file; DataError where there is none."""
    block = facts.get(name)
    if not isinstance(block, dict):
        raise DataError(
            f"{path}: lacks the block '{name}'. Name the folder `result/adapter` of a finished run."
        )
    return block


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file; DataError when it is missing, damaged, or not of numbers."""
    if not path.is_file():
        raise DataError(f"{path}: there is no such file. Name the folder `result/adapter` of a finished run.")
    try:
        tensors = load_file(path)
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as safetensors: {error}.") from None
    for name, value in tensors.items():
        if not bool(torch.isfinite(value).all()):
            raise DataError(
                f"{path}: the tensor '{name}' has values that are not finite, with which a model writes "
                "anything. Copy the folder again from the run."
            )
    return tensors


def load_adapter(adapters: AdapterSet, folder: Path) -> None:
    """Read the adapter of a folder into the generic adapter, and put that to use.

    Raises:
        DataError: the file is missing, or its tensors are not those that adapter_config.json describes.
    """
    file = folder / "adapter_model.safetensors"
    tensors = read_tensors(file)
    try:
        adapters.load_file_tensors(GENERIC, tensors)
    except (KeyError, RuntimeError) as error:
        raise DataError(f"{file}: does not fit adapter_config.json beside it: {error}") from None
    adapters.use((GENERIC,))


@torch.no_grad()
def copy_tensors(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], file: Path) -> None:
    """Copy the tensors of a file into a model's tensors of the same names.

    Raises:
        DataError: the file lacks one, or one has another shape.
    """
    for name, target in targets.items():
        if name not in tensors:
            raise DataError(f"{file}: lacks the tensor '{name}'.")
        if tensors[name].shape != target.shape:
            raise DataError(
                f"{file}: the tensor '{name}' has the shape {tuple(tensors[name].shape)}; expected "
                f"{tuple(target.shape)}, as the settings beside it say."
            )
        target.copy_(tensors[name])
