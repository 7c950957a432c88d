# SPDX-License-Identifier: Apache-2.0
"""The small weights that ship with the product.

`decoder/` is a Hugging Face folder of a small Llama-style decoder of chest X-ray reports, `notes_decoder/`
one of clinical notes, `encoder/` holds a small radiograph encoder. `python -m tools.embedded_weights.reports`
makes the first and the last, `python -m tools.embedded_weights.notes` the second. They are for
demonstrations, tests and studies on synthetic hospitals; none is for clinical use. Each has a card.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from torch import Tensor

from medflare.core.errors import ConfigError


def decoder_folder(name: Literal["decoder", "notes_decoder"] = "decoder") -> Path:
    """Return the folder `AutoModelForCausalLM.from_pretrained` opens."""
    return _folder(name, "model.safetensors")


def encoder_state() -> dict[str, Tensor]:
    """Return state of `models.encoders.SmallResNet`, pretrained on synthetic radiographs."""
    from safetensors.torch import load_file

    return load_file(_folder("encoder", "encoder.safetensors") / "encoder.safetensors")


def _folder(name: str, needed: str) -> Path:
    folder = Path(__file__).parent / name
    if not (folder / needed).is_file():
        program = "notes" if name == "notes_decoder" else "reports"
        raise ConfigError(
            f"the embedded {name} is not installed ({folder.name}/{needed} is missing). "
            f"Reinstall medflare, or make the weights again: python -m tools.embedded_weights.{program}"
        )
    return folder
