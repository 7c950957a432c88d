# SPDX-License-Identifier: Apache-2.0
"""Builds a benchmark: indices, the partition, a manifest for each client and test set, and `benchmark.json`.

Everything is written into `OUT.building` and put in place at the end, so that OUT holds a whole benchmark or
none; indices stay in `OUT.index`, from which a stopped command goes on. The same sources and settings give
the same files, bit for bit.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import yaml

from medflare.benchmark.assignment import PatientTable, assign, by_shares, drawn_pairs
from medflare.benchmark.folder import BENCHMARK, write_facts
from medflare.benchmark.index import Say, build_index, digest_of, read_index
from medflare.benchmark.rows import BenchmarkRow, lists_of
from medflare.benchmark.settings import IU_IMAGES, REAL_WORLD_SITES, BenchmarkSettings
from medflare.benchmark.statistics import ClientStatistics, summary
from medflare.core.errors import DataError
from medflare.data.partition.studies import site_scanners
from medflare.data.records import SPLITS
from medflare.data.settings.cohort import SplitConfig
from medflare.data.splits import assign_splits

SourcePlace = tuple[str, str]
"""Client or test set, and split, of a study."""


@dataclass(slots=True)
class Dealt:
    """Destination of the studies of one source.

    Attributes:
        clients: patient -> client; validation: patients in the 10 % of their client.
        test_set: name of the set that its test studies form.
        all_is_test: every study is tested on, as IU X-Ray's are.
    """

    clients: dict[str, str] = field(default_factory=dict)
    validation: set[str] = field(default_factory=set)
    test_set: str = ""
    all_is_test: bool = False
    keeps_split: bool = False

    def place(self, row: BenchmarkRow) -> SourcePlace | None:
        """Return the place of a study; None where no client has it."""
        client = self.clients.get(row.patient_id)
        if client is not None and self.keeps_split:
            return client, row.split
        if self.all_is_test or row.split == "test":
            return (self.test_set, "test") if self.test_set else None
        if client is None or row.split != "train":
            return None
        return client, "val" if row.patient_id in self.validation else "train"


def build(
    settings: BenchmarkSettings, out: Path, finish: Callable[[Path, dict[str, Any]], None], say: Say
) -> dict[str, Any]:
    """Build a benchmark in `out` and return what benchmark.json says.

    Args:
        finish: adds to folder and facts before the folder is put in its place.

    Raises:
        ConfigError: `out` holds something else, or the sources are too small for the setting.
        DataError: a source lacks files.
    """
    BENCHMARK.check(out, overwrite=True)
    out = out.resolve()
    indices = {
        source: build_index(source, root, settings, out.with_name(out.name + ".index"), say)
        for source, root in settings.used_sources().items()
    }
    dealt = deal(settings, indices)
    with BENCHMARK.building(out, overwrite=True) as scratch:
        with Manifests(scratch) as manifests:
            for source, index in indices.items():
                _write_source(settings, source, index, dealt[source], manifests, out)
        facts = _facts(settings, scratch, manifests)
        finish(scratch, facts)
        write_facts(scratch, facts)
        _write_site_files(settings, scratch, manifests)
    return facts


def usable(settings: BenchmarkSettings, row: BenchmarkRow) -> bool:
    """Return whether a study has findings of enough words, and an image."""
    return bool(row.images) and len(row.findings.split()) >= settings.words


def deal(settings: BenchmarkSettings, indices: Mapping[str, Path]) -> dict[str, Dealt]:
    """Return, for every source, where its studies go."""

    def training(source: str) -> Iterator[BenchmarkRow]:
        rows = (row for row in read_index(indices[source]) if usable(settings, row))
        return (row for row in rows if row.split == "train" or settings.setting == "longitudinal")

    dealt = {source: Dealt(test_set=source.replace("_", "-") + "-test") for source in indices}
    if settings.setting == "fedvit-gpt2":
        one = dealt["iu_xray"]
        one.keeps_split = True
        for split in ("train", "val"):
            rows = (row for row in read_index(indices["iu_xray"]) if usable(settings, row))
            of_split = PatientTable.of(_of_split(rows, split))
            numbers = by_shares(of_split, settings.seed)
            one.clients |= {patient: f"client-{number + 1}" for patient, number in numbers.items()}
        return dealt
    if "iu_xray" in dealt:
        dealt["iu_xray"] = Dealt(test_set="iu-xray-unseen", all_is_test=True)
    if settings.setting == "real-world":
        parts = {"mimic_cxr": "mimic", "chexpert_plus": "chexpert"}
        for source, name in parts.items():
            table = drawn_pairs(PatientTable.of(training(source)), settings.pairs, settings.seed)
            few = settings.model_copy(update={"clients": REAL_WORLD_SITES})
            _give(dealt[source], assign(table, few), settings.seed, f"{name}-")
        return dealt
    if settings.setting == "longitudinal":
        one = dealt["mimic_cxr"]
        one.keeps_split = True
        counts = _studies_of(training("mimic_cxr"))
        for split in SPLITS:
            table = PatientTable.of(_of_split(training("mimic_cxr"), split))
            several = table.only(p for p in table.images if counts[p] >= settings.fewest_visits)
            numbers = assign(several, settings)
            one.clients |= {patient: f"client-{number + 1}" for patient, number in numbers.items()}
        one.test_set = ""
        return dealt
    _give(
        dealt["mimic_cxr"], assign(PatientTable.of(training("mimic_cxr")), settings), settings.seed, "client-"
    )
    return dealt


def _of_split(rows: Iterator[BenchmarkRow], split: str) -> Iterator[BenchmarkRow]:
    return (row for row in rows if row.split == split)


def _studies_of(rows: Iterator[BenchmarkRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.patient_id] = counts.get(row.patient_id, 0) + 1
    return counts


def _give(dealt: Dealt, numbers: Mapping[str, int], seed: int, prefix: str) -> None:
    """Name the clients, and put a tenth of each one's patients into validation (BM-1)."""
    dealt.clients = {patient: f"{prefix}{number + 1}" for patient, number in numbers.items()}
    shares = SplitConfig(train=0.9, val=0.1, test=0.0, seed=seed)
    for client in sorted(set(dealt.clients.values())):
        of_client = [patient for patient, at in dealt.clients.items() if at == client]
        splits = assign_splits(of_client, shares)
        dealt.validation |= {patient for patient, split in splits.items() if split == "val"}


class Manifests:
    """The manifests of all clients and test sets while they are written.

    Attributes:
        statistics: client -> counts of its training and validation studies.
        counts: place -> patients, studies and images; digests: place -> hash of its study ids, in order.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.statistics: dict[str, ClientStatistics] = {}
        self.counts: dict[SourcePlace, dict[str, int]] = {}
        self.left_out = 0
        self._digests: dict[SourcePlace, Any] = {}
        self._files: dict[str, TextIO] = {}

    def __enter__(self) -> Manifests:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def add(self, place: SourcePlace, row: BenchmarkRow, line: dict[str, Any]) -> None:
        """Write one study."""
        name, split = place
        if name not in self._files:
            (self.folder / name).mkdir()
            self._files[name] = (self.folder / name / "manifest.jsonl").open("w", encoding="utf-8")
        self._files[name].write(json.dumps(line | {"split": split}, ensure_ascii=False) + "\n")
        counts = self.counts.setdefault(place, {"studies": 0, "images": 0})
        counts["studies"] += 1
        counts["images"] += len(row.images)
        digest = self._digests.setdefault(place, hashlib.sha256())
        digest.update(f"{row.study_id}\n".encode())
        if split != "test":
            self.statistics.setdefault(name, ClientStatistics()).add(row)

    def digests(self) -> dict[SourcePlace, str]:
        """Return place -> SHA-256 of its study ids, one a line, in the order of the source."""
        return {place: digest.hexdigest() for place, digest in sorted(self._digests.items())}


def _write_source(
    settings: BenchmarkSettings, source: str, index: Path, dealt: Dealt, manifests: Manifests, out: Path
) -> None:
    """Stream an index into the manifests; image paths are relative to where the manifests will lie."""
    root = settings.used_sources()[source].resolve()
    for row in read_index(index):
        place = dealt.place(row) if usable(settings, row) else None
        if place is None:
            manifests.left_out += 1
            continue
        base = os.path.relpath(root, (out / place[0]).resolve())
        line: dict[str, Any] = {
            "study_id": f"{source}-{row.study_id}",
            "patient_id": f"{source}-{row.patient_id}",
            "image": [f"{base}/{name}" for name in row.images],
            "report": row.findings,
            "labels": list(row.codes),
        }
        optional = {"view": row.view or None, "age": row.age, "sex": row.sex, "day": row.day}
        if row.date:
            optional["date"] = _date(row.date)
        manifests.add(place, row, line | {k: v for k, v in optional.items() if v is not None})


def _date(text: str) -> str:
    """Return YYYYMMDDHHMMSS as an ISO date with its time."""
    return datetime.datetime.strptime(text[:14], "%Y%m%d%H%M%S").isoformat()


def _facts(settings: BenchmarkSettings, folder: Path, manifests: Manifests) -> dict[str, Any]:
    digests = manifests.digests()
    splits = {
        f"{name}/{split}": manifests.counts[name, split] | {"sha256_of_study_ids": digests[name, split]}
        for name, split in digests
    }
    if not manifests.statistics:
        raise DataError("No study of the training part has findings; look at the reports' folder.")
    files = sorted(folder.glob("*/manifest.jsonl"))
    facts: dict[str, Any] = {
        "schema_version": 1,
        "settings": settings.model_dump(mode="json"),
        "lists": {
            source: {file.name: digest_of(file) for file in lists_of(source, root)}
            for source, root in settings.used_sources().items()
        },
        "splits": splits,
        "left_out": manifests.left_out,
        "manifests": {str(file.relative_to(folder)): digest_of(file) for file in files},
        "clients": summary({name: manifests.statistics[name] for name in in_order(manifests.statistics)}),
    }
    if settings.setting == "fedvit-gpt2":
        found = {s: sum(v["images"] for (_, x), v in manifests.counts.items() if x == s) for s in IU_IMAGES}
        facts["published_images"] = IU_IMAGES
        facts["equals_the_published_split"] = found == IU_IMAGES
    return facts


def in_order(names: Iterable[str]) -> list[str]:
    """Return names such as client-2 and client-10 by their numbers."""
    return sorted(names, key=lambda name: (name.rpartition("-")[0], int(name.rpartition("-")[2])))


def _write_site_files(settings: BenchmarkSettings, folder: Path, manifests: Manifests) -> None:
    """Write site.yaml of the clients and test.yaml of the common test sets."""
    clients = in_order(manifests.statistics)
    scanners = site_scanners(clients, settings.seed) if settings.scanners else {}
    sites: dict[str, Any] = {}
    for name in clients:
        cohort: dict[str, Any] = {"format": "manifest", "root": name}
        if settings.setting == "longitudinal":
            cohort["visits"] = {}
            cohort["columns"] = {"date": "date"}
        if name in scanners:
            cohort["scanner"] = scanners[name].model_dump()
        sites[name] = {"cohort": cohort}
    head = f"# Clients of the benchmark {settings.setting}; made by `medflare benchmark fl-mrg`.\n"
    (folder / "site.yaml").write_text(head + yaml.safe_dump({"sites": sites}, sort_keys=False))
    tests = sorted({name for name, split in manifests.counts if name not in manifests.statistics})
    if tests:
        common = {name: {"cohort": {"format": "manifest", "root": name}} for name in tests}
        head = "# Common test sets: medflare evaluate RUN -f test.yaml\n"
        (folder / "test.yaml").write_text(head + yaml.safe_dump({"sites": common}, sort_keys=False))
