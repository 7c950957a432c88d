# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA with a pretrained model on real notes: the paper's own training notes (MTSamples, BRAT).

Four fifths of the notes train at three sites, one fifth tests; a seed decides which site has which notes, the
adapter's first values and the order of the data. Notes of another corpus (MACCROBAT) stand for a new site.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from medflare.core.config import Settings
from medflare.core.inventory import ENTITY_TYPES
from medflare.data.load import load_cohort
from medflare.data.notes.note_writers import notes_row
from medflare.data.records import Note
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.label_maps import mapping_of, targets
from medflare.data.settings.site import BackboneConfig, SiteConfig
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.extraction_training import make_plans
from method_comparison.tasks.kept_run import keep_run
from method_comparison.tasks.needed import NotHereError, added_model, public_data
from method_comparison.tasks.note_counts import scores_by_note, was_tested, write_documents

SITES = ("site-1", "site-2", "site-3")
CORRUPTED = "site-3"
ALL = "all_notes"
FEW = "few_notes"
ENTITIES = "entities"
"""Partitions: all notes with both tasks, few notes with both, and all notes with entities alone."""
RATE = 5e-4
"""Of rows that name none. It is no part of their results' settings, so it stays what it was for the first."""
METRICS = {
    "ner_strict_f1": "NER strict",
    "ner_lenient_f1": "NER lenient",
    "re_gold_strict_f1": "RE strict",
    "re_gold_lenient_f1": "RE lenient",
    "re_e2e_strict_f1": "RE end to end, strict",
    "re_e2e_lenient_f1": "RE end to end, lenient",
    "parse_failure_rate": "unreadable",
}
"""Metric -> its column."""
PLACES = {"test": "test notes", "new": "the new site"}
"""Folder of tested notes -> the title of its table."""


class RealNotes(Settings):
    """What every method of a comparison has.

    Attributes:
        model: name among `medflare models`.
        encoder: folder of the encoder's weights; where it lies decides no number and is no part of a result.
        train, test, new_site: most notes of all sites together, of the test, and of the new site.
        weighing: of the training notes, those by which Fed-MedLoRA+ weighs updates (D_v).
        few: training notes of all sites together in the partition `few_notes`.
        validation: training notes that train nobody and test in place of the test notes, where a setting of
            the method is to be chosen; 0: the test notes.
    """

    model: str = "smollm2"
    encoder: Path | None = Field(default=None, exclude=True)
    train: int = Field(default=77, ge=3)
    test: int = Field(default=19, ge=1)
    new_site: int = Field(default=10, ge=0)
    weighing: int = Field(default=3, ge=1)
    few: int = Field(default=20, ge=3)
    rounds: int = Field(default=3, ge=1)
    epochs: int = Field(default=1, ge=1)
    encoder_epochs: int = Field(default=10, ge=1)
    decoding: Literal["free", "copy"] = "copy"
    threads: int = Field(default=1, ge=1)
    # Left out where it changes nothing, so that results from before it are those of the same settings.
    validation: int = Field(default=0, ge=0, exclude_if=lambda value: value == 0)


class NotesMethod(Settings):
    """A row of the table.

    Attributes:
        learner: name of a method of medflare.
        sites: that train together; one of them is a single site; none is zero-shot.
        pooled: the notes of all sites as those of one.
        corrupted: most labels of one site's entities are wrong.
        exchanges: of updates in each round's passes over the notes, so that sites train less between two.
        precision: of the frozen model.
        lr: of the language model; None for RATE.
        cosine_over: what the rate falls over, each exchange or the run.
    """

    learner: Literal["fed_medlora", "token_classification"] = "fed_medlora"
    sites: tuple[str, ...] = SITES
    pooled: bool = False
    corrupted: bool = False
    rule: str = "weighted_mean"
    rule_settings: dict[str, Any] = Field(default_factory=dict)
    # Left out where it changes nothing, so that results from before it are those of the same settings.
    exchanges: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)
    precision: Literal["auto", "nf4"] = Field(default="auto", exclude_if=lambda value: value == "auto")
    lr: float | None = Field(default=None, gt=0, exclude_if=lambda value: value is None)
    cosine_over: Literal["round", "run"] = Field(default="round", exclude_if=lambda value: value == "round")


class NoteExtraction(ComparisonTask[RealNotes, NotesMethod]):
    """Trains through `in_process.federate` and tests on notes that nobody trained on."""

    name = "real_notes"
    settings, method_settings = RealNotes, NotesMethod
    partitions = (ALL, FEW, ENTITIES)
    case_columns: ClassVar[Mapping[str, Column]] = {
        name: Column(title=title, tested=name != "parse_failure_rate") for name, title in METRICS.items()
    }
    columns: ClassVar[Mapping[str, Column]] = {
        "train_seconds": Column(title="seconds to train", scale=1.0, digits=0, tested=False),
        "test_seconds": Column(title="seconds to test", scale=1.0, digits=0, tested=False),
    }
    curve_axes: ClassVar[Mapping[str, str]] = {"loss": "rounds"}

    def prepare(self, settings: RealNotes, partition: str, seed: int, shared: Path) -> None:
        """Write the notes of every site, the tests and the corrupted site, once for a partition and seed."""
        folder = shared / f"{partition}-{seed}"
        if folder.is_dir():
            return
        rest, tests = split_notes(mtsamples(), settings.test)
        drawn = [rest[i] for i in np.random.default_rng(seed).permutation(len(rest))]
        weighing, rest = drawn[: settings.weighing], drawn[settings.weighing :]
        if settings.validation:
            tests, rest = rest[: settings.validation], rest[settings.validation :]
        rest = rest[: settings.few if partition == FEW else settings.train]
        parts = {site: rest[number :: len(SITES)] for number, site in enumerate(SITES)}
        parts["corrupted"] = [corrupted(note, seed) for note in parts[CORRUPTED]]
        scratch = shared / f"{partition}-{seed}.partial"
        for name, notes in parts.items():
            write_notes(scratch / name, notes, "train")
        write_notes(scratch / "weighing", weighing, "val")
        write_notes(scratch / "test", tests, "test")
        if settings.new_site:
            write_notes(scratch / "new", maccrobat()[: settings.new_site], "test")
        scratch.rename(folder)

    def inputs(self, settings: RealNotes, own: NotesMethod, partition: str) -> Sequence[Path]:
        return [model_of(settings, own)]

    def train(self, unit: Unit[RealNotes, NotesMethod]) -> Measured:
        import torch

        torch.set_num_threads(unit.settings.threads)
        learner, curve, sent = train_sites(unit)
        trained = unit.progress.seconds()
        scores = test_learner(learner, unit)
        seconds = {"train_seconds": trained, "test_seconds": unit.progress.seconds() - trained}
        return Measured(values=scores | seconds, curves={"loss": curve} if curve else {}, bytes=sent)

    def places(self, settings: RealNotes, partition: str, folder: Path) -> dict[str, Run]:
        return {
            title: scores_by_note(folder / f"{place}.jsonl", tuple(METRICS))
            for place, title in PLACES.items()
            if was_tested(folder / f"{place}.jsonl")
        }


# ---- notes -----------------------------------------------------------------------------------------------


def mtsamples() -> list[Note]:
    """Return the annotated notes of MTSamples, in order of name."""
    cohort = CohortConfig(format="brat", root=public_data("ie/mtsamples_brat/train"), label_map="mtsamples")
    return sorted(load_cohort(SiteConfig(name="x", cohort=(cohort,))).notes, key=lambda note: note.note_id)


def maccrobat() -> list[Note]:
    """Return the development notes of MACCROBAT, mapped to the inventory, in order of name."""
    cohort = CohortConfig(format="notes_jsonl", root=public_data("ie/maccrobat"), label_map="maccrobat")
    notes = [
        note for note in load_cohort(SiteConfig(name="x", cohort=(cohort,))).notes if note.split == "val"
    ]
    return sorted(notes, key=lambda note: note.note_id)


def split_notes(notes: Sequence[Note], tests: int) -> tuple[list[Note], list[Note]]:
    """Return training and test notes: a fifth of all, of these at most so many, the same for every seed.

    A smaller test is the beginning of the larger one, and its rest trains nobody.
    """
    order = np.random.default_rng(0).permutation(len(notes))
    fifth = len(notes) // 5
    return [notes[i] for i in order[fifth:]], [notes[i] for i in order[:fifth]][:tests]


def corrupted(note: Note, seed: int, share: float = 0.7) -> Note:
    """Return a note in which so many entities have another type: a site that misunderstood the guideline."""
    chance = np.random.default_rng([seed, *note.note_id.encode()])
    entities = []
    for entity in note.entities:
        others = [label for label in ENTITY_TYPES if label != entity.label]
        wrong = entity.label in ENTITY_TYPES and chance.random() < share
        entities.append(replace(entity, label=str(chance.choice(others))) if wrong else entity)
    return replace(note, entities=tuple(entities))


def write_notes(folder: Path, notes: Sequence[Note], split: str) -> None:
    """Write notes.jsonl with all notes in one split."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{json.dumps(notes_row(note) | {'split': split})}\n" for note in notes)
    (folder / "notes.jsonl").write_text(rows, encoding="utf-8")


# ---- training and tests ----------------------------------------------------------------------------------


def model_of(settings: RealNotes, own: NotesMethod) -> Path:
    """Return the folder of the model that a method trains.

    Raises:
        NotHereError: there is none of this name, or no folder of an encoder was given.
    """
    if own.learner != "token_classification":
        return added_model(settings.model)
    if settings.encoder is None:
        raise NotHereError("the row needs an encoder: --set encoder=FOLDER, of all-MiniLM-L6-v2.")
    return settings.encoder


def _site(unit: Unit[RealNotes, NotesMethod], name: str, *folders: str, **more: Any) -> SiteConfig:
    """Return a site that reads some of the shared folders, with the model of the method."""
    base, settings = unit.shared / f"{unit.partition}-{unit.seed}", unit.settings
    encoder = unit.own.learner == "token_classification"
    if unit.partition == ENTITIES:
        more = {"tasks": ("ner",)} | more
    cohorts = tuple(CohortConfig(format="notes_jsonl", root=base / part, **more) for part in folders)
    precision = "fp32" if encoder else unit.own.precision
    backbone = BackboneConfig(folder=model_of(settings, unit.own), precision=precision)
    return SiteConfig(name=name, cohort=cohorts, backbone=backbone, threads=settings.threads)


def _learner(unit: Unit[RealNotes, NotesMethod], site: SiteConfig) -> Any:
    from medflare.learners.registry import build_learner

    settings = unit.settings
    if unit.own.learner == "token_classification":
        chosen: dict[str, Any] = {"local_epochs": settings.encoder_epochs}
    else:
        chosen = {"preset": "instruct", "local_epochs": settings.epochs, "decoding": settings.decoding}
        chosen["optimiser"] = {"lr": unit.own.lr or RATE, "cosine_over": unit.own.cosine_over}
    return build_learner(unit.own.learner, chosen, site, unit.seed)


def train_sites(unit: Unit[RealNotes, NotesMethod]) -> tuple[Any, list[tuple[float, float]], int]:
    """Return a learner with the final state, the mean training loss by round, and the bytes both ways.

    The unit's folder becomes a run.
    """
    from medflare.aggregation import make_rule
    from medflare.in_process.loop import federate

    own, rounds = unit.own, unit.settings.rounds * unit.own.exchanges
    if not own.sites:
        return _learner(unit, _site(unit, "zero-shot", "weighing")), [], 0
    folders = {s: "corrupted" if own.corrupted and s == CORRUPTED else s for s in own.sites}
    if own.pooled:
        sites = {"pooled": _site(unit, "pooled", *folders.values())}
    else:
        sites = {name: _site(unit, name, folder) for name, folder in folders.items()}
    learners = {name: _learner(unit, site) for name, site in sites.items()}
    rule = make_rule(own.rule, own.rule_settings)
    judge = _learner(unit, _site(unit, "server", "weighing")) if own.rule == "influence" else None
    checkpoint = unit.progress.checkpoint()
    curve = checkpoint.noted

    def record(number: int, state: Any, updates: Mapping[str, Any]) -> None:
        curve.append((number + 1, float(np.mean([update.metrics["loss"] for update in updates.values()]))))
        print(unit.method, unit.seed, curve[-1], {n: u.metrics for n, u in updates.items()}, flush=True)

    plans = make_plans(unit.settings.rounds, own.exchanges, unit.settings.epochs, unit.seed)
    state = federate(learners, rule, rounds, plans.__getitem__, record, judge=judge, checkpoint=checkpoint)
    keep_run(unit, own.learner, learners, state)
    tester = learners[sorted(learners)[0]]
    tester.load_shared({name: value.clone() for name, value in state.items()})
    size = sum(value.numel() * value.element_size() for value in state.values())
    return tester, curve, 0 if own.pooled else 2 * size * rounds * len(learners)


def test_learner(learner: Any, unit: Unit[RealNotes, NotesMethod]) -> dict[str, float]:
    """Return the scores of a learner on the pooled test notes and on the new site; write its predictions."""
    learner.use()
    base = unit.shared / f"{unit.partition}-{unit.seed}"
    scores: dict[str, float] = {}
    for place in ("test", "new"):
        if not (base / place).is_dir():
            continue
        more = {"annotated": targets(mapping_of("maccrobat")), "tasks": ("ner",)} if place == "new" else {}
        notes = load_cohort(_site(unit, place, place, **more)).notes
        documents = learner.predictor.documents(notes, place, "generic")
        write_documents(unit.folder / f"{place}.jsonl", documents, tuple(METRICS))
        found = quick_extraction_metrics(documents)
        if place == "test":
            scores |= {name: found[name] for name in METRICS if name in found}
        else:
            scores |= {f"new_{name}": found[name] for name in ("ner_strict_f1", "ner_lenient_f1")}
    return scores
