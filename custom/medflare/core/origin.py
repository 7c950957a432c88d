# SPDX-License-Identifier: Apache-2.0
"""The origin of a draft: the notice that everything a model wrote carries, and facts of that model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

DRAFT = "Draft for a radiologist, never a diagnosis."
"""Stands beside every report that a model wrote."""
MARKS = "Draft for a clinician to check, never a diagnosis."
"""Stands beside everything else that a model made of a patient's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The model of a result folder.

    Attributes:
        adapter: first characters of the SHA-256 of the result's weights.
        run_id, method: of the run; empty where only a folder of weights is at hand.
        backbones: name and fingerprint of each base model.
        trained_on: site -> training records.
    """

    adapter: str
    run_id: str = ""
    method: str = ""
    backbones: tuple[str, ...] = ()
    trained_on: dict[str, int] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The facts in one line."""
        weights = f"weights {self.adapter}"
        if not self.run_id:
            return (
                f"Model: {weights}. The folder of an adapter does not say what it was trained on; name the "
                "run's folder instead."
            )
        sites = ", ".join(f"{name} ({count:,})" for name, count in sorted(self.trained_on.items()))
        return (
            f"Model: {self.method}, run {self.run_id}, {weights}, on {', '.join(self.backbones)}; training "
            f"records: {sites}."
        )

    def as_json(self) -> dict[str, Any]:
        """Return plain types."""
        return asdict(self)
