# SPDX-License-Identifier: Apache-2.0
"""A job with some values changed, as `--set key=value` does it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from medflare.core.config import new_name
from medflare.core.errors import ConfigError
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.site.executor import ExecutorSettings
from medflare.learners.registry import get_method
from medflare.recipes.job import AGGREGATION, Job


def override(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return the job with some values changed.

    Keys: `workflow`, `settings.<...>` for the method's settings, `rule`, `rule_settings.<...>`, and the
    fields of the workflow's settings and ExecutorSettings by their names. Dots go into nested settings.
    `preset` comes first: its settings take the place of all of the job's but the variant, and its values of
    rounds and transport that of the job's. Another workflow leaves behind what it has no setting for,
    another rule the settings of the one before.

    Raises:
        ConfigError: there is no such setting or workflow.
    """
    changes = dict(changes)
    if "preset" in changes:
        settings, whole_job = get_method(job.method).preset_changes(changes.pop("preset"))
        variant = {"variant": job.settings["variant"]} if "variant" in job.settings else {}
        job = replace(job, settings={**settings, **variant})
        changes = {**whole_job, **changes}
    if "workflow" in changes:
        job = _in_workflow(job, str(changes.pop("workflow")))
    if changes.get("rule", job.aggregation.get("rule")) != job.aggregation.get("rule"):
        job = replace(job, aggregation={})
    blocks: dict[str, Any] = {
        "settings": copy.deepcopy(job.settings),
        "controller": copy.deepcopy(job.controller),
        "executor": copy.deepcopy(job.executor),
        "aggregation": copy.deepcopy(job.aggregation),
    }
    unknown = []
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        if first == "settings" and rest:
            _set(blocks["settings"], rest, value)
        elif first in AGGREGATION:
            _set(blocks["aggregation"], key, value)
        elif key in job.flow.settings.model_fields and key != "job":
            blocks["controller"][key] = value
        elif key in ExecutorSettings.model_fields and key not in ("method", "settings"):
            blocks["executor"][key] = value
        else:
            unknown.append(key)
    if unknown:
        known_before = {key: new_name(key, job.flow.settings) for key in unknown}
        renamed = "".join(f"'{key}' is now called {new}. " for key, new in known_before.items() if new)
        raise ConfigError(
            f"no such setting: {', '.join(unknown)}. {renamed}Valid: preset, settings.<key of the method>, "
            f"rule, rule_settings.<key>, workflow, {', '.join(_setting_names(job.flow.settings))}."
        )
    return replace(job, **blocks)


def _in_workflow(job: Job, name: str) -> Job:
    """Return the job with another workflow, without the settings that this one does not have."""
    other = replace(job, workflow=name)
    fields = other.flow.settings.model_fields
    return replace(other, controller={k: v for k, v in job.controller.items() if k in fields})


def _setting_names(controller: type[RoundsSettings]) -> list[str]:
    fields = {*controller.model_fields, *ExecutorSettings.model_fields}
    return sorted(fields - {"job", "method", "settings"})


def _set(block: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        block = block.setdefault(part, {})
    block[last] = value
