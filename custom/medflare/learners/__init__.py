# SPDX-License-Identifier: Apache-2.0
"""Local training: one file per method; base.py holds the protocol.

The table below is the only way from a job's configuration to a learner. A dotted path in a job would let
whoever submits it import any class at a hospital, so a job names a method and nothing else.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from medflare.core.errors import ConfigError
from medflare.core.learner import Learner

LEARNERS: dict[str, str] = {
    "fedmrg": "medflare.learners.fedmrg.learner:build",
    "fed_medlora": "medflare.learners.extraction.learner:build",
    "fedtar": "medflare.learners.fedtar.learner:build",
    "fedvit_gpt2": "medflare.learners.vit_gpt2.learner:build",
    "question_answering": "medflare.learners.questions.learner:build",
    "summarisation": "medflare.learners.summaries.learner:build",
    "token_classification": "medflare.learners.token_classification.learner:build",
}
"""Method name -> `module:function`; the function is `build(settings, site, seed, cache) -> Learner`."""


def builder(method: str) -> Callable[..., Learner]:
    """The `build` function of a method; ConfigError that lists the methods otherwise."""
    if method not in LEARNERS:
        raise ConfigError(f"method '{method}' does not exist. Methods: {', '.join(sorted(LEARNERS))}.")
    module, function = LEARNERS[method].split(":")
    found: Callable[..., Learner] = getattr(importlib.import_module(module), function)
    return found


def reads(method: str) -> str:
    """What a method learns from: "studies", or the `READS` of its module: notes, questions, summaries."""
    return str(getattr(sys.modules[builder(method).__module__], "READS", "studies"))


def embedded(method: str) -> Literal["decoder", "notes_decoder"]:
    """The embedded backbone of a method: that of reports, or what its module says (`EMBEDDED`)."""
    found: Literal["decoder", "notes_decoder"] = getattr(
        sys.modules[builder(method).__module__], "EMBEDDED", "decoder"
    )
    return found


def build(method: str, settings: dict[str, Any], site: Any, seed: int, cache: Path | None = None) -> Learner:
    """The learner of `method` on a site's data.

    Args:
        settings: the job's `settings` block, validated by the method's own settings class.
        site: a `medflare.data.settings.site.SiteConfig`.
        seed: of the run.
        cache: folder of this site for decoded pictures; None keeps them in memory.
    """
    return builder(method)(settings, site, seed, cache)
