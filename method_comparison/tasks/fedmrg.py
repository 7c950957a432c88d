# SPDX-License-Identifier: Apache-2.0
"""FedMRG, its baselines and ablations on the synthetic hospitals: radiographs to reports.

Every unit trains with the settings of jobs/fedmrg through `in_process.federate` (the FLARE run equals it, see
tests/federation) and writes its predictions; scores are made from these alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.core.presets import merge_settings
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run
from method_comparison.result import Measured
from method_comparison.tasks.base import Column, ComparisonTask, Unit
from method_comparison.tasks.prediction_scores import averaged, patients, scored_reports

JOB = Path(__file__).parents[2] / "jobs" / "fedmrg"
SITES, UNSEEN = ("site-1", "site-2", "site-3"), "hospital-4"
GENERIC, PERSONALISED = "predictions_generic.jsonl", "predictions_personalised.jsonl"
OWN_PLACES = {
    "participants, personalised as trained (γ_mix = 0, MRG-8)": "@gamma-0",
    "validation, γ_mix = 0.5": "@val",
    "validation, γ_mix = 0": "@val-gamma-0",
}
"""Places of a personalised adapter alone -> the ending of their folders."""


class FedMRGComparison(Settings):
    """Budget and sizes, equal for all methods.

    Attributes:
        patients: of each hospital; 0: its own number. unseen: studies of the hospital that took no part.
        steps: mini-batches of a site in a round.
    """

    patients: int = Field(default=0, ge=0)
    rounds: int = Field(default=5, ge=1)
    steps: int = Field(default=30, ge=1)
    unseen: int = Field(default=300, ge=1)


class FedMRGMethod(Settings):
    """A variant of the learner, who trains with whom, and changes to the learner's settings."""

    variant: str = "fedmrg"
    mode: Literal["federated", "local", "pooled"] = "federated"
    settings: dict[str, Any] = Field(default_factory=dict)


class FedMRG(ComparisonTask[FedMRGComparison, FedMRGMethod]):
    """Places: own tests of the participants, with their own and the shared adapter, and the unseen site."""

    name = "fedmrg"
    settings, method_settings = FedMRGComparison, FedMRGMethod
    case_columns: ClassVar[Mapping[str, Column]] = {
        "bleu_4": Column(title="BLEU-4"),
        "rouge_l": Column(title="ROUGE-L"),
        "cider": Column(title="CIDEr"),
        "label_f1": Column(title="label F1, by study"),
        "label_micro_f1": Column(title="label micro F1"),
    }

    def prepare(self, settings: FedMRGComparison, partition: str, seed: int, shared: Path) -> None:
        """Write the hospitals of the demo as `medflare cohort make` does."""
        from medflare.cli.main import app

        if not (shared / "cohorts" / "site.yaml").is_file():
            command = ["cohort", "make", str(shared / "cohorts"), "--patients", str(settings.patients)]
            app(command, standalone_mode=False)

    def train(self, unit: Unit[FedMRGComparison, FedMRGMethod]) -> Measured:
        from medflare.aggregation.weighted_mean import WeightedMean
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate
        from medflare.learners.fedmrg.learner import build
        from medflare.recipes.job_reader import read_job

        given, sites = unit.settings, load_site_file(unit.shared / "cohorts" / "site.yaml")
        settings = merge_settings(read_job(JOB).settings, unit.own.settings) | {"variant": unit.own.variant}

        def learner(site: SiteConfig) -> Any:
            return build(settings, site, unit.seed, unit.shared / "cache" / site.name)

        steps = given.steps * (len(SITES) if unit.own.mode == "pooled" else 1)
        for owner, members in groups(unit.own.mode, sites).items():
            learners = {name: learner(site) for name, site in members.items()}
            state = federate(
                learners,
                WeightedMean(),
                given.rounds,
                lambda r: RoundPlan(round=r, rounds=given.rounds, steps=steps, seed=unit.seed),
            )
            for site in (*([owner] if owner else SITES), UNSEEN):
                own = learners.get(site) or learner(sites[site])
                own.load_shared(state)
                place = f"{owner}-{site}" if owner and site == UNSEEN else site
                predict_all(own, site, unit.folder / place, given.unseen)
        return Measured()

    def places(self, settings: FedMRGComparison, partition: str, folder: Path) -> dict[str, Run]:
        columns = tuple(self.case_columns)
        generic = [folder / site / GENERIC for site in SITES]
        own = [folder / site / PERSONALISED for site in SITES]
        found = {
            "participants, personalised adapter if there is one": [
                mine if mine.is_file() else shared for mine, shared in zip(own, generic, strict=True)
            ],
            "participants, generic adapter": generic,
        }
        for place, ending in OWN_PLACES.items():
            files = [folder / f"{site}{ending}" / PERSONALISED for site in SITES]
            found |= {place: files} if all(file.is_file() for file in files) else {}
        runs = {
            place: scored_reports([item for file in files for item in read_predictions(file)], columns)
            for place, files in found.items()
        }
        models = [read_predictions(file) for file in sorted(folder.glob(f"*{UNSEEN}/{GENERIC}"))]
        each = averaged([dict(scored_reports(model, columns).scores) for model in models])
        return runs | {"unseen hospital, mean over local models": Run(each, patients(models[0]))}


def groups(mode: str, sites: Mapping[str, SiteConfig]) -> dict[str, dict[str, SiteConfig]]:
    """Return owner of a model -> who trains it; "" where there is one model for all."""
    if mode == "local":
        return {name: {name: sites[name]} for name in SITES}
    if mode == "pooled":
        cohorts = tuple(cohort for name in SITES for cohort in sites[name].cohort)
        pooled = sites[SITES[0]].model_copy(update={"name": "pooled", "cohort": cohorts})
        return {"": {"pooled": pooled}}
    return {"": {name: sites[name] for name in SITES}}


def predict_all(learner: Any, site: str, folder: Path, most: int) -> None:
    """Write predictions of the generic adapter and, where there is one of this site, the personalised one.

    The latter also as it was trained (γ_mix = 0), and both on the validation split, so that γ can be chosen
    without looking at test studies.
    """
    if site == UNSEEN:
        rows = [row for split in ("test", "val", "train") for row in learner.samples.split_indices(split)]
        predict_rows(learner, site, "generic", rows[:most], folder)
        return
    test, val = learner.samples.split_indices("test"), learner.samples.split_indices("val")
    predict_rows(learner, site, "generic", test, folder)
    if not learner.settings.dual:
        return
    predict_rows(learner, site, "personalised", test, folder)
    predict_rows(learner, site, "personalised", val, folder.with_name(f"{site}@val"))
    learner.settings = learner.settings.model_copy(update={"gamma_mix": 0.0})
    predict_rows(learner, site, "personalised", test, folder.with_name(f"{site}@gamma-0"))
    predict_rows(learner, site, "personalised", val, folder.with_name(f"{site}@val-gamma-0"))


def predict_rows(learner: Any, site: str, kind: Any, rows: list[int], folder: Path) -> None:
    """Write the predictions of one adapter for these rows."""
    from medflare.tasks.reports.evaluation import ScoredSite, predict

    (learner.use_personalised if kind == "personalised" else learner.use_generic)()
    scored = ScoredSite(site, "unseen" if site == UNSEEN else "participant", kind, folder)
    predict(learner.model, learner.samples, rows, scored, learner.settings.decoding)
