# SPDX-License-Identifier: Apache-2.0
"""Drafts reports of image files, with all that a reader of a draft must know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import DataError
from medflare.core.origin import DRAFT, Origin
from medflare.data.drafted_patient import DraftedPatient
from medflare.data.images import centre
from medflare.data.store import one_image
from medflare.identifiers.kinds import identifier_warning
from medflare.identifiers.rules import RuleDetector
from medflare.models.plausibility import LEAST_HELD_OUT, LEAST_TRAINED, Plausibility
from medflare.models.report_generator import DecodingSettings
from medflare.models.report_result import Drafter
from medflare.tasks.reports.plausibility import CohortComparison, compare_image
from medflare.tasks.reports.repetition import repetition

BATCH = 8
"""Images that are drafted together; their drafts are there before the next ones are read."""
NO_REFERENCE = (
    "nothing compares this image with the training images: name the result folder of a site as --reference "
    f"(a site of fewer than {LEAST_TRAINED} training and {LEAST_HELD_OUT} other images has no reference)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDraft:
    """A draft of one image.

    Attributes:
        name: of the draft's own file, without its ending; another one for each image of a command.
        warnings: what is in doubt about image and text.
        findings: condition -> positive, negative or uncertain, as the model read the image before it wrote;
            empty for a model that names no diagnoses.
        plausibility: how near the image is to the training images; None where no reference is at hand.
    """

    image: Path
    name: str
    report: str
    warnings: tuple[str, ...]
    findings: dict[str, str]
    plausibility: CohortComparison | None
    origin: Origin

    def as_json(self) -> dict[str, Any]:
        """Return plain types."""
        return {
            "notice": DRAFT,
            "image": str(self.image),
            "report": self.report,
            "warnings": list(self.warnings),
            "findings": self.findings,
            "plausibility": self.plausibility and self.plausibility.as_json(),
            "model": self.origin.as_json(),
        }

    def as_text(self) -> str:
        """Return the draft with its notice, for a file of its own."""
        lines = [f"{DRAFT} {self.origin.words}", *(f"! {warning}" for warning in self.warnings)]
        return "\n".join([*lines, "", self.report, ""])


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedImage:
    """An image that a report may be drafted of.

    Attributes:
        name, warnings, plausibility: as in `ReportDraft`.
        pixels: as stored, (1, 1, s, s) in [0, 1].
        patient: whose image it is, for a model of visits.
    """

    path: Path
    name: str
    pixels: Tensor
    warnings: tuple[str, ...]
    plausibility: CohortComparison | None
    patient: DraftedPatient = field(default_factory=DraftedPatient)


def open_image(
    model: Drafter,
    path: Path,
    name: str,
    references: Sequence[Plausibility] = (),
    *,
    refuse: bool = True,
    patient: DraftedPatient | None = None,
    depends_on: Sequence[str] = (),
) -> OpenedImage:
    """Read an image file, and compare it with the images that the model was trained on.

    Args:
        name: as in `ReportDraft`.
        references: of the run's sites, as `open_references` gives them.
        refuse: whether an image that is unlike those of every site gets no draft.
        patient: whose image it is, for a model of visits.
        depends_on: which of "age" and "sex" of the patient the model's words depend on.

    Raises:
        DataError: the file cannot be used, is no radiograph of a chest, or is refused.
    """
    pixels, warnings = one_image(path, model.settings.encoder.stored_size)
    near = compare_image(model, references, pixels)
    if near is None:
        warnings.append(NO_REFERENCE)
    elif near.verdict == "implausible" and refuse:
        raise DataError(
            f"{path}: is unlike all images that the model was trained on: {near.words}, and the farthest is "
            f"at {near.implausible:.2f}. A draft would mean nothing; --implausible writes one all the same."
        )
    elif near.verdict != "like":
        warnings.append(f"unlike the images that the model was trained on: {near.words}")
    patient = patient or DraftedPatient()
    if unknown := patient.lacks(depends_on):
        options = " and ".join(f"--{fact}" for fact in unknown)
        warnings.append(
            f"{' and '.join(unknown)} of the patient not known, on which this model's words depend: say it "
            f"with {options}"
        )
    return OpenedImage(
        path=path, name=name, pixels=pixels, warnings=tuple(warnings), plausibility=near, patient=patient
    )


WriteVisits = Callable[[Tensor, Sequence[DraftedPatient], DecodingSettings], list[str]]
"""Pictures (B, 1, s, s), whose they are, and the decoding -> reports, by a model of visits."""


def draft_images(
    model: Drafter,
    decoding: DecodingSettings,
    images: Sequence[OpenedImage],
    origin: Origin,
    write_visits: WriteVisits | None = None,
) -> list[ReportDraft]:
    """Draft a report of each image, all of them together.

    Args:
        write_visits: how a model of visits writes, which asks whose images they are.
    """
    if not images:
        return []
    pixels = torch.cat([image.pixels for image in images])
    size = model.settings.encoder.image_size
    with model.evaluating(), torch.no_grad():
        pictures = centre(pixels, size).to(model.device)
        if write_visits is None:
            texts, codes = model.generate(pictures, decoding)
        else:
            texts = write_visits(pictures, [image.patient for image in images], decoding)
            codes = torch.zeros(len(images), len(CONDITIONS), dtype=torch.long)
    return [
        ReportDraft(
            image=image.path,
            name=image.name,
            report=text,
            warnings=(*image.warnings, *_doubts(text)),
            findings=_findings(coded) if model.settings.prompts else {},
            plausibility=image.plausibility,
            origin=origin,
        )
        for image, text, coded in zip(images, texts, codes, strict=True)
    ]


def _doubts(text: str) -> list[str]:
    """Return what is wrong with a draft's own words."""
    doubts = []
    if named := identifier_warning(text, RuleDetector()):
        doubts.append(f"the draft {named}")
    if not any(letter.isalpha() for letter in text):
        doubts.append("the draft has no words")
    if repeated := repetition(text):
        doubts.append(f"the draft goes in circles and should not be used: {repeated}")
    return doubts


def _findings(codes: Tensor) -> dict[str, str]:
    """Return condition -> code of those that the model names."""
    named = zip(CONDITIONS, (Code(int(code)) for code in codes), strict=True)
    return {condition: code.name.lower() for condition, code in named if code != Code.BLANK}
