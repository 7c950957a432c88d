# SPDX-License-Identifier: Apache-2.0
"""The declaration of one run at one site: tensors and facts that each task may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from medflare.core.hints import STAGES
from medflare.core.tensor_names import SUM_PREFIX, feature_kind
from medflare.core.tensors import SharedSpec, State
from medflare.egress.declaration import (
    MESSAGES,
    fact_problems,
    first_value_problems,
    message_problems,
    shown,
    tensor_problems,
)
from medflare.egress.failures import EgressError
from medflare.egress.permitted_facts import COUNTED
from medflare.egress.policy import Policy
from medflare.egress.tensor_facts import declaration_of
from medflare.wire.first_values import FACT as FIRST_VALUES
from medflare.wire.task_messages import TaskResult

ABSENT = torch.zeros(())


@dataclass(frozen=True, slots=True)
class Declared:
    """Tensors that a learner declared.

    Attributes:
        shared, sums: what leaves with an update, and the sums beside it.
        separate: exchange -> sums that leave in messages of their own, never beside an update.
        examples: split -> count, the weight of what is measured on it; no part of what must stay the same.
    """

    shared: SharedSpec
    sums: SharedSpec
    separate: Mapping[str, SharedSpec] = field(default_factory=dict)
    examples: Mapping[str, int] = field(default_factory=dict, compare=False)

    def check(self, task: str, result: TaskResult, site: str, has_state: bool) -> SharedSpec:
        """Return the tensors that this task may hold.

        Args:
            has_state: whether the site was given a state in this run, after which it has no first values.

        Raises:
            EgressError: naming everything that was not declared.
        """
        allowed = self.allowed(task, result.tensors)
        facts = {name: value for name, value in result.facts.items() if name != COUNTED}
        problems = fact_problems(task, facts, site)
        if task in MESSAGES:
            problems += message_problems(task, result.tensors)
        else:
            problems += tensor_problems(result.tensors, allowed)
        problems += self._changes_of_no_examples(result)
        if FIRST_VALUES in facts:
            problems += first_value_problems(facts[FIRST_VALUES], self.shared)
            if has_state:
                problems.append(f"fact '{FIRST_VALUES}' after this site was given a state to work on")
        if problems:
            raise EgressError(f"{task}: not declared, so it stays here: {'; '.join(problems[:8])}.")
        return allowed

    def _changes_of_no_examples(self, result: TaskResult) -> list[str]:
        """Return the changed tensors of an update of 0 examples, which `min_examples` would let pass as
        empty."""
        if result.facts.get("examples") != 0:
            return []
        changed = [name for name in sorted(self.shared) if torch.any(result.tensors.get(name, ABSENT))]
        return [f"change of {shown(name)} by an update of no examples" for name in changed]

    def allowed(self, task: str, tensors: State) -> SharedSpec:
        """Return the declared tensors of a task: with an update its sums, or separate sums alone."""
        if task not in ("initialise", "fit"):
            return {}
        if task == "fit":
            for stage in STAGES:  # of profiles; what is measured leaves in answers of its own
                spec = under_prefix(self.separate.get(stage, {}))
                if spec and set(spec) == set(tensors):
                    return spec
        sums = under_prefix(self.sums) if task == "fit" else {}
        return {**self.shared, **sums}

    def to_ledger(self, allowed: SharedSpec) -> dict[str, Any]:
        """Return the declaration as the ledger states it.

        Args:
            allowed: what the message could hold; separate sums have a declaration of their own.
        """
        declaration = declaration_of(self.shared, self.sums)
        for part in self.separate.values():
            if part and allowed == under_prefix(part):
                declaration = declaration_of({}, part)
        return declaration


class Undeclared(Declared):
    """Before a run's declaration: facts alone may leave."""

    def __init__(self) -> None:
        super().__init__({}, {})

    def allowed(self, task: str, tensors: State) -> SharedSpec:
        if task in ("initialise", "fit"):
            raise EgressError(f"{task}: nothing was declared yet; a run starts with 'prepare'.")
        return {}


def under_prefix(spec: SharedSpec) -> SharedSpec:
    """Return a declaration of sums under the names by which they travel."""
    return {SUM_PREFIX + name: entry for name, entry in spec.items()}


def check_features(policy: Policy, task: str, tensors: State) -> None:
    """Check features of images by the rules in force now, and how many images each prototype is of.

    Raises:
        EgressError: sums of prototypes do not say how many images they are of.
        PolicyError: they may not leave, or are of too few images.
    """
    if task != "fit":
        return
    policy.features(map(feature_kind, tensors))
    for name in sorted(name for name in tensors if feature_kind(name) == "prototypes"):
        base, _, part = name.rpartition(".")
        count = tensors.get(f"{base}.count")
        if part not in ("sum", "count") or count is None:
            raise EgressError(f"{task}: {shown(name)} does not say of how many images it is.")
        empty = count == 0
        if part == "sum" and torch.any(tensors[name][empty] != 0):
            raise EgressError(f"{task}: {shown(name)} has prototypes of no images.")
        if not torch.all(empty):
            policy.prototypes(float(count[~empty].min()))
