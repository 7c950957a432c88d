# SPDX-License-Identifier: Apache-2.0
"""A job with some values changed, as `--set key=value` does it."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from medflare.aggregation import make_rule
from medflare.core.config import new_name, parse
from medflare.core.errors import ConfigError
from medflare.core.presets import lookup
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.site.settings import ExecutorSettings
from medflare.learners.registry import get_method
from medflare.protections.compatibility import unreadable
from medflare.protections.registry import get_protection
from medflare.recipes.changed_settings import require_effect
from medflare.recipes.job import AGGREGATION, Job
from medflare.wire.compression import CODECS

OF_THE_JOB = "job"
"""Value of `preset` by which the job's own settings stay as they are, whatever backbone the sites have."""
EXCHANGES = "exchanges"
"""Key of a change that divides each round: as many updates of as much less training."""
SCHEDULE = ("steps", "fraction", "workflow", "mode")
"""Changes that say how much a site trains between two updates. Beside one, a preset names no other rule."""


def override(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return the job with some values changed.

    Keys: `workflow`, `settings.<...>` for the method's settings, `rule`, `rule_settings.<...>`, and the
    fields of the workflow's settings and ExecutorSettings by their names. Dots go into nested settings.
    `preset` comes first: its settings take the place of all of the job's but those that the method keeps (the
    variant, an image encoder), and its values of rounds, transport and the job's own rule that of the job's;
    `job` is no preset and changes nothing. Another workflow leaves behind what it has no setting for, another
    rule the settings of the one before; so do another protection and mode, and no simulated clock. What
    stands in several places of a job (FedTAR's `visits` and `mixture`) changes in all of them where one is
    named, and goes where the method has no use for it any more. `exchanges` comes last: each round becomes so
    many, of as much less training.

    Raises:
        ConfigError: there is no such setting or workflow, or a change has no effect.
    """
    changes, asked = dict(changes), set(changes)
    if "preset" in changes:
        name = changes.pop("preset")
        job, whole_job = _with_preset(job, name)
        changes = {**whole_job, **rule_changes(job, name, changes), **changes}
    exchanges = changes.pop(EXCHANGES, 1)
    if "workflow" in changes:
        job = _in_workflow(job, str(changes.pop("workflow")))
    if changes.get("rule", job.aggregation.get("rule")) != job.aggregation.get("rule"):
        job = replace(job, aggregation={})
    everywhere = _in_every_place(job, changes)
    asked |= everywhere.keys() - changes.keys()
    changes = everywhere
    job = _without_what_it_leaves(job, changes)
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
        elif first in job.flow.settings.model_fields and first != "job":
            _set(blocks["controller"], key, value)
        elif key in ExecutorSettings.model_fields and key not in ("method", "settings"):
            blocks["executor"][key] = value
        else:
            unknown.append(key)
    if unknown:
        known_before = {key: new_name(key, job.flow.settings) for key in unknown}
        renamed = "".join(f"'{key}' is now called {new}. " for key, new in known_before.items() if new)
        raise ConfigError(
            f"no such setting: {', '.join(unknown)}. {renamed}Valid: preset, {EXCHANGES}, rule, "
            f"rule_settings.<key>, settings.<key of the method>, workflow, "
            f"{', '.join(_setting_names(job.flow.settings))}."
        )
    changed = _without_idle_facts(replace(job, **blocks), asked)
    require_effect(changed, asked)
    return _in_exchanges(changed, exchanges)


def _without_what_it_leaves(job: Job, changes: Mapping[str, Any]) -> Job:
    """Return the job without its own settings that have no effect, or cannot be, beside the changes.

    A setting that somebody asked for stays, and is refused where it has none or cannot be.
    """
    now, left = job.controller, set[str]()
    if changes.get("protection", now.get("protection")) != now.get("protection"):
        left.add("protection_settings")
        if get_protection(str(changes["protection"])).server_reads != "updates" and not _is_summable(now):
            left.add("uplink")
    if changes.get("mode", now.get("mode")) != now.get("mode"):
        left.add("buffer")
    if not changes.get("latency_profiles", True):
        left.add("simulated_deadline")
    return replace(job, controller={key: value for key, value in now.items() if key not in left})


def _is_summable(controller: Mapping[str, Any]) -> bool:
    """Return whether updates in a job's own uplink can be added under a protection."""
    codec = CODECS.get(str(controller.get("uplink")))
    return codec is None or codec.summable


def _without_idle_facts(job: Job, asked: Collection[str]) -> Job:
    """Return the job without facts of the run that its method has no use for after the changes.

    FedTAR's variants without factors of patients fit no mixture, whatever the rounds of the job have.
    """
    method = get_method(job.method)
    if not any(key.startswith("settings.") for key in asked):
        return job
    try:
        idle = method.resolve(job.settings).without_effect
    except ConfigError:
        return job  # `check_job` names what cannot be used
    gone = [name for name in method.settings.facts_of_the_run if name in idle and name not in asked]
    return replace(job, controller={key: value for key, value in job.controller.items() if key not in gone})


def _in_every_place(job: Job, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the changes, with a fact of the run in each of its places when it is said of one.

    Places that are named with different values stay as they are named: the job is refused then.
    """
    of_rule = job.aggregation.get("rule_settings")
    every = dict(changes)
    for name in get_method(job.method).settings.facts_of_the_run:
        places = ["settings."]
        places += [""] if name in job.flow.settings.model_fields else []
        places += ["rule_settings."] if isinstance(of_rule, Mapping) and name in of_rule else []
        by_place = (_beneath(f"{place}{name}", changes) for place in places)
        given = [facts for facts in by_place if facts]
        if not given or None in given[0].values() or any(facts != given[0] for facts in given):
            continue
        every |= {f"{place}{name}{rest}": v for place in places for rest, v in given[0].items()}
    return every


def _beneath(key: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a key and of what is nested in it, by what follows the key."""
    return {k.removeprefix(key): v for k, v in changes.items() if k == key or k.startswith(f"{key}.")}


def rule_changes(job: Job, name: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a preset changes for the job's rule, with the keys of `override`.

    Args:
        name: of the preset; changes: the others that were asked for.
    """
    if name == OF_THE_JOB:
        return {}
    rule = changes.get("rule", job.aggregation.get("rule"))
    by_rule = get_method(job.method).rule_presets.get(name, {})
    found = dict(by_rule.get(rule, {})) if isinstance(rule, str) else {}  # another type is refused later
    return {} if "rule" in found and not _rule_is_free(job, found, changes) else found


def _with_preset(job: Job, name: Any) -> tuple[Job, dict[str, Any]]:
    """Return the job with a preset's settings, and what the preset changes beside them and the rule."""
    if name == OF_THE_JOB:
        return job, {}
    method = get_method(job.method)
    settings, whole_job = method.preset_changes(name)
    for key in method.kept_by_presets:
        value = lookup(job.settings, key)
        if value is not None:
            _set(settings, key, copy.deepcopy(value))
    return replace(job, settings=settings), whole_job


def _rule_is_free(job: Job, for_rule: Mapping[str, Any], changes: Mapping[str, Any]) -> bool:
    """Return whether a preset may name another rule: nobody has chosen one, and the server could work by it.

    Args:
        for_rule: what the preset would change; changes: what was asked for.
    """
    chosen = any(key.partition(".")[0] in (*AGGREGATION, *SCHEDULE) for key in changes)
    scheduled = any(job.controller.get(key) is not None for key in SCHEDULE)
    if chosen or scheduled or set(job.aggregation) - {"rule"}:
        return False
    protection = changes.get("protection", job.controller.get("protection", "none"))
    if not isinstance(protection, str):
        return False
    name = for_rule["rule"]
    return not any(unreadable(name, make_rule(name, {}), get_protection(protection)))


def _in_exchanges(job: Job, exchanges: Any) -> Job:
    """Return the job with each round divided: as many rounds, each with its share of the passes.

    Raises:
        ConfigError: this is no number of exchanges, or the job's rounds cannot be divided by it.
    """
    if exchanges == 1 and not isinstance(exchanges, bool):
        return job
    if not isinstance(exchanges, int) or isinstance(exchanges, bool) or exchanges < 1:
        raise ConfigError(f"{EXCHANGES} is {exchanges!r}; expected a whole number from 1.")
    given = parse(job.flow.settings, {"job": job.title, **job.controller}, f"the controller of {job.title}")
    if given.steps is not None or given.mode == "async" or given.temporal is not None:
        says = "steps" if given.steps is not None else "mode" if given.mode == "async" else "workflow"
        raise ConfigError(
            f"{EXCHANGES} divides the passes of a round, and here {says} says how much a site trains between "
            "two updates. Leave one of the two out."
        )
    passes = get_method(job.method).resolve(job.settings).passes if given.fraction is None else given.fraction
    if passes > exchanges:
        raise ConfigError(
            f"{EXCHANGES} is {exchanges}, and a round has {passes} passes: each exchange has one at most. "
            f"Expected {EXCHANGES} from {passes}."
        )
    divided = {
        "num_rounds": given.num_rounds * exchanges,
        "fraction": passes / exchanges,
        "evaluate_every": given.evaluate_every * exchanges,
    }
    return replace(job, controller={**job.controller, **divided})


def _in_workflow(job: Job, name: str) -> Job:
    """Return the job with another workflow, without the settings that this one does not have."""
    other = replace(job, workflow=name)
    fields = other.flow.settings.model_fields
    return replace(other, controller={k: v for k, v in job.controller.items() if k in fields})


def _setting_names(controller: type[RoundsSettings]) -> list[str]:
    fields = {*controller.model_fields, *ExecutorSettings.model_fields}
    return sorted(fields - {"job", "method", "settings"})


def _set(block: dict[str, Any], key: str, value: Any) -> None:
    """Put a value where a dotted key says; ConfigError where something on the way has nothing within it."""
    *path, last = key.split(".")
    for part in path:
        inner = block.setdefault(part, {})
        if inner is None:
            inner = block[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: {part} is {inner!r} and has no settings within it.")
        block = inner
    block[last] = value
