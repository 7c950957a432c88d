# SPDX-License-Identifier: Apache-2.0
"""The preset of a job for the language model that its sites name, where nobody has chosen one.

The jobs of this package hold rates and budgets of the small embedded models, or of new ones. A pretrained
model would learn nothing good at them, and would do so without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import get_method
from medflare.recipes.job import Job
from medflare.recipes.overrides import EXCHANGES, OF_THE_JOB, rule_changes


@dataclass(frozen=True, slots=True)
class ChosenPreset:
    """A preset, and why it was chosen, for whoever started the run."""

    name: str
    reason: str


def choose_preset(
    job: Job, changes: Mapping[str, Any], sites: Mapping[str, SiteConfig]
) -> ChosenPreset | None:
    """Return the preset for the largest pretrained model among the sites; None to leave the job as it is.

    A job is left where its rate suits a pretrained model, and where a preset is asked for.

    Args:
        changes: what was asked for, with the keys of `overrides.override`.
        sites: those that take part.
    """
    method = get_method(job.method)
    rate = method.rate_for_embedded(job.settings)
    if rate is None or "preset" in changes:
        return None
    folders = {name: site.backbone.folder for name, site in sites.items() if site.backbone.folder}
    sizes = {name: parameter_count(folder) for name, folder in folders.items()}
    if not any(sizes.values()):  # a folder without weights is named when the sites' settings are checked
        return None
    largest = max(sizes, key=lambda name: sizes[name])
    name = method.preset_for(sizes[largest])
    assert name is not None, "a method with a rate for embedded models has presets for others"
    return ChosenPreset(
        name,
        f"{name}, because {largest} has {folders[largest].name} with {sizes[largest]:,} parameters, and the "
        f"job's own rate {rate:g} is for {method.new_model or 'the embedded model'}; "
        f"--set preset={OF_THE_JOB} keeps the job's own"
        + _divided(rule_changes(job, name, changes) | dict(changes)),
    )


def _divided(changes: Mapping[str, Any]) -> str:
    """Return in words that a round is shown as several."""
    exchanges = changes.get(EXCHANGES, 1)
    return "" if exchanges == 1 else f". Each round becomes {exchanges}, of as much less training"


def with_preset(
    job: Job,
    changes: Mapping[str, Any],
    sites: Mapping[str, SiteConfig],
    on_event: Callable[[dict[str, Any]], None] | None,
) -> dict[str, Any]:
    """Return the changes to a job with the preset that its sites' backbones need, and report why.

    Args:
        on_event: called with the event `preset`, where one was chosen.
    """
    chosen = choose_preset(job, changes, sites)
    if chosen is None:
        return dict(changes)
    if on_event is not None:
        on_event({"phase": "preset", "reason": chosen.reason})
    return {"preset": chosen.name, **changes}


def parameter_count(folder: Path) -> int:
    """Return how many numbers a folder's safetensors files hold, from their headers; 0 without any file."""
    from safetensors import safe_open

    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - safe_open is no mapping
                size = 1
                for length in weights.get_slice(name).get_shape():
                    size *= length
                total += size
    return total
