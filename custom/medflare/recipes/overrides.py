# SPDX-License-Identifier: Apache-2.0
"""A job with some values changed, as `--set key=value` does it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from medflare.core.config import new_name
from medflare.core.errors import ConfigError
from medflare.core.presets import lookup
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.site.executor import ExecutorSettings
from medflare.learners.registry import get_method
from medflare.recipes.job import AGGREGATION, Job

OF_THE_JOB = "job"
"""Value of `preset` by which the job's own settings stay as they are, whatever backbone the sites have."""


def override(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return the job with some values changed.

    Keys: `workflow`, `settings.<...>` for the method's settings, `rule`, `rule_settings.<...>`, and the
    fields of the workflow's settings and ExecutorSettings by their names. Dots go into nested settings.
    `preset` comes first: its settings take the place of all of the job's but those that the method keeps (the
    variant, an image encoder), and its values of rounds and transport that of the job's; `job` is no preset
    and changes nothing. Another workflow leaves behind what it has no setting for, another rule the settings
    of the one before.

    Raises:
        ConfigError: there is no such setting or workflow.
    """
    changes = dict(changes)
    if "preset" in changes:
        job, whole_job = _with_preset(job, changes.pop("preset"))
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


def _with_preset(job: Job, name: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job with a preset's settings, and what the preset changes beside them."""
    if name == OF_THE_JOB:
        return job, {}
    method = get_method(job.method)
    settings, whole_job = method.preset_changes(name)
    for key in method.kept_by_presets:
        value = lookup(job.settings, key)
        if value is not None:
            _set(settings, key, copy.deepcopy(value))
    return replace(job, settings=settings), whole_job


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
