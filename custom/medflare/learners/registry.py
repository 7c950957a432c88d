# SPDX-License-Identifier: Apache-2.0
"""The training methods that exist.

This table is the only way from a job's configuration to a learner. A dotted path in a job would let whoever
submits it import any class at a hospital, so a job names a method and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError
from medflare.core.learner import Learner
from medflare.core.method import Method
from medflare.core.plugins import find_plugin, is_admitted
from medflare.core.task import Task
from medflare.learners.ct2replong.settings import METHOD as CT2REPLONG
from medflare.learners.dcl.settings import METHOD as DCL
from medflare.learners.extraction.settings import METHOD as FED_MEDLORA
from medflare.learners.fedmrg.settings import METHOD as FEDMRG
from medflare.learners.fedtar.settings import METHOD as FEDTAR
from medflare.learners.promptmrg.settings import METHOD as PROMPTMRG
from medflare.learners.questions.settings import METHOD as QUESTION_ANSWERING
from medflare.learners.r2gengpt.settings import METHOD as R2GENGPT
from medflare.learners.summaries.settings import METHOD as SUMMARISATION
from medflare.learners.token_classification.settings import METHOD as TOKEN_CLASSIFICATION
from medflare.learners.transformer.settings import R2GEN, TRANSFORMER
from medflare.learners.vit_gpt2.settings import METHOD as FEDVIT_GPT2
from medflare.learners.wcl.settings import METHOD as WCL
from medflare.tasks import get_task

METHODS: dict[str, Method[Any]] = {
    method.name: method
    for method in (
        CT2REPLONG,
        DCL,
        FED_MEDLORA,
        FEDMRG,
        FEDTAR,
        FEDVIT_GPT2,
        PROMPTMRG,
        QUESTION_ANSWERING,
        R2GEN,
        R2GENGPT,
        SUMMARISATION,
        TOKEN_CLASSIFICATION,
        TRANSFORMER,
        WCL,
    )
}
"""Name -> method."""


def get_method(name: str) -> Method[Any]:
    """Return the method of that name.

    Raises:
        ConfigError: there is none; the message lists the names.
    """
    if name in METHODS:
        return METHODS[name]
    offered = find_plugin("methods", name)
    if offered is None:
        raise ConfigError(f"method '{name}' does not exist. Methods: {', '.join(sorted(METHODS))}.")
    if not isinstance(offered, Method) or offered.name != name:
        raise ConfigError(f"method '{name}': what its package offers is no Method of that name.")
    return offered


def known_method(name: str) -> Method[Any] | None:
    """Return the method of that name; None where this machine has none, or does not admit its package."""
    return METHODS.get(name) or (get_method(name) if is_admitted("methods", name) else None)


def task_of(method: str) -> Task:
    """Return the task that a method trains for."""
    return get_task(get_method(method).task)


def methods_by_result_file() -> Mapping[str, Method[Any]]:
    """Return the methods by the file that lies beside the adapter in their result folders."""
    return {method.result_file: method for method in METHODS.values()}


def build_learner(
    method: str, settings: Mapping[str, Any], site: Any, seed: int, cache: Path | None = None
) -> Learner:
    """Build the learner of `method` on a site's data.

    Args:
        settings: the job's `settings` block, validated by the method's own settings class.
        site: a `medflare.data.settings.site.SiteConfig`.
        seed: of the run.
        cache: folder of this site for decoded images; None keeps them in memory.
    """
    learner: Learner = get_method(method).builder()(settings, site, seed, cache)
    learner.scorers, learner.fewest = site.scorers, site.policy.min_examples
    return learner
