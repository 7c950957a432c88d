# SPDX-License-Identifier: Apache-2.0
"""Check that a network has per-example gradients; else the reason why not.

Everything is refused before a step is made: a layer that lets examples see each other gives no error, only a
guarantee that does not hold.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from medflare.core.errors import ConfigError
from medflare.differential_privacy.accounting import WITHOUT

SHOWN = 4
"""Most reasons that an error lists."""


def check_hookable(module: nn.Module) -> None:
    """Refuse a network whose per-example gradients Opacus cannot compute, or that couples examples.

    Args:
        module: in the mode, and with the parameters set to learn, in which it will be trained.

    Raises:
        ConfigError: names layers and reasons; or opacus is missing.
    """
    problems = [f"{name or 'the network'}: {why}" for name, why in _problems(module)]
    if not any(p.requires_grad for p in module.parameters()):
        problems.append("nothing of the network learns")
    if problems:
        more = f" (and {len(problems) - SHOWN} more)" if len(problems) > SHOWN else ""
        raise ConfigError(
            f"settings.dp: this network cannot be trained with differential privacy: "
            f"{'; '.join(problems[:SHOWN])}{more}. Take another adapter or encoder, freeze these layers, or "
            "leave dp out."
        )


def _problems(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield (name of a layer, why there are no gradients of single examples)."""
    try:
        from medflare.differential_privacy.conv1d import SAMPLERS
    except ModuleNotFoundError:
        raise ConfigError(WITHOUT) from None
    samplers, inside = SAMPLERS, list[str]()
    for name, layer in module.named_modules():
        learns = any(p.requires_grad for p in layer.parameters(recurse=False))
        if isinstance(layer, _BatchNorm) and (layer.training or learns):
            yield name, "BatchNorm normalises with other examples of a batch; take GroupNorm, or freeze it"
        elif isinstance(layer, _InstanceNorm) and layer.track_running_stats and layer.training:
            yield name, "InstanceNorm keeps running statistics of all examples; freeze it"
        elif isinstance(layer, nn.MultiheadAttention) and any(p.requires_grad for p in layer.parameters()):
            inside.append(f"{name}.")
            yield name, "MultiheadAttention uses its weights where no hook sees them; freeze it"
        elif learns and type(layer) not in samplers and not name.startswith(tuple(inside)):
            direct = ", ".join(n for n, p in layer.named_parameters(recurse=False) if p.requires_grad)
            yield name, f"{type(layer).__name__} has parameters ({direct}) that Opacus cannot hook"
        if vars(layer).get("gradient_checkpointing") and layer.training:
            yield name, "gradient checkpointing runs a layer twice, and hooks count it twice; switch it off"
