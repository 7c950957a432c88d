# SPDX-License-Identifier: Apache-2.0
"""Drafts a report of one image file, with all that a reader of the draft must know."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import DataError
from medflare.core.origin import DRAFT, Origin
from medflare.data.images import centre
from medflare.data.store import one_image
from medflare.identifiers.kinds import identifier_warning
from medflare.identifiers.rules import RuleDetector
from medflare.models.plausibility import Plausibility
from medflare.models.report_generator import DecodingSettings
from medflare.models.report_result import Drafter
from medflare.tasks.reports.plausibility import CohortComparison, compare_image
from medflare.tasks.reports.repetition import repetition

NO_REFERENCE = (
    "nothing compares this image with the training images: name a site's result folder as --reference"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDraft:
    """A draft of one image.

    Attributes:
        warnings: what is in doubt about image and text.
        findings: condition -> positive, negative or uncertain, as the model read the image before it wrote;
            empty for a model that names no diagnoses.
        plausibility: how near the image is to the training images; None where no reference is at hand.
    """

    image: Path
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


def draft_image(
    model: Drafter,
    decoding: DecodingSettings,
    path: Path,
    origin: Origin,
    references: Sequence[Plausibility] = (),
    *,
    refuse: bool = True,
) -> ReportDraft:
    """Draft a report of one file.

    Args:
        references: of the run's sites, as `open_references` gives them.
        refuse: whether an image that is unlike those of every site gets no draft.

    Raises:
        DataError: the file cannot be used, is no radiograph of a chest, or is refused.
    """
    encoder = model.settings.encoder
    image, warnings = one_image(path, encoder.stored_size)
    near = compare_image(model, references, image)
    if near is None:
        warnings.append(NO_REFERENCE)
    elif near.verdict == "implausible" and refuse:
        raise DataError(
            f"{path}: is unlike all images that the model was trained on: {near.words}, and the farthest is "
            f"at {near.implausible:.2f}. A draft would mean nothing; --implausible writes one all the same."
        )
    elif near.verdict != "like":
        warnings.append(f"unlike the images that the model was trained on: {near.words}")
    with model.evaluating(), torch.no_grad():
        texts, codes = model.generate(centre(image, encoder.image_size).to(model.device), decoding)
    if named := identifier_warning(texts[0], RuleDetector()):
        warnings.append(f"the draft {named}")
    if repeated := repetition(texts[0]):
        warnings.append(f"the draft goes in circles and should not be used: {repeated}")
    findings = {
        name: Code(int(code)).name.lower()
        for name, code in zip(CONDITIONS, codes[0], strict=True)
        if code != Code.BLANK
    }
    return ReportDraft(
        image=path,
        report=texts[0],
        warnings=tuple(warnings),
        findings=findings if model.settings.prompts else {},
        plausibility=near,
        origin=origin,
    )
