# SPDX-License-Identifier: Apache-2.0
"""Where the notes of the extraction comparisons come from: synthetic hospitals, corpora, MTSamples."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from medflare.data.load import load_cohort
from medflare.data.records import Note
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.label_maps import mapping_of, targets
from medflare.data.settings.site import SiteConfig
from method_comparison.tasks.needed import public_data

CLEAN, CORRUPTED, UNEVEN = "clean", "corrupted", "uneven"


class NoteCohorts(ABC):
    """Training sites and test notes of a partition.

    Attributes:
        sites: that take part; unseen: those of whose notes nobody trains.
        conditions: what training notes may be like.
    """

    sites: Sequence[str]
    unseen: Sequence[str]
    conditions: Sequence[str]

    @abstractmethod
    def write(self, folder: Path, seed: int, train: int, test: int) -> None:
        """Write the notes of a seed unless they are there."""

    @abstractmethod
    def site(self, folder: Path, name: str, seed: int, condition: str) -> SiteConfig:
        """Return a training site of a seed under a condition."""

    @abstractmethod
    def tests(self, folder: Path) -> dict[str, list[Note]]:
        """Return the test notes of every site, the same for all seeds."""

    @abstractmethod
    def judge(self, folder: Path) -> SiteConfig | None:
        """Return the server's validation notes, for rules that score candidates."""


class Synthetic(NoteCohorts):
    """Three synthetic hospitals and an unseen one; a seed decides the training notes.

    Condition corrupted: wrong labels of most entities at site-3. Uneven: site-2 has marked entities only.
    """

    sites, unseen = ("site-1", "site-2", "site-3"), ("site-4",)
    conditions = (CLEAN, CORRUPTED, UNEVEN)
    bad, entities_only = "site-3", "site-2"
    test_seed = 777
    share = 0.7
    """Of the corrupted site's entities whose labels are wrong."""

    def write(self, folder: Path, seed: int, train: int, test: int) -> None:
        from medflare.synthetic.notes import NOTE_HOSPITALS, UNSEEN_NOTES, write_notes_hospital
        from medflare.synthetic.notes.files import write_validation_notes

        tests, trains = folder / "test", folder / f"train-{seed}"
        for house in (*NOTE_HOSPITALS, UNSEEN_NOTES):
            if not (tests / house.name).is_dir():
                write_notes_hospital(house.with_seed(self.test_seed), tests / house.name, test, "jsonl")
        if not (trains / "complete").is_file():
            for house in NOTE_HOSPITALS:
                write_notes_hospital(house.with_seed(seed), trains / house.name, train, "jsonl")
            wrong = NOTE_HOSPITALS[self.sites.index(self.bad)].with_seed(seed)
            place = trains / f"{self.bad}-corrupted"
            write_notes_hospital(wrong, place, train, "jsonl", corrupted=self.share)
            (trains / "complete").touch()
        if not (folder / "validation").is_dir():
            write_validation_notes(folder / "validation")

    def site(self, folder: Path, name: str, seed: int, condition: str) -> SiteConfig:
        wrong = condition == CORRUPTED and name == self.bad
        tasks = {"tasks": ("ner",)} if condition == UNEVEN and name == self.entities_only else {}
        place = folder / f"train-{seed}" / (f"{name}-corrupted" if wrong else name)
        train, test = whole_cohort(place, "train", **tasks), whole_cohort(folder / "test" / name, "test")
        return SiteConfig(name=name, cohort=(train, test))

    def tests(self, folder: Path) -> dict[str, list[Note]]:
        return {
            name: _read(name, whole_cohort(folder / "test" / name, "test"))
            for name in (*self.sites, *self.unseen)
        }

    def judge(self, folder: Path) -> SiteConfig | None:
        return SiteConfig(name="server", cohort=(whole_cohort(folder / "validation", "val"),))


class Corpora(NoteCohorts):
    """Real corpora as hospitals, each with its own types; needs MEDFLARE_DATA. Training notes are the same
    for all seeds. What belongs to one trial or one abstract is resampled together.

    Args:
        sizes: site -> training and test notes of the typical 20 and 12.
        corpus_of: site -> its corpus; several sites of one corpus have different notes.
    """

    unseen: Sequence[str] = ()
    conditions = (CLEAN,)

    def __init__(self, sizes: Mapping[str, tuple[int, int]], corpus_of: Mapping[str, str]) -> None:
        self.sites = tuple(sizes)
        self.sizes, self.corpus_of = dict(sizes), dict(corpus_of)

    def write(self, folder: Path, seed: int, train: int, test: int) -> None:
        if (folder / "complete").is_file():
            return
        for corpus in dict.fromkeys(self.corpus_of.values()):
            found = _read(corpus, _corpus(corpus))
            for part, split, wanted, usual in (("train", "train", train, 20), ("test", "val", test, 12)):
                place = 0 if part == "train" else 1
                present = sorted((n for n in found if n.split == split), key=lambda note: note.note_id)
                drawn = iter(np.random.default_rng(0).permutation(len(present)))
                for site in (name for name, own in self.corpus_of.items() if own == corpus):
                    count = max(1, round(self.sizes[site][place] * wanted / usual))
                    chosen = [present[i] for _, i in zip(range(count), drawn, strict=False)]
                    _write_part(folder / site / part, corpus, chosen)
        (folder / "complete").touch()

    def site(self, folder: Path, name: str, seed: int, condition: str) -> SiteConfig:
        return SiteConfig(name=name, cohort=(self._part(folder, name, "train"),))

    def tests(self, folder: Path) -> dict[str, list[Note]]:
        return {name: _read(name, self._part(folder, name, "test")) for name in self.sites}

    def judge(self, folder: Path) -> SiteConfig | None:
        return None

    def _part(self, folder: Path, name: str, part: str) -> CohortConfig:
        """Return one part; only what its corpus annotates is asked for and scored."""
        annotated = targets(mapping_of(self.corpus_of[name]))
        return CohortConfig(format="notes_jsonl", root=folder / name / part, annotated=annotated)


PARTITIONS: dict[str, NoteCohorts] = {
    "synthetic": Synthetic(),
    "corpora": Corpora(
        {"mtsamples": (10, 8), "maccrobat": (10, 8), "chia": (40, 24), "phee": (160, 100)},
        {name: name for name in ("mtsamples", "maccrobat", "chia", "phee")},
    ),
    "mtsamples": Corpora(
        {"clinic_1": (10, 4), "clinic_2": (10, 4), "clinic_3": (10, 4)},
        dict.fromkeys(("clinic_1", "clinic_2", "clinic_3"), "mtsamples"),
    ),
}
"""corpora: as many entities each. mtsamples: the paper's own notes, dealt to three clinics by document."""


def whole_cohort(folder: Path, split: str, **more: Any) -> CohortConfig:
    """Return a cohort of all records of a folder in one split; notes, unless `format` says otherwise."""
    shares = SplitConfig.model_validate({name: float(name == split) for name in ("train", "val", "test")})
    return CohortConfig(**{"format": "notes_jsonl", "root": folder, "split": shares, **more})


def _read(name: str, cohort: CohortConfig) -> list[Note]:
    return load_cohort(SiteConfig(name=name, cohort=(cohort,))).notes


def _corpus(name: str) -> CohortConfig:
    """Return a corpus as published, with its label map."""
    if name == "mtsamples":
        folder = "ie/mtsamples_brat/train"
        shares = SplitConfig(train=0.75, val=0.25, test=0.0, seed=0)
        return CohortConfig(format="brat", root=public_data(folder), split=shares, label_map=name)
    return CohortConfig(format="notes_jsonl", root=public_data(f"ie/{name}"), label_map=name)


def _write_part(folder: Path, corpus: str, notes: Sequence[Note]) -> None:
    """Write notes in the inventory's types."""
    from medflare.data.notes.note_writers import notes_row

    owned = [replace(note, patient_id=owner(corpus, note.note_id)) for note in notes]
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{json.dumps(notes_row(note) | {'split': folder.name})}\n" for note in owned)
    (folder / "notes.jsonl").write_text(rows, encoding="utf-8")


def owner(corpus: str, note_id: str) -> str:
    """Return the trial of a Chia note, the abstract of a PHEE sentence, otherwise the document."""
    return note_id.rsplit("_", 1)[0] if corpus in ("chia", "phee") else note_id
