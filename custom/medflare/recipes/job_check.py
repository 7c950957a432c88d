# SPDX-License-Identifier: Apache-2.0
"""Checks a job before it is started: every part of it, their combination, and what FLARE would misread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from medflare.aggregation import make_rule
from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.federation.server.late_updates import straggler_problems
from medflare.federation.site.settings import ExecutorSettings
from medflare.federation.visit_settings import visit_problems
from medflare.learners.registry import get_method
from medflare.protections.registry import get_protection
from medflare.recipes import combinations
from medflare.recipes.flare_traps import flare_traps
from medflare.recipes.job import AGGREGATION, CLIENT_CONFIG, SERVER_CONFIG, Job


def check_job(job: Job) -> None:
    """Check a job before it is started.

    Raises:
        ConfigError: lists everything that is wrong, not only the first.
    """
    problems: list[str] = []
    controller = {"job": job.title, **job.controller}
    executor = {"method": job.method, "settings": job.settings, **job.executor}
    checks: tuple[tuple[type[Settings], dict[str, Any], str], ...] = (
        (job.flow.settings, controller, f"{job.title}/{SERVER_CONFIG}"),
        (ExecutorSettings, executor, f"{job.title}/{CLIENT_CONFIG}"),
    )
    for settings, data, where in checks:
        _collect(problems, partial(parse, settings, data, where))
    _collect(
        problems, lambda: make_rule(job.aggregation.get("rule", ""), job.aggregation.get("rule_settings", {}))
    )
    _collect(problems, lambda: get_method(job.method).resolve(job.settings))
    unknown = sorted(set(job.aggregation) - set(AGGREGATION))
    if not problems:
        problems += [f"{job.title}: {what}" for what in _combination(job)]
    problems += [f"aggregator: no such setting '{key}'. Valid: {', '.join(AGGREGATION)}." for key in unknown]
    for name, content in job.files().items():
        problems += [f"{job.title}/{name}: {what}" for what in flare_traps(content)]
    if problems:
        raise ConfigError("\n".join(problems))


def _combination(job: Job) -> list[str]:
    """Return why rule, method, codec and protection of a job, each valid alone, cannot work together."""
    rounds = job.flow.settings.model_validate({"job": job.title, **job.controller})
    name, settings = job.aggregation.get("rule", ""), job.aggregation.get("rule_settings", {})
    faults = list(
        visit_problems(rounds, make_rule(name, settings), get_method(job.method).resolve(job.settings))
    )
    faults += straggler_problems(rounds, name, make_rule(name, settings), get_protection(rounds.protection))
    return faults + combinations.problems(
        name,
        job.method,
        job.settings,
        rounds.uplink,
        rounds.protection,
        rule_settings=settings,
        sites=job.n_clients,
    )


def _collect(problems: list[str], call: Callable[[], Any]) -> None:
    try:
        call()
    except ConfigError as error:
        problems.append(str(error))
