# SPDX-License-Identifier: Apache-2.0
"""Changes of a job that would change nothing: who asks for something should learn that it does not happen.

A job's own file may hold settings of a variant that it does not use; what somebody types must have an effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.idle_settings import idle, idle_if, without_effect
from medflare.learners.registry import get_method
from medflare.recipes.job import Job


def require_effect(job: Job, changed: Iterable[str]) -> None:
    """Refuse changes that have no effect beside the job's other settings.

    Args:
        job: with the changes.
        changed: their keys, as --set has them.

    Raises:
        ConfigError: with each change, and the setting that leaves it without effect.
    """
    asked = set(changed)
    try:
        reasons = _without_effect(job) if asked else {}
    except ConfigError:
        return  # a setting that cannot be used, which `check_job` names together with all others
    if faults := idle(asked, reasons):
        raise ConfigError(
            f"{job.title}: {'; '.join(faults)}. Leave the setting out, or change what it depends on, too."
        )


def _without_effect(job: Job) -> dict[str, str]:
    """Return the settings of method, rule and rounds that do nothing in a job -> why, with keys of --set."""
    found = without_effect(get_method(job.method).resolve(job.settings), "settings.")
    name, given = job.aggregation.get("rule"), job.aggregation.get("rule_settings", {})
    if isinstance(name, str) and isinstance(given, dict):
        found |= without_effect(make_rule(name, given).settings, "rule_settings.")
    return found | _of_the_rounds(job.controller)


def _of_the_rounds(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the same of the rounds' settings, and of the method's that they overrule."""
    trains = "says how much a site trains in a round"
    steps, fraction = given.get("steps") is not None, given.get("fraction") is not None
    return idle_if(
        (fraction, f"fraction {trains}", "settings.local_epochs"),
        (steps, f"steps {trains}", "settings.local_epochs fraction"),
        (given.get("evaluate_every") == 0, "evaluate_every is 0", "settings.eval_limit limit"),
        (given.get("mode") == "async", "mode is 'async', where each update counts by its age", "late"),
    )
