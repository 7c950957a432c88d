# SPDX-License-Identifier: Apache-2.0
"""Whose the training rows of a site are: what a learner declares of patients under differential privacy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from medflare.core.errors import UpdateError
from medflare.core.patient_privacy import PatientPrivacy
from medflare.differential_privacy.settings import PrivacySettings


@dataclass(slots=True)
class PatientRows:
    """Patient -> positions of the rows to learn from; a record that names nobody is one of its own.

    Attributes:
        unnamed: how many records name nobody.
    """

    rows: dict[str, list[int]] = field(default_factory=dict)
    unnamed: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    def add(self, patient: str | None, rows: Iterable[int]) -> None:
        """Add the rows of a record. One without rows still counts: who is sampled depends on no content."""
        if patient is None:
            # with a character that no file's id has, so that it is never taken for a patient's
            patient, self.unnamed = f"\x00{self.unnamed}", self.unnamed + 1
        self.rows.setdefault(patient, []).extend(rows)

    def of_site(self, site: str) -> list[list[int]]:
        """Return the rows of each patient.

        Raises:
            UpdateError: the site trains on nobody.
        """
        if not any(self.rows.values()):
            raise UpdateError(f"site '{site}' has no training patient; look with `medflare cohort inspect`.")
        return list(self.rows.values())

    def privacy(self, settings: PrivacySettings, passes: int) -> PatientPrivacy:
        """Return what the site's account must know of training on these patients."""
        return PatientPrivacy(
            patients=tuple(self.rows),
            unnamed=self.unnamed,
            noise=settings.noise_multiplier,
            rate=settings.sample_rate,
            passes=passes,
            delta=settings.delta,
        )
