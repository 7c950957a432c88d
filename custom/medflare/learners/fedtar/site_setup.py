# SPDX-License-Identifier: Apache-2.0
"""Setup of FedTAR at a site before round 1: model, patients, times, and checks that they fit together."""

from __future__ import annotations

from medflare.core.errors import ConfigError
from medflare.core.tensors import State
from medflare.core.visit_sums import PATIENTS
from medflare.data.settings.site import SiteConfig
from medflare.data.visit_samples import VisitSamples
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.patient_floors import FEWEST
from medflare.learners.fedtar.profile import profiles, site_key
from medflare.learners.fedtar.settings import FedTARSettings
from medflare.learners.fedtar.visit_sums import visit_times
from medflare.models.backbone import device_of, load_backbone
from medflare.models.longitudinal_generator import LongitudinalGenerator

BEYOND = "visit beyond T"
"""Reason under which later visits than the job's T are counted."""


def open_model(site: SiteConfig, settings: FedTARSettings, seed: int) -> LongitudinalGenerator:
    """Return the model before round 1; weights that all learn are fp32 where the site leaves it open."""
    device, precision = device_of(site.device), site.backbone.precision
    if settings.train_backbone and precision == "auto":
        precision = "fp32"
    backbone = load_backbone(site.backbone.folder, precision, device)
    model = LongitudinalGenerator(backbone, settings.generator, seed, site.encoder_weights)
    return model.to(device)


def open_patients(
    site: SiteConfig, samples: VisitSamples, settings: FedTARSettings, seed: int
) -> PatientAssignments | None:
    """Return the site's patients, None without personalisation; unknown ages and sexes are no fault (TAR-13).

    Raises:
        ConfigError: `hash_feature` has no place for its key.
    """
    if not settings.personal:
        return None
    key = None
    if settings.profile.hash_feature:
        if site.state is None:
            raise ConfigError(
                f"site '{site.name}': profile.hash_feature needs a key that stays here; name a folder for it "
                "as 'state' in site.yaml."
            )
        key = site_key(site.state / "profile.key")
    everybody = profiles(samples.studies(), settings.profile, key)
    rows = [row for row in samples.rows("train") if samples.visits[row].number <= settings.visits]
    trained_on = [patient_of(samples, row) for row in rows]
    fewest = max(site.policy.min_examples, FEWEST)
    return PatientAssignments(everybody, trained_on, settings.mixture, seed, fewest)


def patient_of(samples: VisitSamples, row: int) -> str:
    """Return the id of the patient whose visit a row is."""
    return samples.patients[samples.owners[row]].patient_id


def visit_time_sums(samples: VisitSamples, visits: int, fewest: int = FEWEST) -> State:
    """Return sums of the times between visits of the patients trained on; 0 for a visit of fewer than
    `fewest`.

    The sum over one patient would be the days between that patient's visits.
    """
    times = [
        (visit.number, visit.gap, visit.since)
        for patient in samples.patients
        if patient.split == "train"
        for visit in patient.visits
    ]
    sums = visit_times(times, visits)
    enough = sums[PATIENTS] >= fewest
    return {name: value * enough for name, value in sums.items()}


def skipped_visits(samples: VisitSamples, visits: int) -> dict[str, int]:
    """Return reason -> count of what is not used; visits beyond T among them."""
    beyond = sum(visit.number > visits for visit in samples.visits)
    return samples.skipped() | ({BEYOND: beyond} if beyond else {})


def check_room(samples: VisitSamples, model: LongitudinalGenerator, settings: FedTARSettings) -> None:
    """Raise ConfigError if the decoder has fewer positions than the visit with the most images takes."""
    room = getattr(model.backbone.model.config, "max_position_embeddings", None)
    most = max((len(pictures) for pictures in samples.pictures), default=0)
    report = max(settings.max_report_tokens, settings.decoding.max_new_tokens) + 1
    needed = model.positions(most, report)
    if room is not None and needed > int(room):
        raise ConfigError(
            f"a visit of {most} picture(s) takes {needed} positions, {model.encoder.tokens} a picture, and "
            f"the decoder has {room}. Set model.encoder.token_grid to pool pictures, visits.slices in "
            "site.yaml to fewer slices, or max_report_tokens and max_prior_tokens lower."
        )
