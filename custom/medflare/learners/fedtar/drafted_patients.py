# SPDX-License-Identifier: Apache-2.0
"""Drafts by a result of FedTAR of images whose patient a command knows: age, sex, the report before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from medflare.core.config import parse
from medflare.data.drafted_patient import DraftedPatient
from medflare.data.records import Study
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.profile import profiles
from medflare.learners.fedtar.settings import FedTARSettings
from medflare.models.longitudinal_folder import LongitudinalFacts
from medflare.models.longitudinal_generator import FILE, LongitudinalGenerator
from medflare.models.report_generator import DecodingSettings
from medflare.models.report_result import load_longitudinal


@dataclass(frozen=True, slots=True)
class VisitDrafts:
    """A model of visits in eval mode, and the run's facts about its patients.

    Attributes:
        settings: of the method, as the run had them.
    """

    model: LongitudinalGenerator
    decoding: DecodingSettings
    facts: LongitudinalFacts
    settings: FedTARSettings

    @property
    def depends_on(self) -> tuple[str, ...]:
        """Those of "age" and "sex" that the words depend on.

        None without personalisation, nor where mixtures or profiles need what stayed at the sites.
        """
        agreed = self.settings.mixture.source == "global_fixed" or self.facts.mixture is not None
        profile = self.settings.profile
        if self.model.patient is None or not (self.settings.personal and agreed) or profile.hash_feature:
            return ()
        return tuple(name for name in profile.names if name in ("age", "sex"))

    @property
    def reads_visits(self) -> bool:
        """Whether the words depend on the visit before."""
        return self.model.parts.prior_context or self.model.parts.visit_context

    def write(
        self, pictures: Tensor, patients: Sequence[DraftedPatient], decoding: DecodingSettings
    ) -> list[str]:
        """Return a report of each picture (B, 1, s, s)."""
        assigned = self.assigned(patients) if self.depends_on else None
        return self.model.draft_pictures(pictures, decoding, assigned, [who.prior for who in patients])

    def assigned(self, patients: Sequence[DraftedPatient]) -> Tensor:
        """Return q_p (B, K) by the run's mixture, a row for each patient; covariates count as unknown.

        Raises:
            DataError: an age that nobody has.
        """
        names = [f"{number:06d}" for number in range(len(patients))]
        studies = [
            Study(study_id=name, patient_id=name, images=(), report="", age=patient.age, sex=patient.sex)
            for name, patient in zip(names, patients, strict=True)
        ]
        known = PatientAssignments(
            profiles(studies, self.settings.profile), (), self.settings.mixture, self.facts.seed
        )
        if self.facts.mixture is not None:
            known.take_mixture(self.facts.mixture)
        return known.assigned(names)


def is_of_visits(folder: Path) -> bool:
    """Return whether a folder is the result of FedTAR."""
    return (folder / f"{FILE}.json").is_file()


def open_visit_drafts(folder: Path, **options: Any) -> VisitDrafts:
    """Return the model of a result folder.

    Args:
        options: `backbone`, `precision` and `device` as of `models.report_result.load_longitudinal`.

    Raises:
        DataError, ConfigError: as of `models.report_result.load_longitudinal`.
    """
    model, decoding, facts = load_longitudinal(folder, **options)
    settings = parse(FedTARSettings, facts.settings, str(folder / f"{FILE}.json"))
    return VisitDrafts(model, decoding, facts, settings)
