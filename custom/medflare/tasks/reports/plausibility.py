# SPDX-License-Identifier: Apache-2.0
"""Writes at each site what its images look like to the run's encoder, and compares new images with that.

Mean and covariance of features are sums over patients, and directions of a small cohort can show one of them.
So they stay in the site's result folder like predictions and the personalised adapter; no task returns them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from medflare.core.data_order import derived_seed
from medflare.data.images import centre
from medflare.data.records import SPLITS
from medflare.data.visit_samples import VisitSamples
from medflare.models.plausibility import (
    LEAST_HELD_OUT,
    LEAST_TRAINED,
    ImageVerdict,
    Plausibility,
    fit_plausibility,
    probe_image,
    quarter_features,
    read_plausibility,
)
from medflare.models.report_result import Drafter

MOST_IMAGES = 2000
"""Images of training, and of those held out, that a reference is made of; drawn where there are more."""
BATCH = 32
LOGGER = logging.getLogger(__name__)


@torch.no_grad()
def features_of(model: Drafter, images: Tensor) -> Tensor:
    """Return the features (B, D) of stored images (B, 1, s, s)."""
    size = model.settings.encoder.image_size
    return quarter_features(model.patch_tokens(centre(images, size).to(model.device))).cpu()


def probe_of(model: Drafter) -> Tensor:
    """Return the features (D,) of the picture that names an encoder."""
    with model.evaluating():
        return features_of(model, probe_image(model.settings.encoder.image_size))[0]


def write_reference(
    model: Drafter,
    images: Callable[[list[int]], Tensor],
    train: Sequence[int],
    held_out: Sequence[int],
    *,
    site: str,
    seed: int,
    folder: Path,
) -> None:
    """Write the reference of a site's images into its result folder; nothing where it has too few.

    Args:
        images: (rows) -> stored images (B, 1, s, s).
        train, held_out: rows of images that trained, and of those that did not.
    """
    generator = np.random.default_rng(derived_seed(seed, site, "plausibility"))

    def drawn(rows: Sequence[int]) -> Tensor:
        chosen = [rows[i] for i in sorted(generator.permutation(len(rows))[:MOST_IMAGES])]
        parts = [chosen[start : start + BATCH] for start in range(0, len(chosen), BATCH)]
        return torch.cat([features_of(model, images(part)) for part in parts])

    if len(train) < LEAST_TRAINED or len(held_out) < LEAST_HELD_OUT:
        LOGGER.info(
            "no reference for drafts: %d training and %d other images, at least %d and %d are needed",
            *(len(train), len(held_out), LEAST_TRAINED, LEAST_HELD_OUT),
        )
        return
    with model.evaluating():
        trained, others = drawn(train), drawn(held_out)
    reference = fit_plausibility(trained, others, probe_of(model), site)
    if reference is not None:
        reference.write(folder)


def write_visit_reference(
    model: Drafter, samples: VisitSamples, *, site: str, seed: int, folder: Path
) -> None:
    """Write the reference of a site whose patients come again: of every picture of every visit."""
    places = {
        split: [place for row in samples.rows(split) for place in samples.pictures[row]] for split in SPLITS
    }
    write_reference(
        model,
        samples.store.batch,
        places["train"],
        [*places["val"], *places["test"]],
        site=site,
        seed=seed,
        folder=folder,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortComparison:
    """Distance of an image to the images of the nearest site.

    Attributes:
        distance: to that site's training images; unlike, implausible: that site's limits.
    """

    site: str
    distance: float
    unlike: float
    implausible: float
    verdict: ImageVerdict

    @property
    def words(self) -> str:
        """The distance and its limit, for a person."""
        return (
            f"its distance from the training images of {self.site}, the nearest site, is "
            f"{self.distance:.2f}; 95 % of that site's other images are below {self.unlike:.2f}"
        )

    def as_json(self) -> dict[str, str | float]:
        """Return plain types."""
        distance, limit = round(self.distance, 4), round(self.unlike, 4)
        return {"verdict": self.verdict, "site": self.site, "distance": distance, "limit": limit}


def open_references(model: Drafter, files: Sequence[Path]) -> list[Plausibility]:
    """Return the references in files, checked to be of the model's encoder.

    Raises:
        DataError: a file is no reference, or one of another encoder.
    """
    references = [read_plausibility(file) for file in files]
    probe = probe_of(model) if references else None
    for reference in references:
        assert probe is not None
        reference.check_encoder(probe)
    return references


def compare_image(
    model: Drafter, references: Sequence[Plausibility], image: Tensor
) -> CohortComparison | None:
    """Return how near a stored image (1, 1, s, s) is to the nearest site's; None without references.

    The nearest site is the one whose limit the distance exceeds least.
    """
    if not references:
        return None
    with model.evaluating():
        features = features_of(model, image)

    def compared(reference: Plausibility) -> CohortComparison:
        distance, (unlike, implausible) = float(reference.distance(features)[0]), reference.limits()
        return CohortComparison(
            site=reference.site,
            distance=distance,
            unlike=unlike,
            implausible=implausible,
            verdict=reference.verdict(distance),
        )

    order = ("like", "unlike", "implausible")
    each = [compared(reference) for reference in references]
    return min(each, key=lambda item: (order.index(item.verdict), item.distance / item.unlike))
