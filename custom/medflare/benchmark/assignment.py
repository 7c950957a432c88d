# SPDX-License-Identifier: Apache-2.0
"""Assignment of patients to clients: the papers' partitions (BM-2 to BM-6), as pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from medflare.benchmark.rows import BenchmarkRow
from medflare.benchmark.settings import IU_SHARES, BenchmarkSettings
from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.data.partition.partitioning import assign_to_sites, even_shares
from medflare.data.partition.studies import PartitionPlan, main_classes, random_stratified, report_clusters


@dataclass(slots=True)
class PatientTable:
    """Facts of patients that a partition needs, in little memory.

    Attributes:
        profiles: patient -> mean of the one-hot codes of the studies, (56,) float32.
        images: patient -> images.
    """

    profiles: dict[str, np.ndarray]
    images: dict[str, int]

    @classmethod
    def of(cls, rows: Iterable[BenchmarkRow]) -> PatientTable:
        """Return the table of rows that are looked at one at a time."""
        sums: dict[str, np.ndarray] = {}
        studies: dict[str, int] = {}
        images: dict[str, int] = {}
        places = np.arange(len(CONDITIONS)) * len(Code)
        for row in rows:
            patient = row.patient_id
            if patient not in sums:
                sums[patient] = np.zeros(len(CONDITIONS) * len(Code), dtype=np.float32)
            sums[patient][places + np.asarray(row.codes)] += 1
            studies[patient] = studies.get(patient, 0) + 1
            images[patient] = images.get(patient, 0) + len(row.images)
        profiles = {patient: sums[patient] / studies[patient] for patient in sorted(sums)}
        return cls(profiles, images)

    def only(self, patients: Iterable[str]) -> PatientTable:
        """Return the table of some of the patients."""
        kept = set(patients)
        return PatientTable(
            {p: v for p, v in self.profiles.items() if p in kept},
            {p: n for p, n in self.images.items() if p in kept},
        )


def assign(table: PatientTable, settings: BenchmarkSettings) -> dict[str, int]:
    """Return patient -> number of the client; patients that no client has are left out.

    Raises:
        ConfigError: there are fewer patients or images than the setting needs.
    """
    clients = settings.clients
    if len(table.profiles) < clients:
        raise ConfigError(f"{len(table.profiles)} patients cannot be dealt to {clients} clients.")
    if settings.setting == "dirichlet":
        return dirichlet_of_sizes(table, settings)
    plan = PartitionPlan(sites=tuple(map(str, range(clients))), seed=settings.seed)
    split = report_clusters if settings.setting == "cluster" else random_stratified
    return split(table.profiles, plan)


def dirichlet_of_sizes(table: PatientTable, settings: BenchmarkSettings) -> dict[str, int]:
    """Deal patients so that clients hold 4,000 to 7,000 images of classes in Dirichlet shares (BM-4).

    A client draws its number of images evenly from `client_images` and the shares of the classes from
    Dirichlet(alpha); it takes patients of each class in random order until the share is full. What a class
    lacks comes from the classes that have most left.

    Raises:
        ConfigError: fewer images than the smallest clients need.
    """
    low, high = settings.client_images
    total = sum(table.images.values())
    if total < settings.clients * low:
        raise ConfigError(
            f"{settings.clients} clients of at least {low} images need {settings.clients * low}, and there "
            f"are {total}. Give --client-images LOW HIGH or fewer --clients."
        )
    rng = np.random.default_rng([settings.seed, round(100 * settings.alpha)])
    waiting: dict[int, list[str]] = {}
    for patient, name in main_classes(table.profiles, None).items():
        waiting.setdefault(name, []).append(patient)
    classes = sorted(waiting)
    for name in classes:
        rng.shuffle(waiting[name])
    sizes = rng.integers(low, high + 1, settings.clients)
    over = max(int(sizes.sum()) - total, 0)
    sizes -= np.minimum(sizes - low, -(-over // settings.clients))  # the last client is filled too
    given: dict[str, int] = {}
    for client, size in enumerate(sizes):
        shares = rng.dirichlet(np.full(len(classes), settings.alpha))
        held = 0
        for name, share in zip(classes, shares, strict=True):
            held += _take(waiting[name], table.images, round(share * size), high - held, given, client)
        while held < min(size, high) and any(waiting.values()):
            fullest = max(classes, key=lambda name: len(waiting[name]))
            taken = _take(waiting[fullest], table.images, int(size) - held, high - held, given, client)
            if not taken:
                break
            held += taken
    return given


def _take(
    waiting: list[str], images: Mapping[str, int], wanted: int, room: int, given: dict[str, int], client: int
) -> int:
    """Give `client` patients until it has `wanted` images more, never over `room`; return how many it has."""
    held = 0
    passed: list[str] = []
    while waiting and held < wanted:
        patient = waiting.pop()
        if held + images[patient] > room:
            passed.append(patient)
            if len(passed) > 20:
                break
            continue
        given[patient] = client
        held += images[patient]
    waiting.extend(reversed(passed))
    return held


def by_shares(table: PatientTable, seed: int) -> dict[str, int]:
    """Deal the patients of one split to FedViT-GPT2's four clients, 40, 30, 20 and 10 % (BM-6)."""
    rng, shares = np.random.default_rng(seed), np.array(IU_SHARES)
    return assign_to_sites(dict.fromkeys(table.profiles, 0), even_shares(shares), len(shares), rng)


def drawn_pairs(table: PatientTable, pairs: int, seed: int) -> PatientTable:
    """Return patients drawn at random until they have `pairs` images, or all of them."""
    patients = sorted(table.profiles)
    np.random.default_rng(seed).shuffle(patients)
    kept, images = [], 0
    for patient in patients:
        if images >= pairs:
            break
        kept.append(patient)
        images += table.images[patient]
    return table.only(kept)
