# SPDX-License-Identifier: Apache-2.0
"""Quality under patient-level DP-SGD, by epsilon: notes by the embedded model, or real impressions.

Every row begins from the same adapter and takes as many steps of as many patients. Partition `notes`:
entities and modifiers of synthetic notes, one of each patient. `impressions`: the impression of real findings
(Indiana University, one report of each patient) by a model of `medflare models`.
"""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from medflare.core.config import Settings
from medflare.data.settings.site import SiteConfig
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.extraction_cohorts import whole_cohort
from method_comparison.tasks.needed import added_model, added_models, public_data

if TYPE_CHECKING:
    from medflare.core.tensors import State
    from medflare.differential_privacy.settings import PrivacySettings

JOBS = Path(__file__).parents[2] / "jobs"
NOTES, IMPRESSIONS = "notes", "impressions"
JOB_OF = {NOTES: "fed_medlora", IMPRESSIONS: "ddcs_summary"}
SITES = ("site-1", "site-2", "site-3")
TEST_SEED = 777
COMPLETE = "complete"
DELTA = 1e-4
NO_NOISE = 1e-9
"""The smallest multiplier, not zero, which the settings refuse: clipping alone, for the study."""
FEWEST_WORDS = 8
"""Of findings that are used."""


class PrivateSettings(Settings):
    """Sizes and budget, equal for all rows.

    Attributes:
        sites: that train; patients: of each, with one record each.
        batch: patients of a step, on average where they are drawn; steps: of a site in a round.
        clip: largest norm of a patient's gradient.
        test: held-out notes of a site; questions: of them, or held-out findings, that are asked.
        model: of `medflare models add`; None: the embedded decoder.
    """

    sites: int = Field(default=2, ge=1, le=len(SITES))
    patients: int = Field(default=240, ge=1)
    batch: int = Field(default=48, ge=1)
    rounds: int = Field(default=3, ge=1)
    steps: int = Field(default=8, ge=1)
    lr: float = Field(default=1e-2, gt=0)
    clip: float = Field(default=1.0, gt=0)
    test: int = Field(default=6, ge=1)
    questions: int = Field(default=150, ge=1)
    model: str | None = None


class PrivateMethod(Settings):
    """One row.

    Attributes:
        trained: false for the adapter before training.
        private: samples by patient and clips, with as much noise as `epsilon` asks for; None: with none.
    """

    trained: bool = True
    private: bool = False
    epsilon: float | None = Field(default=None, gt=0)


class PrivateTraining(ComparisonTask[PrivateSettings, PrivateMethod]):
    """Fed-MedLoRA or summaries with A frozen, as private training needs it, in every row."""

    name = "private_training"
    settings, method_settings = PrivateSettings, PrivateMethod
    partitions = (NOTES, IMPRESSIONS)
    columns: ClassVar[Mapping[str, Column]] = {
        "loss": Column(title="loss of an answer's token", scale=1.0, digits=4),
        "gained": Column(title="lower than before training by", scale=1.0, digits=4, tested=False),
        "right": Column(title="answers right to the last token, %"),
        "noise": Column(title="noise multiplier", scale=1.0, digits=2, tested=False),
        "seconds": Column(title="processor seconds a step", scale=1.0, digits=2, tested=False),
    }

    def prepare(self, settings: PrivateSettings, partition: str, seed: int, shared: Path) -> None:
        folder = records_of(shared, partition, seed)
        if not (folder / COMPLETE).is_file():
            write = write_notes if partition == NOTES else write_impressions
            write(settings, seed, folder)
            (folder / COMPLETE).touch()

    def inputs(self, settings: PrivateSettings, own: PrivateMethod, partition: str) -> Sequence[Path]:
        return added_models(settings.model)

    def train(self, unit: Unit[PrivateSettings, PrivateMethod]) -> Measured:
        from medflare.aggregation import make_rule
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate

        settings, seed = unit.settings, unit.seed
        dp = privacy(settings, unit.own)
        folder = records_of(unit.shared, unit.partition, seed)
        learners = make_learners(settings, unit.partition, seed, folder, dp)
        start = next(iter(learners.values())).initial_shared()
        # Held-out findings are the same for all sites.
        tested = list(learners.values())[: 1 if unit.partition == IMPRESSIONS else None]
        before, _ = quality(tested, start, settings.questions)
        state, seconds = start, 0.0
        if unit.own.trained:
            began = time.process_time()
            state = federate(
                learners,
                make_rule("freeze_a", {}),
                settings.rounds,
                lambda number: RoundPlan(
                    round=number, rounds=settings.rounds, steps=settings.steps, seed=seed
                ),
                state=start,
            )
            seconds = time.process_time() - began
        loss, right = quality(tested, state, settings.questions)
        values = {"loss": loss, "gained": before - loss, "right": right}
        if unit.own.trained:
            values["seconds"] = seconds / (settings.rounds * settings.steps * len(learners))
        if dp is not None and dp.noise_multiplier > NO_NOISE:
            values["noise"] = dp.noise_multiplier
        return Measured(values=values)


def records_of(shared: Path, partition: str, seed: int) -> Path:
    """Return the folder of a seed's records: train and test, each with a folder for every site."""
    return shared / partition / str(seed)


def privacy(settings: PrivateSettings, own: PrivateMethod) -> PrivacySettings | None:
    """Return the block `dp` of a row; None for ordinary training."""
    from medflare.differential_privacy.accounting import noise_for
    from medflare.differential_privacy.settings import PrivacySettings

    if not own.private:
        return None
    rate = settings.batch / settings.patients
    noise = NO_NOISE
    if own.epsilon is not None:
        noise = noise_for(own.epsilon, DELTA, rate, settings.rounds * settings.steps)
    return PrivacySettings(
        noise_multiplier=noise,
        clip_norm=settings.clip,
        sample_rate=rate,
        delta=DELTA,
        records_per_patient=1,
    )


def make_learners(
    settings: PrivateSettings, partition: str, seed: int, folder: Path, dp: PrivacySettings | None
) -> dict[str, Any]:
    """Return a learner for each site, with its training records and the held-out ones to validate."""
    from medflare.data.settings.site import BackboneConfig
    from medflare.learners.registry import build_learner
    from medflare.recipes.job_reader import read_job

    job = read_job(JOBS / JOB_OF[partition])
    backbone = BackboneConfig()
    if settings.model is not None:
        backbone = BackboneConfig(folder=added_model(settings.model))
    learner_settings: dict[str, Any] = {
        **(job.settings if settings.model is None else {"preset": "instruct"}),
        "eval_batch": 96,
        "sharing": "freeze_a",
        "lora": {"rank": 4, "lora_alpha": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
        "optimiser": {"batch": settings.batch, "lr": settings.lr},
    }
    if dp is not None:
        learner_settings["dp"] = dp.model_dump()
    read = partial(whole_cohort, format="notes_jsonl" if partition == NOTES else "summaries_jsonl")
    return {
        name: build_learner(
            job.method,
            learner_settings,
            SiteConfig(
                name=name,
                cohort=(
                    read(folder / "train" / name, "train"),
                    read(folder / "test" / name, "val"),
                ),
                backbone=backbone,
            ),
            seed,
        )
        for name in SITES[: settings.sites]
    }


def quality(learners: Sequence[Any], state: State, questions: int) -> tuple[float, float]:
    """Return loss and share of right answers on held-out questions, both the mean over learners."""
    losses, right = list[float](), list[float]()
    for learner in learners:
        learner.load_shared(state)
        learner.use()
        # every k-th row, so that all notes are in it
        rows = list(learner.val_rows)[:: max(1, len(learner.val_rows) // questions)][:questions]
        losses.append(learner.mean_loss(rows))
        right.append(right_answers(learner, rows))
    return statistics.fmean(losses), statistics.fmean(right)


def right_answers(learner: Any, rows: Sequence[Any], batch: int = 32) -> float:
    """Return the share of rows whose every answer token is the likeliest after those before it, so that
    greedy decoding writes the right answer."""
    import torch

    from medflare.models.backbone import autocast
    from medflare.models.padding import batches_by_length, pad_rows

    model, right = learner.model, 0
    decoder, output = model.backbone.model.get_decoder(), model.backbone.model.get_output_embeddings()
    with torch.no_grad(), model.evaluating(), autocast(model.backbone.precision, str(model.device)):
        for part in batches_by_length([row.ids for row in rows], batch):
            chosen = [rows[i] for i in part]
            ids, _ = pad_rows([row.ids for row in chosen], model.padding, model.device, left=False)
            states = decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (N, T, H)
            for row, hidden in zip(chosen, states, strict=True):
                best = output(hidden[row.start - 1 : len(row.ids) - 1]).argmax(-1)  # (answer's tokens,)
                right += best.tolist() == list(row.ids[row.start :])
    return right / len(rows)


def write_notes(settings: PrivateSettings, seed: int, folder: Path) -> None:
    """Write a seed's training notes, one of each patient, and the test notes, alike for all seeds."""
    from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

    for house in NOTE_HOSPITALS[: settings.sites]:
        for part, number, count in (("test", TEST_SEED, settings.test), ("train", seed, settings.patients)):
            write_notes_hospital(house.with_seed(number), folder / part / house.name, count, "jsonl")


def write_impressions(settings: PrivateSettings, seed: int, folder: Path) -> None:
    """Write a seed's training findings, others at each site, and the held-out ones, alike for all seeds."""
    reports = public_data("iu_reports") / "reports_dev.jsonl"
    rows = [json.loads(line) for line in reports.read_text(encoding="utf-8").splitlines()]
    usable = [
        row for row in rows if row["impression"] and len((row["findings"] or "").split()) >= FEWEST_WORDS
    ]
    random.Random(0).shuffle(usable)
    held_out, others = usable[: settings.questions], usable[settings.questions :]
    random.Random(seed).shuffle(others)
    for number, name in enumerate(SITES[: settings.sites]):
        own = others[number :: settings.sites][: settings.patients]
        _write_summaries(folder / "train" / name, own)
        _write_summaries(folder / "test" / name, held_out)


def _write_summaries(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            text = {"findings": row["findings"], "impression": row["impression"]}
            file.write(json.dumps({"id": row["uid"], "patient_id": row["uid"], **text}) + "\n")
