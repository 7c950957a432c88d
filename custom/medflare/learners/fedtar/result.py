# SPDX-License-Identifier: Apache-2.0
"""A result folder of FedTAR at any hospital: the model of a run, and q_p of that hospital's patients."""

from __future__ import annotations

from pathlib import Path

import torch

from medflare.core.config import parse
from medflare.core.errors import DataError
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import VisitSamples, open_visits
from medflare.learners.fedtar.learner import FedTARLearner
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.settings import FedTARSettings
from medflare.learners.fedtar.site_setup import check_room, open_patients
from medflare.models.backbone import device_of
from medflare.models.longitudinal_folder import LongitudinalFacts
from medflare.models.longitudinal_generator import FILE
from medflare.models.report_result import load_longitudinal


def open_result(folder: Path, site: SiteConfig, seed: int = 0, cache: Path | None = None) -> FedTARLearner:
    """Return the learner of a site with a run's model loaded; it may be a site that took no part.

    Args:
        folder: `result/adapter` of a run.
        cache: folder for decoded images; None keeps them in RAM.

    Raises:
        DataError, ConfigError: as of `models.report_result.load_longitudinal`.
    """
    torch.set_num_threads(site.threads)
    model, decoding, facts = load_longitudinal(
        folder,
        backbone=site.backbone.folder,
        precision=site.backbone.precision,
        device=device_of(site.device),
        encoder_file=site.encoder_weights,
    )
    settings = parse(FedTARSettings, facts.settings, str(folder / f"{FILE}.json"))
    settings = settings.model_copy(update={"decoding": decoding})
    samples = open_visits(site, settings.model.encoder.stored_size, cache)
    check_room(samples, model, settings)
    patients = None
    if model.patient is not None:
        patients = _patients(folder, site, samples, settings, facts)
    learner = FedTARLearner(site.name, samples, patients, model, settings, seed)
    learner.load_shared(learner.initial_shared())
    return learner


def _patients(
    folder: Path, site: SiteConfig, samples: VisitSamples, settings: FedTARSettings, facts: LongitudinalFacts
) -> PatientAssignments | None:
    """Return the site's patients with the mixture that the run agreed on."""
    patients = open_patients(site, samples, settings, facts.seed)
    if patients is None or patients.mixture is not None:
        return patients
    if facts.mixture is None:
        raise DataError(
            f"{folder / f'{FILE}.json'}: holds no mixture of patients' profiles, so nobody here can be told "
            "apart. Use the folder of a run whose sites agreed on one (controller setting `mixture`)."
        )
    patients.take_mixture(facts.mixture)
    return patients
