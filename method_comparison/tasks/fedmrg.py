# SPDX-License-Identifier: Apache-2.0
"""FedMRG, its baselines and ablations on the synthetic hospitals: radiographs to reports.

Every unit trains with the settings of jobs/fedmrg through `in_process.federate` (the FLARE run equals it, see
tests/federation) and writes its predictions; scores are made from these alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.core.presets import merge_settings
from medflare.data.settings.site import BackboneConfig, SiteConfig, load_site_file
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.needed import added_model, added_models, real_radiographs
from method_comparison.tasks.prediction_scores import averaged, patients, scored_reports
from method_comparison.tasks.untrained_reports import Untrained, trains_nothing, write_untrained

JOB = Path(__file__).parents[2] / "jobs" / "fedmrg"
SITES, UNSEEN = ("site-1", "site-2", "site-3"), "hospital-4"
REAL = JOB / "sites" / "cxr_multisite.yaml"
PARTICIPANTS = {"all": SITES, "clusters": SITES, "real": ("radiopaedia", "eurorad", "journals")}
"""Partition -> who trains; "clusters": the patients of the three hospitals dealt by likeness of findings;
"real": three publishers, of which none is left out as an unseen hospital."""
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
    """A variant of the learner, who trains with whom, and changes to the learner's settings.

    Attributes:
        mode: who trains with whom, or what a row that trains nothing knows of a test study.
        training: studies of each site at most; None for all of them.
        rounds, steps: in place of the comparison's.
        model: name among `medflare models`, in place of the embedded decoder, with the preset `instruct`.
    """

    variant: str = "fedmrg"
    mode: Literal["federated", "local", "pooled", Untrained] = "federated"
    training: int | None = Field(default=None, ge=1)
    rounds: int | None = Field(default=None, ge=1)
    settings: dict[str, Any] = Field(default_factory=dict)
    # Left out where there is none, so that results from before them are those of the same settings.
    steps: int | None = Field(default=None, ge=1, exclude_if=lambda value: value is None)
    model: str | None = Field(default=None, exclude_if=lambda value: value is None)


class FedMRG(ComparisonTask[FedMRGComparison, FedMRGMethod]):
    """Places: own tests of the participants, with their own and the shared adapter, and the unseen site."""

    name = "fedmrg"
    settings, method_settings = FedMRGComparison, FedMRGMethod
    partitions = tuple(PARTICIPANTS)
    case_columns: ClassVar[Mapping[str, Column]] = {
        "bleu_4": Column(title="BLEU-4"),
        "rouge_l": Column(title="ROUGE-L"),
        "cider": Column(title="CIDEr"),
        "label_f1": Column(title="label F1, by study"),
        "label_micro_f1": Column(title="label micro F1"),
        "label_f1_other_patients": Column(title="label F1, other patients (control)", tested=False),
    }

    def check(self, settings: FedMRGComparison, own: FedMRGMethod) -> None:
        from medflare.learners.fedmrg.settings import METHOD

        METHOD.resolve(learner_settings(own))

    def prepare(self, settings: FedMRGComparison, partition: str, seed: int, shared: Path) -> None:
        """Write the hospitals of the demo, as `medflare cohort make`, and deal them anew for "clusters"."""
        from medflare.cli.main import app

        if partition == "real":
            return
        if not (shared / "cohorts" / "site.yaml").is_file():
            command = ["cohort", "make", str(shared / "cohorts"), "--patients", str(settings.patients)]
            app(command, standalone_mode=False)
        if partition == "clusters" and not (shared / "clusters" / "site.yaml").is_file():
            pooled = shared / "pooled.yaml"
            parts = "".join(f"      - {{format: manifest, root: cohorts/{name}}}\n" for name in SITES)
            pooled.write_text(f"sites:\n  pooled:\n    cohort:\n{parts}", encoding="utf-8")
            command = ["cohort", "partition", str(pooled), str(shared / "clusters")]
            app([*command, "--method", "report_clusters", "--no-scanners"], standalone_mode=False)

    def inputs(self, settings: FedMRGComparison, own: FedMRGMethod, partition: str) -> Sequence[Path]:
        return [*added_models(own.model), *real_radiographs(partition)]

    def train(self, unit: Unit[FedMRGComparison, FedMRGMethod]) -> Measured:
        from medflare.aggregation.weighted_mean import WeightedMean
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate
        from medflare.learners.fedmrg.learner import build

        given, own = unit.settings, unit.own
        sites = read_sites(unit.shared, unit.partition, own.model)
        if trains_nothing(own.mode):
            for name, site in sites.items():
                path = unit.folder / name / GENERIC
                write_untrained(site, own.mode, path, given.unseen, unit.shared / "cohorts")
            return Measured()
        settings = learner_settings(own)

        def learner(site: SiteConfig) -> Any:
            made = build(settings, site, unit.seed, unit.shared / "cache" / unit.partition / site.name)
            return limited(made, own.training)

        members_of = groups(own.mode, {name: sites[name] for name in PARTICIPANTS[unit.partition]})
        steps = (own.steps or given.steps) * (len(sites) - (UNSEEN in sites) if own.mode == "pooled" else 1)
        rounds = own.rounds or given.rounds
        for owner, members in members_of.items():
            learners = {name: learner(site) for name, site in members.items()}
            state = federate(
                learners,
                WeightedMean(),
                rounds,
                lambda r: RoundPlan(round=r, rounds=rounds, steps=steps, seed=unit.seed),
                checkpoint=unit.progress.checkpoint(owner),
            )
            for name in [owner] if owner else PARTICIPANTS[unit.partition]:
                tester = learners.get(name) or learner(sites[name])
                self._predict(tester, state, name, unit.folder / name, given)
            if UNSEEN in sites:
                place = unit.folder / (f"{owner}-{UNSEEN}" if owner else UNSEEN)
                self._predict(learner(sites[UNSEEN]), state, UNSEEN, place, given)
        return Measured()

    def _predict(self, learner: Any, state: Any, site: str, folder: Path, given: FedMRGComparison) -> None:
        learner.load_shared(state)
        predict_all(learner, site, folder, given.unseen)

    def places(self, settings: FedMRGComparison, partition: str, folder: Path) -> dict[str, Run]:
        columns, sites = tuple(self.case_columns), PARTICIPANTS[partition]
        generic = [folder / site / GENERIC for site in sites]
        own = [folder / site / PERSONALISED for site in sites]
        if not all(file.is_file() for file in generic):
            return {}
        found = {
            "participants, personalised adapter if there is one": [
                mine if mine.is_file() else shared for mine, shared in zip(own, generic, strict=True)
            ],
            "participants, generic adapter": generic,
        }
        for place, ending in OWN_PLACES.items():
            files = [folder / f"{site}{ending}" / PERSONALISED for site in sites]
            found |= {place: files} if all(file.is_file() for file in files) else {}
        runs = {
            place: scored_reports([item for file in files for item in read_predictions(file)], columns)
            for place, files in found.items()
        }
        models = [read_predictions(file) for file in sorted(folder.glob(f"*{UNSEEN}/{GENERIC}"))]
        if not models:
            return runs
        each = averaged([dict(scored_reports(model, columns).scores) for model in models])
        return runs | {"unseen hospital, mean over local models": Run(each, patients(models[0]))}


def limited(learner: Any, studies: int | None) -> Any:
    """Return a learner that trains on its first studies alone; None for all of them."""
    learner.train_rows = learner.train_rows[:studies]
    learner.order.size = len(learner.train_rows)
    return learner


def learner_settings(own: FedMRGMethod) -> dict[str, Any]:
    """Return the committed job's settings with a method's changes."""
    from medflare.recipes.job_reader import read_job
    from medflare.recipes.overrides import override

    job = read_job(JOB)
    if own.model is not None:
        job = override(job, {"preset": "instruct"})
    return merge_settings(job.settings, own.settings) | {"variant": own.variant}


def read_sites(shared: Path, partition: str, model: str | None = None) -> dict[str, SiteConfig]:
    """Return who trains, and the unseen hospital where there is one.

    Args:
        model: name of the language model that all have; None for the embedded one.

    Raises:
        NotHereError: the model is not on this machine.
    """
    sites = _sites_of(shared, partition)
    if model is None:
        return sites
    backbone = BackboneConfig(folder=added_model(model))
    return {name: site.model_copy(update={"backbone": backbone}) for name, site in sites.items()}


def _sites_of(shared: Path, partition: str) -> dict[str, SiteConfig]:
    if partition == "real":
        return {name: site for name, site in load_site_file(REAL).items() if name in PARTICIPANTS["real"]}
    demo = load_site_file(shared / "cohorts" / "site.yaml")
    if partition == "all":
        return {name: demo[name] for name in (*SITES, UNSEEN)}
    dealt = load_site_file(shared / "clusters" / "site.yaml")
    return {name: dealt[name] for name in SITES} | {UNSEEN: demo[UNSEEN]}


def groups(mode: str, sites: Mapping[str, SiteConfig]) -> dict[str, dict[str, SiteConfig]]:
    """Return owner of a model -> who trains it; "" where there is one model for all."""
    if mode == "local":
        return {name: {name: site} for name, site in sites.items()}
    if mode == "pooled":
        cohorts = tuple(cohort for site in sites.values() for cohort in site.cohort)
        first = next(iter(sites.values()))
        return {"": {"pooled": first.model_copy(update={"name": "pooled", "cohort": cohorts})}}
    return {"": dict(sites)}


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
