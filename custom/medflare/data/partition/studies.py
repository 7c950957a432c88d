# SPDX-License-Identifier: Apache-2.0
"""One pooled cohort dealt to several sites, always by patient.

Each partitioner returns patient -> site; `partition` turns that into studies per site, `write_partition` into
manifests with a site.yaml that the simulator reads.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.data.partition.partitioning import (
    HEAD,
    SITE_FILE,
    assign_to_sites,
    dirichlet_shares,
    write_site_file,
)
from medflare.data.records import Study
from medflare.data.settings.cohort import CohortConfig, ScannerConfig

BLURS = (0.0, 0.5, 1.0)
GAINS = (0.8, 1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """Settings of the partition of a cohort into sites.

    Attributes:
        method: a key of STUDY_PARTITIONS.
        sites: names, in order; alpha: Dirichlet concentration; label: main condition of `dirichlet`,
            None for each patient's own rarest positive one.
        scanners: whether every site gets a scanner character of its own.
    """

    sites: tuple[str, ...]
    method: str = "random_stratified"
    alpha: float = 0.5
    label: str | None = None
    seed: int = 0
    scanners: bool = True


def partition(studies: Sequence[Study], plan: PartitionPlan) -> dict[str, list[Study]]:
    """Return site -> its studies; every patient is at exactly one site.

    Raises:
        ConfigError: unknown method or label, or fewer patients than sites.
    """
    if plan.method not in STUDY_PARTITIONS:
        raise ConfigError(f"partition method '{plan.method}': there are {', '.join(STUDY_PARTITIONS)}.")
    if plan.label is not None and plan.label not in CONDITIONS:
        raise ConfigError(f"partition label '{plan.label}': there are {', '.join(CONDITIONS)}.")
    if plan.alpha <= 0:
        raise ConfigError(
            f"partition alpha {plan.alpha}: must be above 0; 0.1 is very uneven, 10 nearly even."
        )
    profiles = patient_profiles(studies)
    if len(profiles) < len(plan.sites) or not plan.sites:
        raise ConfigError(f"{len(profiles)} patients cannot be dealt to {len(plan.sites)} sites.")
    given = STUDY_PARTITIONS[plan.method](profiles, plan)
    dealt: dict[str, list[Study]] = {site: [] for site in plan.sites}
    for study in studies:
        dealt[plan.sites[given[study.patient_id]]].append(study)
    return dealt


def patient_profiles(studies: Sequence[Study]) -> dict[str, np.ndarray]:
    """Return patient -> mean over studies of the one-hot codes, (14 * 4,) float64, in order of patient id."""
    rows: dict[str, list[np.ndarray]] = defaultdict(list)
    for study in studies:
        codes = study.codes or (int(Code.BLANK),) * len(CONDITIONS)
        rows[study.patient_id].append(np.eye(len(Code))[list(codes)].ravel())
    return {patient: np.mean(rows[patient], axis=0) for patient in sorted(rows)}


def random_stratified(profiles: Mapping[str, np.ndarray], plan: PartitionPlan) -> dict[str, int]:
    """Assign equal numbers to each site, and of each label profile: shuffled, sorted and dealt in turn."""
    rng = np.random.default_rng(plan.seed)
    patients = list(profiles)
    rng.shuffle(patients)
    patients.sort(key=lambda patient: tuple(_positives(profiles[patient])))
    sites = len(plan.sites)
    given: dict[str, int] = {}
    for start in range(0, len(patients), sites):
        order = rng.permutation(sites)
        for patient, site in zip(patients[start : start + sites], order, strict=False):
            given[patient] = int(site)
    return given


def report_clusters(profiles: Mapping[str, np.ndarray], plan: PartitionPlan) -> dict[str, int]:
    """Return clusters of k-means on the profiles, one a site, balanced: no site above n / K rounded up.

    Patients choose in the order of how much they lose by not getting their nearest centre.
    """
    from sklearn.cluster import KMeans

    patients = list(profiles)
    matrix = np.stack([profiles[patient] for patient in patients])
    sites = len(plan.sites)
    distinct = len(np.unique(matrix, axis=0))
    model = KMeans(n_clusters=min(sites, distinct), n_init=10, random_state=plan.seed).fit(matrix)
    distance = np.full((len(patients), sites), np.inf)
    distance[:, : model.n_clusters] = model.transform(matrix)
    distance[~np.isfinite(distance)] = matrix.shape[1]
    ranked = np.sort(distance, axis=1)
    regret = ranked[:, 1] - ranked[:, 0] if sites > 1 else np.zeros(len(patients))
    room = [len(patients) // sites + (site < len(patients) % sites) for site in range(sites)]
    given: dict[str, int] = {}
    for index in np.argsort(-regret, kind="stable"):
        site = min((s for s in range(sites) if room[s]), key=lambda s: distance[index, s])
        room[site] -= 1
        given[patients[index]] = site
    return given


def dirichlet(profiles: Mapping[str, np.ndarray], plan: PartitionPlan) -> dict[str, int]:
    """For each class of patients, shares over sites drawn from Dirichlet(alpha); every site gets a patient.

    The class is whether `label` is positive in any study, or the patient's rarest positive condition.
    """
    rng = np.random.default_rng(plan.seed)
    even = np.ones(len(plan.sites))
    classes = main_classes(profiles, plan.label)
    return assign_to_sites(classes, dirichlet_shares(even, plan.alpha, rng), len(even), rng)


def main_classes(profiles: Mapping[str, np.ndarray], label: str | None) -> dict[str, int]:
    """Return patient -> class: 1 or 0 for a named label, else the rarest positive condition (14: none)."""
    positive = {patient: _positives(profile) for patient, profile in profiles.items()}
    if label is not None:
        column = CONDITIONS.index(label)
        return {patient: int(conditions[column]) for patient, conditions in positive.items()}
    frequency = np.sum(list(positive.values()), axis=0)
    return {
        patient: min(np.flatnonzero(present).tolist(), key=lambda c: frequency[c], default=len(CONDITIONS))
        for patient, present in positive.items()
    }


def _positives(profile: np.ndarray) -> np.ndarray:
    """Return (14,) 0 or 1: whether the condition is positive in any of the patient's studies."""
    return (profile.reshape(len(CONDITIONS), len(Code))[:, Code.POSITIVE] > 0).astype(int)


STUDY_PARTITIONS: dict[str, Callable[[Mapping[str, np.ndarray], PartitionPlan], dict[str, int]]] = {
    "random_stratified": random_stratified,
    "report_clusters": report_clusters,
    "dirichlet": dirichlet,
}


def site_scanners(sites: Sequence[str], seed: int = 0) -> dict[str, ScannerConfig]:
    """Return a fixed scanner for each site: blur in BLURS, contrast and brightness in GAINS."""
    rng = np.random.default_rng([seed, 25])
    return {
        site: ScannerConfig(
            blur=float(rng.choice(BLURS)),
            contrast=round(float(rng.uniform(*GAINS)), 3),
            brightness=round(float(rng.uniform(*GAINS)), 3),
        )
        for site in sites
    }


def one_reading(pool: Sequence[CohortConfig]) -> CohortConfig:
    """Return the settings by which all pooled cohorts were read.

    Raises:
        ConfigError: they differ in what a second reading, of the sites' manifests, depends on.
    """
    first = pool[0]
    for name in ("visits", "text_rules", "scanner"):
        if any(getattr(part, name) != getattr(first, name) for part in pool):
            raise ConfigError(f"the pooled cohorts have different '{name}'; deal them one after the other.")
    return first


def write_partition(
    studies: Sequence[Study],
    plan: PartitionPlan,
    folder: Path,
    pool: CohortConfig | None = None,
    site: dict[str, Any] | None = None,
) -> Path:
    """Write <folder>/<site>/manifest.jsonl for each site and <folder>/site.yaml; return the latter.

    Images are not copied: manifests name them relative to their own folder.

    Args:
        pool: how the pool was read; the sites are read with the same visits and rules of text.
        site: further settings of every site.
    """
    dealt = partition(studies, plan)
    scanners = site_scanners(plan.sites, plan.seed) if plan.scanners else {}
    visits = pool.visits if pool is not None else None
    covariates = visits.covariates if visits is not None else ()
    cohorts: dict[str, list[dict[str, Any]]] = {}
    for name, members in dealt.items():
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        rows = [
            manifest_row(study, target) | {fact: study.extra.get(fact) for fact in covariates}
            for study in members
        ]
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (target / "manifest.jsonl").write_text("\n".join([*lines, ""]), encoding="utf-8")
        cohort: dict[str, Any] = {"format": "manifest"}
        if pool is not None and pool.text_rules != "clean":
            cohort["text_rules"] = pool.text_rules
        scanner = scanners.get(name) or (pool.scanner if pool is not None else None)
        if scanner is not None:
            cohort["scanner"] = scanner.model_dump()
        if visits is not None:
            # The pool's visits are numbered, and rows of one day were joined or left out there.
            numbered = {"order": "visit", "same_day": "keep"}
            cohort["visits"] = visits.model_dump(mode="json", exclude_defaults=True) | numbered
        cohorts[name] = [cohort]
    head = f"{HEAD} {len(studies)} studies: {json.dumps(asdict(plan))}\n"
    return write_site_file(folder / SITE_FILE, cohorts, head, site)


def manifest_row(study: Study, folder: Path) -> dict[str, object]:
    """Return a study as a row of our manifest (readers/manifest.py) that lies in `folder`."""
    row: dict[str, object] = {
        "study_id": study.study_id,
        "patient_id": study.patient_id,
        "image": [Path(os.path.relpath(path, folder)).as_posix() for path in study.images],
        "report": study.report,
        "split": study.split,
        "labels": list(study.codes) if study.codes is not None else None,
        "age": study.age,
        "sex": study.sex,
        "day": study.day,
        "visit": study.visit,
        "view": study.view or None,
    }
    return {key: value for key, value in row.items() if value is not None}
