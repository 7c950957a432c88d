# SPDX-License-Identifier: Apache-2.0
"""The tasks that a comparison may name."""

from __future__ import annotations

from importlib import import_module

from medflare.core.errors import ConfigError
from method_comparison.tasks.base import AnyTask

TASKS = {
    "attacks": "method_comparison.tasks.attacks:Attacks",
    "async_rounds": "method_comparison.tasks.async_rounds:AsyncRounds",
    "client_selection": "method_comparison.tasks.client_selection:ClientSelection",
    "extraction": "method_comparison.tasks.extraction:Extraction",
    "report_generators": "method_comparison.tasks.report_generators:ReportGenerators",
    "visit_generators": "method_comparison.tasks.visit_generators:VisitGenerators",
    "fedtar": "method_comparison.tasks.fedtar:FedTAR",
    "fedmrg": "method_comparison.tasks.fedmrg:FedMRG",
    "fedvit_gpt2": "method_comparison.tasks.fedvit_gpt2:FedViT",
    "knowledge_odds": "method_comparison.tasks.knowledge_odds:KnowledgeOdds",
    "private_training": "method_comparison.tasks.private_training:PrivateTraining",
    "membership": "method_comparison.tasks.membership:Membership",
    "real_notes": "method_comparison.tasks.real_notes:NoteExtraction",
    "step_variance": "method_comparison.tasks.step_variance:StepVariance",
}
"""Name -> module and class. Only the one that is wanted is imported: each loads models of its own."""


def make_task(name: str) -> AnyTask:
    """Return the task of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in TASKS:
        raise ConfigError(f"There is no task called {name!r}; there are {', '.join(sorted(TASKS))}.")
    module, kind = TASKS[name].split(":")
    made: AnyTask = getattr(import_module(module), kind)()
    return made
