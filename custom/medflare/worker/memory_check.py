# SPDX-License-Identifier: Apache-2.0
"""Refusal of a pretrained model that cannot fit, before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from medflare.core.errors import MedflareError
from medflare.data.settings.site import SiteConfig
from medflare.learners.footprint import footprint
from medflare.models.backbone import device_of
from medflare.wire.memory import free_bytes


class TooLittleMemoryError(MemoryError):
    """A model that was not loaded, because it cannot fit; a site reports it as E34."""


def free_memory(device_name: str, gpus: Sequence[int] = (0,)) -> tuple[int, str]:
    """Return (bytes free, where): on these GPUs, or of this machine within the limits of its container."""
    if device_name == "cuda":
        free = sum(int(torch.cuda.mem_get_info(number)[0]) for number in gpus)
        return free, "GPU" if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return free_bytes(), "CPU"


def require_memory(method: str, settings: Mapping[str, Any], site: SiteConfig) -> None:
    """Compare what training a pretrained model needs at the least with what is free.

    Activations are left out: they depend on the texts, and an estimate must not refuse what would fit. Where
    none can be made, the model is loaded as ever.

    Raises:
        TooLittleMemoryError: the weights, the optimiser and the exchange are more than is free.
    """
    if site.backbone.folder is None:
        return
    try:
        need = footprint(method, settings, site)
    except (MedflareError, OSError, ValueError, RuntimeError):  # the learner says what is wrong with a folder
        return
    if need is None:
        return
    least = need.frozen + need.learning + need.exchange
    # this process sees the site's devices alone, numbered from 0
    gpus = range(len(site.devices)) if site.spread_layers else (0,)
    free, where = free_memory(device_of(site.device), gpus)
    if least > free:
        raise TooLittleMemoryError(
            f"weights, optimiser and exchange of {site.backbone.folder} need {least / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free on the {where}. Nothing was loaded. Take backbone.precision bf16, "
            "int8 or nf4, a smaller lora.rank or a smaller model, spread_layers over several GPUs, or end "
            "other programs."
        )
