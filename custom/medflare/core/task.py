# SPDX-License-Identifier: Apache-2.0
"""The contract of a task: what a model is trained for, whichever method trains it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Reads = Literal["studies", "visits", "notes", "questions", "summaries"]
EmbeddedBackbone = Literal["decoder", "notes_decoder"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task; `medflare.tasks.TASKS` holds all of them.

    Attributes:
        name: of the task, as methods, run records and reports write it.
        reads: the records that a cohort must hold; a key of `cohort_summary.summarise`.
        record_name: the word for one test record in messages and tables.
        records_name: the word for several of them.
        headline: metrics of the main table, the most important one first.
        score_result: `module:function` that tests a result folder on a split of a site.
        embedded_backbone: the embedded language model that is used where a site names none.
        tests_import: modules that a site's final test imports late and that take seconds; a simulated run
            imports them once for all of its sites.
    """

    name: str
    reads: Reads
    record_name: str
    records_name: str
    headline: tuple[str, ...]
    score_result: str
    embedded_backbone: EmbeddedBackbone = "decoder"
    tests_import: tuple[str, ...] = ()

    def load_scorer(self) -> Callable[..., Any]:
        """Import and return the function that `score_result` names."""
        module, _, function = self.score_result.partition(":")
        scorer: Callable[..., Any] = getattr(importlib.import_module(module), function)
        return scorer
