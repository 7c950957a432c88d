# SPDX-License-Identifier: Apache-2.0
"""What a learner of visits opens: patients, their visits by number, and batches of one visit number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from medflare.core.conditions import CONDITIONS
from medflare.core.errors import ConfigError
from medflare.data.cohort import Cohort, check_skipped
from medflare.data.load import load_cohort
from medflare.data.records import SPLITS, Patient, Study, Visit
from medflare.data.samples import drop_unusable
from medflare.data.settings.site import SiteConfig
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
        """Rows of one split, of visit `number` or of all; empty where the site has none (n_{k,t} = 0)."""
        if split not in SPLITS:
            raise ValueError(f"there is no split '{split}'; choose one of: {', '.join(SPLITS)}.")
        return [
            row
            for row, visit in enumerate(self.visits)
            if visit.study.split == split and number in (None, visit.number)
        ]

    def counts(self, split: str, visits: int | None = None) -> list[int]:
        """n_{k,t} for t = 1..`visits`, or as far as the site's visits go."""
        found = visits_per_number(self.patients, split)
        return found if visits is None else (found + [0] * visits)[:visits]

    def images(self, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """(B, S, 1, size, size) float32 in [0, 1] and (B, S) bool, true where there is a picture.

        S is the most pictures of a visit among `rows`; what is missing is zeros, at the end.
        """
        most = max((len(self.pictures[row]) for row in rows), default=0)
        size = self.store.size
        found = torch.zeros(len(rows), most, 1, size, size)
        there = torch.zeros(len(rows), most, dtype=torch.bool)
        for place, row in enumerate(rows):
            own = self.pictures[row]
            found[place, : len(own)] = self.store.batch(own)
            there[place, : len(own)] = True
        return found, there

    def reports(self, rows: Sequence[int]) -> list[str]:
        """The reports to learn."""
        return [self.visits[row].study.report for row in rows]

    def priors(self, rows: Sequence[int]) -> list[str]:
        """The reports of the visits before, "" for a patient's first: `prior_context` (TAR-14)."""
        return [self.visits[row].prior for row in rows]

    def gaps(self, rows: Sequence[int]) -> Tensor:
        """(B,) float64, days since the patient's visit before; 0 for the first one, NaN where unknown."""
        values = []
        for row in rows:
            visit = self.visits[row]
            first = self.patients[self.owners[row]].visits[0].number == visit.number
            values.append(0.0 if first else float("nan") if visit.gap is None else visit.gap)
        return torch.tensor(values, dtype=torch.float64)

    def days(self, split: str) -> list[list[float]]:
        """For each patient of a split the days of the visits in order, where all of them are known."""
        found = []
        for patient in self.patients:
            days = [visit.since for visit in patient.visits]
            if patient.split == split and None not in days:
                found.append([day for day in days if day is not None])
        return found

    def studies(self) -> list[Study]:
        """The study of each row."""
        return [visit.study for visit in self.visits]

    def examples(self) -> dict[str, int]:
        """Visits per split."""
        return {split: len(self.rows(split)) for split in SPLITS}

    def skipped(self) -> dict[str, int]:
        """Reason -> count, of records and images that were left out."""
        return dict(Counter(item.reason for item in self.cohort.skipped).most_common())


def open_visits(site: SiteConfig, size: int, cache: Path | None = None) -> VisitSamples:
    """Reads a site's visits and decodes their images to (size, size), a volume as its slices.

    A visit whose images cannot be decoded counts against `max_skipped`; visits after it keep their numbers.

    Args:
        cache: folder for decoded images; None keeps them in RAM.

    Raises:
        ConfigError: a cohort of the site has no `visits`.
        DataError: as load_cohort, or too many images cannot be decoded.
    """
    if any(config.visits is None for config in site.cohort):
        raise ConfigError(
            f"site '{site.name}': this method needs patients with visits; add 'visits: {{}}' to the cohort "
            "in site.yaml (docs/how-to/patients-with-visits.md)."
        )
    cohort = load_cohort(site)
    pairs = [(study, sample) for study in cohort.studies for sample in _samples(study, cohort, site)]
    store = ImageStore([sample for _, sample in pairs], size, cache)
    cohort.skipped += store.failed
    check_skipped(cohort, ", ".join(str(config.root) for config in site.cohort))
    drop_unusable(cohort, store.failed, [pairs[index][1].path for index in store.kept])
    own: dict[str, list[int]] = {}
    for position, index in enumerate(store.kept):
        own.setdefault(pairs[index][0].study_id, []).append(position)
    return _visit_samples(cohort, store, own)


def _visit_samples(cohort: Cohort, store: ImageStore, own: dict[str, list[int]]) -> VisitSamples:
    patients = group_patients(cohort.studies)
    rows = [(place, visit) for place, patient in enumerate(patients) for visit in patient.visits]
    visits = [visit for _, visit in rows]
    codes = torch.tensor([visit.study.codes for visit in visits], dtype=torch.int64)
    return VisitSamples(
        cohort=cohort,
        store=store,
        patients=patients,
        visits=visits,
        owners=[place for place, _ in rows],
        pictures=[own[visit.study.study_id] for visit in visits],
        codes=codes.reshape(len(visits), len(CONDITIONS)),
    )


def _samples(study: Study, cohort: Cohort, site: SiteConfig) -> list[ImageSample]:
    source = study.extra.get("source", "")
    scanner = cohort.scanners.get(source)
    config = site.cohort[int(source or 0)].visits or VisitConfig()
    found = []
    for path in study.images:
        if config.slices is None or not is_volume(path):
            found.append(ImageSample(study.study_id, path, scanner))
            continue
        cuts = [(index, config.slices, config.window) for index in range(config.slices)]
        found += [ImageSample(study.study_id, path, scanner, cut) for cut in cuts]
    return found
