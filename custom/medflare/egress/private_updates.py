# SPDX-License-Identifier: Apache-2.0
"""Replies of a site whose job trains with differential privacy: noised updates, and nothing on patients
beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from medflare.core.tensor_names import feature_kind
from medflare.core.tensors import SharedSpec
from medflare.egress.policy import Policy
from medflare.wire.task_messages import TaskResult


def check_noise(policy: Policy, shared: SharedSpec, task: str, result: TaskResult) -> None:
    """Refuse what a private job sends of patients beside its noised update.

    Args:
        shared: the declared tensors of an update.

    Raises:
        PolicyError: sums of profiles or features, or an update whose spending nobody has counted.
    """
    if task != "fit" or not result.tensors:
        return
    if any(feature_kind(name) != "none" for name in result.tensors):
        policy.unnoised("features")
    if not set(result.tensors) & set(shared):
        policy.unnoised("sums of patients' profiles")
    if "epsilon" not in result.facts.get("metrics", {}):
        policy.unnoised("an update without an account")


def without_patients(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description as a private job sends it: sizes of splits and the model, no further counts."""
    emptied: dict[str, Any] = {"skipped": {}, "heterogeneity": {}}
    return {name: emptied.get(name, value) for name, value in description.items()}
