# SPDX-License-Identifier: Apache-2.0
"""One site's patients as a learner of visits reads them: visits by number, batches of one visit number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.records import SPLITS, Patient, Study, Visit
from medflare.data.samples import code_table, open_store, skipped_counts
from medflare.data.settings.site import SiteConfig, no_visits
from medflare.data.settings.visits import VisitConfig
from medflare.data.store import ImageSample, ImageStore
from medflare.data.visits.longitudinal import group_patients, visits_per_number
from medflare.data.volumes import is_volume


@dataclass(slots=True, kw_only=True)
class VisitSamples:
    """A site's visits with their decoded images; one row is one visit.

    Attributes:
        patients: in order; visits: of all patients, row by row; owners: row -> position in `patients`.
        pictures: row -> positions in `store` of its images (or slices of its volume), at least one.
        codes: (n, 14) int64.
    """

    cohort: Cohort
    store: ImageStore
    patients: list[Patient]
    visits: list[Visit]
    owners: list[int]
    pictures: list[list[int]]
    codes: Tensor

    def __len__(self) -> int:
        return len(self.visits)

    @property
    def last(self) -> int:
        """The largest visit number of this site; further visits of a job are empty here."""
        return max((visit.number for visit in self.visits), default=0)

    def rows(self, split: str, number: int | None = None) -> list[int]:
        """Return rows of one split, of visit `number` or of all; empty if the site has none (n_{k,t} = 0)."""
        if split not in SPLITS:
            raise ValueError(f"there is no split '{split}'; choose one of: {', '.join(SPLITS)}.")
        return [
            row
            for row, visit in enumerate(self.visits)
            if visit.study.split == split and number in (None, visit.number)
        ]

    def counts(self, split: str, visits: int | None = None) -> list[int]:
        """Return n_{k,t} for t = 1..`visits`, or as far as the site's visits go."""
        counts = visits_per_number(self.patients, split)
        return counts if visits is None else (counts + [0] * visits)[:visits]

    def images(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return (B, S, 1, size, size) float32 in [0, 1] and (B, S) bool, true where there is a picture.

        S is the most pictures of a visit among `rows`; what is missing is zeros, at the end.
        """
        most = max((len(self.pictures[row]) for row in rows), default=0)
        size = self.store.size
        images = torch.zeros(len(rows), most, 1, size, size)
        present = torch.zeros(len(rows), most, dtype=torch.bool)
        for place, row in enumerate(rows):
            pictures = self.pictures[row]
            images[place, : len(pictures)] = self.store.batch(pictures)
            present[place, : len(pictures)] = True
        return images, present

    def reports(self, rows: Sequence[int]) -> list[str]:
        """Return the reports to learn."""
        return [self.visits[row].study.report for row in rows]

    def priors(self, rows: Sequence[int]) -> list[str | None]:
        """Return the reports of the visits before, None for a patient's first: `prior_context` (TAR-14)."""
        return [self.visits[row].prior for row in rows]

    def gaps(self, rows: Sequence[int]) -> Tensor:
        """Return (B,) float64, days since the patient's visit before; 0 for the first, NaN if unknown."""
        values = []
        for row in rows:
            visit = self.visits[row]
            first = self.patients[self.owners[row]].visits[0].number == visit.number
            values.append(0.0 if first else float("nan") if visit.gap is None else visit.gap)
        return torch.tensor(values, dtype=torch.float64)

    def days(self, split: str) -> list[list[float]]:
        """Return for each patient of a split the days of the visits in order, where all of them are known."""
        known = []
        for patient in self.patients:
            days = [visit.since for visit in patient.visits]
            if patient.split == split and None not in days:
                known.append([day for day in days if day is not None])
        return known

    def studies(self) -> list[Study]:
        """Return the study of each row."""
        return [visit.study for visit in self.visits]

    def examples(self) -> dict[str, int]:
        """Return the number of visits per split."""
        return {split: len(self.rows(split)) for split in SPLITS}

    def skipped(self) -> dict[str, int]:
        """Return reason -> count, of records and images that were left out."""
        return skipped_counts(self.cohort)


def open_visits(site: SiteConfig, size: int, cache: Path | None = None) -> VisitSamples:
    """Read a site's visits and decode their images to (size, size), a volume as its slices.

    A visit whose images cannot be decoded counts against `max_skipped`; visits after it keep their numbers.

    Args:
        cache: folder for decoded images; None keeps them in RAM.

    Raises:
        ConfigError: a cohort of the site has no `visits`.
        DataError: as load_cohort, or too many images cannot be decoded.
    """
    if (missing := no_visits(site)) is not None:
        raise ConfigError(missing)
    cohort = load_cohort(site)
    images = [image for study in cohort.studies for image in _samples(study, cohort, site)]
    store = open_store(cohort, site, images, size, cache)
    pictures_of: dict[str, list[int]] = {}
    for position, index in enumerate(store.kept):
        pictures_of.setdefault(images[index].record, []).append(position)
    return _visit_samples(cohort, store, pictures_of)


def _visit_samples(cohort: Cohort, store: ImageStore, pictures_of: dict[str, list[int]]) -> VisitSamples:
    patients = group_patients(cohort.studies)
    rows = [(place, visit) for place, patient in enumerate(patients) for visit in patient.visits]
    visits = [visit for _, visit in rows]
    return VisitSamples(
        cohort=cohort,
        store=store,
        patients=patients,
        visits=visits,
        owners=[place for place, _ in rows],
        pictures=[pictures_of[visit.study.study_id] for visit in visits],
        codes=code_table([visit.study for visit in visits]),
    )


def _samples(study: Study, cohort: Cohort, site: SiteConfig) -> list[ImageSample]:
    source = study.extra.get("source", "")
    scanner = cohort.scanners.get(source)
    config = site.cohort[int(source or 0)].visits or VisitConfig()
    samples = []
    for path in study.images:
        if config.slices is None or not is_volume(path):
            samples.append(ImageSample(study.study_id, path, scanner))
            continue
        cuts = [(index, config.slices, config.window) for index in range(config.slices)]
        samples += [ImageSample(study.study_id, path, scanner, cut) for cut in cuts]
    return samples
