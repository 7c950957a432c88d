# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA(+) and its baselines: entities and modifiers of notes.

Every unit trains through `in_process.federate` with the settings of jobs/fed_medlora (the FLARE run equals
it, see tests/federation) and writes its predictions; scores are made from these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, ShownRow, Unit
from method_comparison.tasks.extraction_cohorts import PARTITIONS
from method_comparison.tasks.extraction_scores import SCORES, matrix, own_score, score
from method_comparison.tasks.extraction_training import (
    Codec,
    grouped,
    make_plans,
    train_and_test,
    zero_shot,
)
from method_comparison.tasks.needed import added_models

JOB = Path(__file__).parents[2] / "jobs" / "fed_medlora"
ENCODER_EPOCHS = 5
"""Passes of the encoder for one of the decoder: the paper gives it 10 epochs where the decoder has 2."""


class ExtractionSettings(Settings):
    """Budget, sizes and model, equal for all methods; single and centralised sites get the same passes.

    Attributes:
        rounds: of the federation; epochs: passes of a site in a round.
        train, test: notes of a site; of corpora in proportion to their usual sizes.
        model: of `medflare models add`; None: the embedded decoder.
        preset: of the job; learner: further changes to its settings.
    """

    rounds: int = Field(default=3, ge=1)
    epochs: int = Field(default=1, ge=1)
    train: int = Field(default=20, ge=1)
    test: int = Field(default=12, ge=1)
    model: str | None = None
    preset: Literal["paper", "instruct"] | None = None
    learner: dict[str, Any] = Field(default_factory=dict)


class ExtractionMethod(Settings):
    """One row.

    Attributes:
        mode: federated; single (each site alone); pooled (centralised); none (the model as it is).
        condition: of the training notes, see `extraction_cohorts`.
        up, down: how updates and states travel.
        settings: changes to the learner's settings.
        rounds: in place of the comparison's.
        exchanges: of updates in each round's passes, so that sites train less between two.
        local_passes: after the last round each site trains alone so often and is tested with its own model.
    """

    mode: Literal["federated", "single", "pooled", "none"] = "federated"
    condition: Literal["clean", "corrupted", "uneven"] = "clean"
    rule: str = "weighted_mean"
    rule_settings: dict[str, Any] = Field(default_factory=dict)
    learner: Literal["fed_medlora", "token_classification"] = "fed_medlora"
    settings: dict[str, Any] = Field(default_factory=dict)
    up: str = "float32"
    down: str = "float32"
    rounds: int | None = Field(default=None, ge=1)
    exchanges: int = Field(default=1, ge=1, exclude_if=lambda value: value == 1)
    local_passes: int = Field(default=0, ge=0)


class Extraction(ComparisonTask[ExtractionSettings, ExtractionMethod]):
    """Places: the participants pooled, each site, and sites that took no part."""

    name = "extraction"
    settings, method_settings = ExtractionSettings, ExtractionMethod
    partitions = tuple(PARTITIONS)
    columns: ClassVar[Mapping[str, Column]] = {
        "bytes_a_round": Column(title="kB of a site in a round, both ways", scale=1e-3, tested=False)
    }
    case_columns: ClassVar[Mapping[str, Column]] = {
        name: Column(title=title, tested=name != "parse_failure_rate") for name, title in SCORES.items()
    }

    def check(self, settings: ExtractionSettings, own: ExtractionMethod) -> None:
        from medflare.aggregation import make_rule
        from medflare.learners.registry import get_method

        make_rule(own.rule, own.rule_settings)
        get_method(own.learner).resolve(learner_settings(settings, own))

    def prepare(self, settings: ExtractionSettings, partition: str, seed: int, shared: Path) -> None:
        PARTITIONS[partition].write(shared / partition, seed, settings.train, settings.test)

    def inputs(self, settings: ExtractionSettings, own: ExtractionMethod, partition: str) -> Sequence[Path]:
        return added_models(settings.model)

    def train(self, unit: Unit[ExtractionSettings, ExtractionMethod]) -> Measured:
        cohorts, own, folder = PARTITIONS[unit.partition], unit.own, unit.shared / unit.partition
        if own.condition not in cohorts.conditions:
            raise ConfigError(f"{unit.method}: there are no {own.condition} notes of {unit.partition}.")
        settings, tests = learner_settings(unit.settings, own), cohorts.tests(folder)
        if own.mode == "none":
            zero_shot(settings, tests, unit.folder)
            return Measured()
        sites = {
            s: with_model(cohorts.site(folder, s, unit.seed, own.condition), unit) for s in cohorts.sites
        }
        judge, sent = cohorts.judge(folder), list[int]()
        rounds = own.rounds or unit.settings.rounds
        for owner, members in grouped(own.mode, sites).items():
            place = unit.folder / owner if owner else unit.folder
            server = with_model(judge, unit) if judge is not None else None
            codec = Codec(own.up, own.down)
            plans = make_plans(rounds, own.exchanges, unit.settings.epochs, unit.seed)
            kept = unit.progress.checkpoint(owner)
            sent += train_and_test(own, settings, members, server, plans, codec, tests, place, kept)
        if own.mode != "federated":
            return Measured()
        return Measured(values={"bytes_a_round": sum(sent) / len(sent) / rounds}, bytes=sum(sent))

    def places(self, settings: ExtractionSettings, partition: str, folder: Path) -> dict[str, Run]:
        cohorts, columns = PARTITIONS[partition], tuple(self.case_columns)
        places = {"participants, pooled": cohorts.sites}
        places |= {f"{name}, which took no part": (name,) for name in cohorts.unseen}
        places |= {name: (name,) for name in cohorts.sites}
        found = {place: score(folder, names, columns) for place, names in places.items()}
        if single := own_score(folder, cohorts.sites, columns):
            found["single sites, each on its own notes (ML-13)"] = single
        return {place: run for place, run in found.items() if run is not None}

    def notes(self, partition: str, rows: Mapping[str, ShownRow[ExtractionSettings]]) -> Sequence[str]:
        shown = []
        for row in rows.values():
            table = matrix(list(row.folders.values()), PARTITIONS[partition].sites)
            if table:
                shown += [
                    f"**{row.title}: trained at x tested at, NER strict / RE strict, gold heads**",
                    table,
                ]
        return shown


def learner_settings(settings: ExtractionSettings, own: ExtractionMethod) -> dict[str, Any]:
    """Return the committed job's settings, or the encoder's own, with this budget and a method's changes."""
    from medflare.core.presets import merge_settings
    from medflare.recipes.job_reader import read_job

    if own.learner == "token_classification":
        return {"local_epochs": settings.epochs * ENCODER_EPOCHS, **own.settings}
    job = {"preset": settings.preset} if settings.preset else dict(read_job(JOB).settings)
    budget = {"local_epochs": settings.epochs, "eval_limit": 0, "eval_batch": 96}
    return merge_settings(merge_settings(job | budget, settings.learner), own.settings)


def with_model(site: Any, unit: Unit[ExtractionSettings, ExtractionMethod]) -> Any:
    """Return the site with the comparison's model as its backbone."""
    from medflare.data.settings.site import BackboneConfig

    if unit.settings.model is None:
        return site
    return site.model_copy(update={"backbone": BackboneConfig.model_validate({"name": unit.settings.model})})
