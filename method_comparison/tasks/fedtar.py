# SPDX-License-Identifier: Apache-2.0
"""FedTAR, its ablations and baselines: patients who come again, at hospitals of unequal size.

All methods begin with the same bridge and client adapter and have the same passes over each site's visits. A
baseline trains on all visits in each exchange ("pooled", as in the paper) or on one after the other
("in_turn", TAR-15), with T exchanges in a round or with one, which is the paper's protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, ClassVar, Literal

from pydantic import Field

from medflare.core.config import Settings
from medflare.core.presets import merge_settings
from medflare.evaluation.label_metrics import OTHER_PATIENTS, other_patients_statistic
from medflare.evaluation.predictions import Prediction
from medflare.evaluation.statistics import Statistic
from medflare.evaluation.visit_metrics import (
    UNFOUNDED,
    averaged,
    change_statistics,
    follow_ups,
    groups_of,
    in_visit_order,
    mean_over_visits,
    silent_first_visits,
    unfounded_statistics,
)
from medflare.tasks.prediction_files import read_predictions
from method_comparison.comparison_table import Run
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, ShownRow, Unit
from method_comparison.tasks.fedtar_hospitals import (
    LEARNER,
    OWN_STARTS,
    VisitsSettings,
    read_sites,
    start_file,
    visits_of,
    write_hospitals,
    write_start,
)
from method_comparison.tasks.needed import real_radiographs

FILE, ROUNDS = "predictions_generic.jsonl", "rounds.json"
REPORTS = ("bleu_4", "rouge_l", "cider", "label_f1", "label_micro_f1")
CHANGES = (
    *("change_f1", "change_f1_other_patients", "change_moved_f1", "change_opposite"),
    *("change_accuracy", "change_accuracy_commonest"),
)


class VisitsMethod(Settings):
    """A rule, the order of the visits, and changes to the learner's settings.

    Attributes:
        order: "visits" as FedTAR has them (rule temporal), "pooled" or "in_turn".
        exchanges: of a round; None for T, one for each visit.
        passes: over a site's visits in a round; None for the comparison's.
        rounds: None for the comparison's; 0: the common start, untrained.
        q: whose mixture assignment a patient has: the own, or dealt at random among the site's (a control).
    """

    rule: str = "temporal"
    rule_settings: dict[str, Any] = Field(default_factory=dict)
    order: Literal["visits", "pooled", "in_turn"] = "visits"
    exchanges: Literal[1] | None = None
    passes: float | None = Field(default=None, gt=0)
    rounds: int | None = Field(default=None, ge=0)
    q: Literal["true", "shuffled"] = "true"
    settings: dict[str, Any] = Field(default_factory=dict)


class FedTAR(ComparisonTask[VisitsSettings, VisitsMethod]):
    """Place: all sites; a score is that of each visit, averaged over visits, then over sites."""

    name = "fedtar"
    settings, method_settings = VisitsSettings, VisitsMethod
    partitions = ("synthetic", "real")
    columns: ClassVar[Mapping[str, Column]] = {
        "val_loss": Column(title="validation loss a token", scale=1.0, digits=3),
        "val_label_f1": Column(title="validation label F1"),
        "penalty": Column(title="loss a token with another's q, more", scale=1.0, digits=3, tested=False),
    }
    case_columns: ClassVar[Mapping[str, Column]] = {
        "bleu_4": Column(title="BLEU-4"),
        "rouge_l": Column(title="ROUGE-L"),
        "cider": Column(title="CIDEr"),
        "label_f1": Column(title="label F1, by study"),
        "label_micro_f1": Column(title="label micro F1"),
        OTHER_PATIENTS: Column(title="label F1, other patients (control)", tested=False),
        "change_f1": Column(title="change F1"),
        "change_f1_other_patients": Column(title="change F1, other patients (control)", tested=False),
        "change_moved_f1": Column(title="change F1, moved"),
        "change_opposite": Column(title="opposite changes", tested=False),
        "change_accuracy": Column(title="right change where one is stated"),
        "change_accuracy_commonest": Column(title="the commonest change (control)", tested=False),
        UNFOUNDED: Column(title="changes stated at first visits", tested=False),
    }
    curve_axes: ClassVar[Mapping[str, str]] = {"val_loss": "rounds"}

    def check(self, settings: VisitsSettings, own: VisitsMethod) -> None:
        from medflare.aggregation import make_rule
        from medflare.learners.fedtar.settings import METHOD

        make_rule(own.rule, own.rule_settings)
        METHOD.resolve(merge_settings(LEARNER | {"visits": settings.visits}, own.settings))

    def prepare(self, settings: VisitsSettings, partition: str, seed: int, shared: Path) -> None:
        if partition == "synthetic":
            write_hospitals(settings, shared / "cohorts")
        write_start(settings, [], shared)

    def inputs(self, settings: VisitsSettings, own: VisitsMethod, partition: str) -> Sequence[Path]:
        return real_radiographs(partition)

    def train(self, unit: Unit[VisitsSettings, VisitsMethod]) -> Measured:
        from safetensors.torch import load_file

        for name in OWN_STARTS:
            if unit.own.settings.get(name):
                write_start(unit.settings, [name], unit.shared)
        learners = make_learners(unit)
        first = next(iter(learners.values()))
        start = first.initial_shared() | load_file(start_file(unit.shared, unit.own.settings))
        state, said = run_rounds(unit, learners, start)
        (unit.folder / ROUNDS).write_text(json.dumps(said, indent=1), encoding="utf-8")
        for site, learner in learners.items():
            learner.load_shared(state)
            write_predictions(learner, "test", unit.folder / site / FILE)
            write_predictions(learner, "val", unit.folder / "validation" / site / FILE)
        losses = [(entry["round"], mean_loss(entry["val"])) for entry in said]
        values = {"val_loss": losses[-1][1], "val_label_f1": label_f1(unit.folder / "validation")}
        if unit.own.q == "true" and all(own.patients is not None for own in learners.values()):
            values["penalty"] = penalty(learners, unit.seed)
        return Measured(values=values, curves={"val_loss": losses})

    def places(self, settings: VisitsSettings, partition: str, folder: Path) -> dict[str, Run]:
        sites = read_unit(folder)
        return {"all sites": scored(sites)} if sites else {}

    def notes(self, partition: str, rows: Mapping[str, ShownRow[VisitsSettings]]) -> Sequence[str]:
        return [line for row in rows.values() if (line := coefficients(row))]


def make_learners(unit: Unit[VisitsSettings, VisitsMethod]) -> dict[str, Any]:
    """Return the sites' learners, agreed on a mixture where they have one."""
    from medflare.in_process.temporal_loop import agree_on_mixture
    from medflare.learners.fedtar.learner import build

    given, own = unit.settings, unit.own
    common = {"visits": visits_of(given, unit.partition), "lr": given.lr, "warmup": given.warmup}
    settings = merge_settings(LEARNER | common, own.settings)
    sites = read_sites(given, unit.partition, unit.shared)
    learners = {
        name: build(settings, site, unit.seed, unit.shared / "cache" / unit.partition / name)
        for name, site in sites.items()
    }
    profiles = {name: made.patients for name, made in learners.items() if made.patients is not None}
    mixture = next(iter(learners.values())).settings.mixture
    if profiles and mixture.source == "federated":
        agree_on_mixture(profiles, mixture, 2, unit.seed)
    if own.q == "shuffled":
        for patients in profiles.values():
            patients.deal_at_random(unit.seed)
    return learners


def run_rounds(
    unit: Unit[VisitsSettings, VisitsMethod], learners: Mapping[str, Any], start: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """Return the state after the last round, and of every round the rule's report and validation losses."""
    from medflare.aggregation import make_rule
    from medflare.core.plan import RoundPlan
    from medflare.in_process.loop import federate
    from medflare.in_process.temporal_loop import federate_visits, visit_by_visit

    own, visits, seed = unit.own, visits_of(unit.settings, unit.partition), unit.seed
    rounds = unit.settings.rounds if own.rounds is None else own.rounds
    passes = unit.settings.passes if own.passes is None else own.passes
    exchanges = own.exchanges or visits
    temporal = {"seed": seed, "visits": visits} if own.rule == "temporal" else {}
    rule = make_rule(own.rule, {**own.rule_settings, **temporal})
    checkpoint = unit.progress.checkpoint()
    said = checkpoint.noted
    said.append({"round": 0, "rule": {}, "val": validation(learners, start, visits)})

    def plan(number: int) -> RoundPlan:
        share = passes / (exchanges if own.order == "pooled" else 1)
        return RoundPlan(round=number, rounds=rounds * exchanges, seed=seed, fraction=share)

    def note(number: int, state: Any, updates: Any) -> None:
        if (number + 1) % exchanges == 0:
            found = validation(learners, state, visits)
            said.append({"round": (number + 1) // exchanges, "rule": plain(rule.report()), "val": found})

    if not rounds:
        return start, said
    if own.order == "visits":
        return federate_visits(learners, rule, rounds, plan, note, start, checkpoint), said  # type: ignore[arg-type]
    plans = visit_by_visit(plan, visits) if own.order == "in_turn" else plan
    return federate(learners, rule, rounds * exchanges, plans, note, start, checkpoint=checkpoint), said


def plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a rule's report that the page reads."""
    kept = ("alpha", "beta", "slopes", "alpha_gradient")
    return {name: report[name] for name in kept if name in report}


def validation(learners: Mapping[str, Any], state: Any, visits: int) -> dict[str, list[float | None]]:
    """Return site -> loss a token of each visit's validation rows at a state; None where it has none."""
    found: dict[str, list[float | None]] = {}
    for site, learner in learners.items():
        learner.load_shared(state)
        rows = [learner.rows("val", visit) for visit in range(1, visits + 1)]
        found[site] = [learner.rows_loss(own) if own else None for own in rows]
    return found


def mean_loss(found: Mapping[str, Sequence[float | None]]) -> float:
    """Return the mean over sites and visits."""
    return mean(loss for losses in found.values() for loss in losses if loss is not None)


def penalty(learners: Mapping[str, Any], seed: int) -> float:
    """Return how much the loss a token grows where each patient is taken for another one of the site.

    A model that does not use who the patient is has 0; one that learnt to expect the own q pays for another.
    """
    more = []
    for learner in learners.values():
        rows = learner.rows("test")
        before = learner.rows_loss(rows)
        learner.patients.deal_at_random(seed)
        more.append(learner.rows_loss(rows) - before)
    return mean(more)


def write_predictions(learner: Any, split: str, path: Path) -> None:
    """Write drafts of one split beside their references."""
    from medflare.core.json_lines import write_lines
    from medflare.learners.fedtar.evaluation import predictions

    rows = learner.rows(split)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_lines(path, predictions(learner, rows, learner.draft(rows), path))


def read_unit(folder: Path) -> list[list[Prediction]]:
    """Return the predictions of each site."""
    return [read_predictions(path) for path in sorted(folder.glob(f"*/{FILE}"))]


def label_f1(folder: Path) -> float:
    """Return label F1 of the predictions below `folder`, mean over visits and sites."""
    return float(scored(read_unit(folder)).scores["label_f1"].value)


def scored(items: Sequence[list[Prediction]]) -> Run:
    """Return the scores over all sites; a site without later visits has no say in those of changes."""
    each, told = [mean_over_visits(own, REPORTS) for own in items], [change_statistics(own) for own in items]
    scores = {name: averaged([found[name] for found in each]) for name in REPORTS}
    controls = [control_of(own) for own in items]
    if all(OTHER_PATIENTS in found for found in controls):
        scores[OTHER_PATIENTS] = averaged([found[OTHER_PATIENTS] for found in controls])
    later = [found for found in told if found]
    first = [unfounded_statistics(own) for own in items]
    if all(first):
        scores[UNFOUNDED] = averaged([found[UNFOUNDED] for found in first])
    shared = [name for name in CHANGES if later and all(name in found for found in later)]
    scores |= {name: averaged([found[name] for found in later]) for name in shared}
    rows = [name for own in items for name in groups_of(in_visit_order(own))]
    changed = [name for own in items for name in groups_of(follow_ups(own))]
    groups = {name: changed if name in CHANGES else rows for name in scores}
    groups[UNFOUNDED] = [name for own in items for name in groups_of(silent_first_visits(own))]
    return Run(scores, groups)


def control_of(items: Sequence[Prediction]) -> dict[str, Statistic]:
    """Return what a site's findings are worth with other patients' reports, of any visit."""
    rows = in_visit_order(items)
    gold, predicted = [item.gold_codes for item in rows], [item.predicted_codes for item in rows]
    return other_patients_statistic(gold, predicted, [item.patient_id for item in rows])


def coefficients(row: ShownRow[VisitsSettings]) -> str:
    """Return α of the last round, its weights β and what each visit's slope was, means over seeds."""
    files = [folder / ROUNDS for folder in row.folders.values()]
    if not all(file.is_file() for file in files):
        return ""
    reports = [json.loads(file.read_text(encoding="utf-8"))[-1]["rule"] for file in files]
    told = []
    for what in ("alpha", "beta", "slopes", "alpha_gradient"):
        if all(what in report for report in reports):
            means = [mean(values) for values in zip(*(report[what] for report in reports), strict=True)]
            told.append(f"{what} {', '.join(f'{value:.3g}' for value in means)}")
    return f"{row.title}, last round: {'; '.join(told)}." if told else ""
