# SPDX-License-Identifier: Apache-2.0
"""One site's images, reports and codes as a learner reads them, one row per image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS
from medflare.data.cohort import Cohort, check_kind, check_skipped
from medflare.data.load import load_cohort
from medflare.data.records import SPLITS, Study
from medflare.data.settings.site import SiteConfig
from medflare.data.store import ImageSample, ImageStore


@dataclass(slots=True, kw_only=True)
class Samples:
    """A cohort with its decoded images; every list has one entry per usable image.

    Attributes:
        studies: the study of each sample; a study with two images appears twice.
        paths: the image file of each sample.
        codes: (n, 14) int64; reports: the cleaned texts.
    """

    cohort: Cohort
    store: ImageStore
    studies: list[Study]
    paths: list[Path]
    codes: Tensor
    reports: list[str]

    def __len__(self) -> int:
        return len(self.studies)

    def split_indices(self, split: str) -> list[int]:
        """Return the positions of the samples of one split, in cohort order; ValueError lists the splits."""
        if split not in SPLITS:
            raise ValueError(f"there is no split '{split}'; choose one of: {', '.join(SPLITS)}.")
        return [index for index, study in enumerate(self.studies) if study.split == split]

    def images(self, indices: Sequence[int] | Tensor) -> Tensor:
        """Return images, float32 (B, 1, size, size) in [0, 1]."""
        return self.store.batch(indices)

    def examples(self) -> dict[str, int]:
        """Return the number of samples per split."""
        return {split: len(self.split_indices(split)) for split in SPLITS}

    def skipped(self) -> dict[str, int]:
        """Return reason -> count, of records and images that were left out."""
        return skipped_counts(self.cohort)


def open_samples(site: SiteConfig, size: int, cache: Path | None = None) -> Samples:
    """Read a site's cohort and decode its images to (size, size).

    An image that cannot be decoded counts against the same `max_skipped` as every other fault; a study
    with one bad and one good image keeps the good one and is counted.

    Args:
        cache: folder for decoded images, so that the next start decodes nothing; None keeps them in RAM.

    Raises:
        ConfigError: the cohort holds no images.
        DataError: as load_cohort, or too many images cannot be decoded.
    """
    cohort = load_cohort(site)
    check_kind(cohort, "studies")
    pairs = [(study, path) for study in cohort.studies for path in study.images]
    images = [
        ImageSample(study.study_id, path, cohort.scanners.get(study.extra.get("source", "")))
        for study, path in pairs
    ]
    store = open_store(cohort, site, images, size, cache)
    usable = {study.study_id: study for study in cohort.studies}
    studies = [usable[pairs[index][0].study_id] for index in store.kept]
    return Samples(
        cohort=cohort,
        store=store,
        studies=studies,
        paths=[pairs[index][1] for index in store.kept],
        codes=code_table(studies),
        reports=[study.report for study in studies],
    )


def code_table(studies: Sequence[Study]) -> Tensor:
    """Return the codes of labelled studies, (n, 14) int64."""
    codes = torch.tensor([study.codes for study in studies], dtype=torch.int64)
    return codes.reshape(len(studies), len(CONDITIONS))


def skipped_counts(cohort: Cohort) -> dict[str, int]:
    """Return reason -> count, of records and images that were left out."""
    return dict(Counter(item.reason for item in cohort.skipped).most_common())


def open_store(
    cohort: Cohort, site: SiteConfig, images: Sequence[ImageSample], size: int, cache: Path | None
) -> ImageStore:
    """Decode images to (size, size), and take what cannot be decoded out of the cohort.

    Raises:
        DataError: more records than `max_skipped` allows cannot be used.
    """
    store = ImageStore(images, size, cache)
    cohort.skipped += store.failed
    check_skipped(cohort, ", ".join(str(config.root) for config in site.cohort))
    if store.failed:
        _drop_unusable(cohort, store)
    return store


def _drop_unusable(cohort: Cohort, store: ImageStore) -> None:
    """Take bad images out of their studies, and studies without a good image out of the cohort."""
    touched = {item.record for item in store.failed}
    paths = {store.samples[index].path for index in store.kept}
    kept = []
    for study in cohort.studies:
        if study.study_id in touched:
            study = replace(study, images=tuple(path for path in study.images if path in paths))
        if study.images:
            kept.append(study)
    cohort.studies = kept
