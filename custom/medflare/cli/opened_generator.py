# SPDX-License-Identifier: Apache-2.0
"""A run's report generator, opened once for all images of `medflare generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import ConfigError, DataError
from medflare.core.origin import Origin
from medflare.data.drafted_patient import DraftedPatient, patient_of_image
from medflare.data.readers.annotated import read_text
from medflare.data.records import RecordError
from medflare.learners.fedtar.drafted_patients import VisitDrafts, is_of_visits, open_visit_drafts
from medflare.models.report_generator import DecodingSettings
from medflare.models.report_result import Drafter, load_generator
from medflare.recipes.result_origin import adapter_folder, origin_of, reference_files
from medflare.tasks.reports.drafting import OpenedImage, ReportDraft, draft_images, open_image
from medflare.tasks.reports.plausibility import Plausibility, open_references


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedGenerator:
    """A model in eval mode, and what its drafts need beside it.

    Attributes:
        references: what the training images looked like.
        visits: the same model where it is one of visits, whose words depend on the patient.
        known: what the command says of the patient; an image's DICOM header says the rest.
    """

    model: Drafter
    decoding: DecodingSettings
    references: Sequence[Plausibility]
    origin: Origin
    visits: VisitDrafts | None
    known: DraftedPatient

    def open_image(self, path: Path, name: str, refuse: bool) -> OpenedImage:
        """Return an image that a report may be drafted of; errors as of `open_image` and `patient_of_image`.

        Args:
            name: of the draft's file; refuse: leave out an image that is unlike all training images.
        """
        visits, known = self.visits, self.known
        patient = patient_of_image(path, known.age, known.sex, known.prior) if visits else None
        facts = visits.depends_on if visits else ()
        return open_image(
            self.model, path, name, self.references, refuse=refuse, patient=patient, depends_on=facts
        )

    def draft(self, images: Sequence[OpenedImage]) -> list[ReportDraft]:
        """Return a draft of each image."""
        write = self.visits.write if self.visits else None
        return draft_images(self.model, self.decoding, images, self.origin, write)


def open_generator(
    result: Path,
    personalised: Path | None,
    reference: Path | None,
    known: DraftedPatient,
    *,
    backbone: Path | None,
    precision: str,
    device: str,
) -> OpenedGenerator:
    """Return the generator of a run's folder.

    Args:
        personalised: a site's own adapter folder; reference: the file of its training images.
        known: what the command says of the patient.

    Raises:
        ConfigError: something is said of the patient on which the model's words do not depend.
        DataError, ConfigError: as `load_generator` and `open_references`.
    """
    folder = adapter_folder(result)
    model: Drafter
    if is_of_visits(folder) and personalised is None:
        visits = open_visit_drafts(folder, backbone=backbone, precision=precision, device=device)
        _refuse_unread(visits, known)
        model, decoding = visits.model, visits.decoding
    else:
        visits = None
        _refuse_facts(folder, known)
        model, decoding = load_generator(
            folder, personalised=personalised, backbone=backbone, precision=precision, device=device
        )
    return OpenedGenerator(
        model=model,
        decoding=decoding,
        references=open_references(model, reference_files(result, reference, personalised)),
        origin=origin_of(result),
        visits=visits,
        known=known,
    )


def patient_of_command(age: float | None, sex: str | None, prior: Path | None) -> DraftedPatient:
    """Return what a command says of the patient.

    Raises:
        ConfigError: the sex is neither F nor M.
        DataError: the report before cannot be read.
    """
    if sex not in (None, "F", "M"):
        raise ConfigError(f"--sex {sex}: expected F or M; leave it out where it is not known.")
    try:
        before = None if prior is None else " ".join(read_text(prior).split())
    except RecordError as error:
        raise DataError(f"--prior: {error}") from None
    return DraftedPatient(age=age, sex=sex, prior=before)


def _given(known: DraftedPatient) -> list[str]:
    facts = {"age": known.age, "sex": known.sex, "prior": known.prior}
    return [name for name, value in facts.items() if value is not None]


def _refuse_facts(folder: Path, known: DraftedPatient) -> None:
    """Raise ConfigError for what is said of a patient to a model that reads no patient."""
    if named := ", ".join(f"--{name}" for name in _given(known)):
        raise ConfigError(f"{named}: goes with a result of FedTAR, and {folder} is of another method.")


def _refuse_unread(visits: VisitDrafts, known: DraftedPatient) -> None:
    """Raise ConfigError for what this model of visits does not read."""
    read = {*visits.depends_on, *(["prior"] if visits.reads_visits else [])}
    if unread := ", ".join(f"--{name}" for name in _given(known) if name not in read):
        raise ConfigError(f"{unread}: the words of this model do not depend on it; leave it out.")
