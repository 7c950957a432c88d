# SPDX-License-Identifier: Apache-2.0
"""DDCS against other ways to choose hospitals, by question answering: `make study-ddcs`.

Twenty synthetic hospitals ask about one world of facts; how training facts are dealt is the partition. Each
hospital trains the embedded notes decoder's LoRA through `selection.clocked.federate_clocked`; seconds are
those of a simulated clock with a profile for each hospital, as of a 7B backbone's adapter on unlike machines
and lines. Every way of choosing gets the same simulated hours. Quality is the accuracy on facts of all
hospitals in wordings that nobody trains on.

Units (partition, method, seed) run in one process, none of them twice. The tables are made from their files
alone: --tables makes them of what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from medflare.data.cohort import Cohort
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.synthetic.knowledge.files import write_questions_demo
from study_units import DONE, timed, unit_folder

HOSPITALS, DRAWS = 20, 5
MESSAGE = 41_943_040
"""Bytes each way: LoRA of rank 8 on all projections of a 7B model in bf16."""
SECONDS_AN_EXAMPLE = 0.5
"""Of the typical hospital; speeds and lines are log-normal around it (selection.clock.drawn_profiles)."""
PARTITIONS = ("iid", "class", "dirichlet")
ALPHA = 0.3
WORLD: dict[str, int] = {"diseases": 2, "groups": 6, "questions": 30}
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: dict[str, Any] = {
    "optimiser": {"batch": 8, "lr": 4e-3, "warmup": 0.0},
    "lora": {"rank": 16, "lora_alpha": 64, "targets": ATTENTION, "dropout": 0.0},
    "local_epochs": 1,
    "max_tokens": 96,
    "eval_batch": 64,
}
"""As in jobs/ddcs_qa; equal for all methods."""
MU = 0.01
TESTED = 140


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    Attributes:
        graph: how sketches come about, "" for a rule that takes none; "shuffled": dealt anew
            by a seeded permutation.
        strict: ε as a share of what q = d attains.
        beside: the row it is compared with.
    """

    title: str
    rule: str
    rule_settings: Mapping[str, Any] = field(default_factory=dict)
    graph: str = ""
    strict: float | None = None
    beside: str = "uniform"


def _ddcs(title: str, **settings: Any) -> Method:
    return Method(title, "ddcs", {"draws": DRAWS, **settings}, graph="plain")


def _strict(title: str, graph: str = "plain") -> Method:
    """Where knowledge decides: ε on pairs of different hospitals, below what q = d attains."""
    settings = {"draws": DRAWS, "most_variance": CAP, "pairs_of": "sites"}
    beside = "uniform" if graph == "plain" else "ddcs_strict"
    return Method(title, "ddcs", settings, graph=graph, strict=STRICT, beside=beside)


FEDCS = 0.35
"""The deadline of FedCS: this share of the hospitals is fast enough."""
STRICT = 0.95
CAP = 2.0
"""The largest Σ d²/q of the rows with a cap."""
CHECKS = 16
"""So often is quality measured in the hours of a run."""
METHODS = {
    "uniform": Method("Uniform", "uniform_selection", {"draws": DRAWS}),
    "ddcs_capped": _ddcs("DDCS, variance ≤ 2", most_variance=CAP),
    "ddcs": _ddcs("DDCS"),
    "importance": Method("Importance sampling", "importance_sampling", {"draws": DRAWS}),
    "fedcs": Method("FedCS", "fedcs"),
    "fedprox": Method("Uniform, FedProx", "uniform_selection", {"draws": DRAWS, "mu": MU}),
    "ddcs_strict": _strict("DDCS, ε of different hospitals 5 % lower"),
    "ddcs_unaligned": _strict("the same, without alignment", "unaligned"),
    "ddcs_completed": _strict("the same, with completion", "completed"),
    "ddcs_shuffled": _strict("the same, each with another's graph", "shuffled"),
}


def cohorts(
    given: argparse.Namespace, partition: str, seed: int, hospitals: int = HOSPITALS
) -> dict[str, SiteConfig]:
    """The hospitals of a partition and seed, written once."""
    folder = given.out / "cohorts" / f"{partition}-{seed}"
    if not (folder / "site.yaml").is_file():
        write_questions_demo(folder, hospitals, partition, seed, alpha=ALPHA, **WORLD)
    return load_site_file(folder / "site.yaml")


class Judge:
    """Tests states on questions of all hospitals."""

    def __init__(self, learner: Any, questions: Sequence[Any]) -> None:
        self.learner, self.questions = learner, questions

    def quality(self, state: Mapping[str, Any]) -> dict[str, float]:
        """Return the metrics of a shared state."""
        self.learner.load_shared({name: value.clone() for name, value in state.items()})
        self.learner.use()
        found: dict[str, float] = self.learner.quality(self.questions)
        return found


def learners_of(sites: Mapping[str, SiteConfig], seed: int) -> tuple[dict[str, Any], Judge]:
    """Every hospital's learner, all on one model, and a judge with test questions of all hospitals."""
    from medflare.learners.questions.learner import QuestionLearner
    from medflare.learners.questions.settings import METHOD
    from medflare.learners.text_task.learner import text_model

    chosen = METHOD.resolve(SETTINGS)
    model = text_model(chosen, next(iter(sites.values())), seed, METHOD.task)
    read = {name: load_cohort(site) for name, site in sites.items()}
    asked = [q for cohort in read.values() for q in cohort.questions if q.split == "test"]
    place = np.random.default_rng(seed).permutation(len(asked))[:TESTED]
    pooled = Cohort(name="judge", questions=[asked[i] for i in sorted(place)])
    trained = {
        name: cohort for name, cohort in read.items() if any(q.split == "train" for q in cohort.questions)
    }
    learners = {name: QuestionLearner(name, cohort, model, chosen, seed) for name, cohort in trained.items()}
    return learners, Judge(QuestionLearner("judge", pooled, model, chosen, seed), pooled.questions)


def sketches_of(sites: Mapping[str, SiteConfig], graph: str) -> dict[str, Any]:
    """Every hospital's sketch, under a key that is the same in every run of this program."""
    from medflare.data.settings.knowledge import CompletionConfig
    from medflare.knowledge.cohort_texts import knowledge_texts
    from medflare.knowledge.minhash import Sketcher
    from medflare.knowledge.site_graph import site_graph
    from medflare.knowledge.sketch_key import SECRET, SketchKey

    sketcher = Sketcher(SketchKey(bytes(SECRET), "study"))
    found = {}
    for name, site in sites.items():
        assert site.knowledge is not None
        change = {
            "align": graph != "unaligned",
            "completion": CompletionConfig(epochs=30) if graph == "completed" else None,
        }
        config = site.knowledge.model_copy(update=change)
        found[name] = sketcher.sketch(site_graph(config, knowledge_texts(load_cohort(site)), site.backbone))
    return found


def rule_of(
    method: Method, sites: Mapping[str, SiteConfig], clock: Any, learners: Mapping[str, Any], seed: int
) -> Any:
    """The method's rule, with sketches where it takes any; FedCS's deadline lets the fastest hospitals in."""
    from medflare.aggregation import make_rule
    from medflare.knowledge.divergence import distance_matrix
    from medflare.selection.objective import distance_between
    from medflare.selection.sampling import data_shares

    settings = dict(method.rule_settings)
    sizes = {name: len(learner.train_rows) for name, learner in learners.items()}
    if method.rule == "fedcs":
        times = [clock.timing(name, 0, size, MESSAGE, MESSAGE).total for name, size in sizes.items()]
        settings["deadline"] = float(np.quantile(times, FEDCS))
    rule = make_rule(method.rule, settings)
    if method.graph:
        sketches = {name: s for name, s in sketches_of(sites, method.graph).items() if name in learners}
        if method.graph == "shuffled":
            others = np.random.default_rng(seed).permutation(sorted(sketches))
            sketches = dict(zip(sorted(sketches), map(sketches.__getitem__, others), strict=True))
        for name, sketch in sketches.items():
            rule.set_sketch(name, sketch)  # type: ignore[attr-defined]
        if method.strict is not None:
            names = sorted(learners)
            distances = distance_matrix(sketches, names)
            shares = data_shares(sizes, names)
            even = distance_between(np.array([shares[name] for name in names]), distances)
            rule.chosen.epsilon = method.strict * even  # type: ignore[attr-defined]
    return rule


def train_unit(partition: str, name: str, seed: int, given: argparse.Namespace) -> None:
    """Trains one unit; writes its rounds by the simulated clock and what the rule said of each."""
    import gc

    from medflare.core.plan import RoundPlan
    from medflare.in_process.clocked_loop import Workload, federate_clocked
    from medflare.selection.clock import SimulatedClock, drawn_profiles

    method, sites = METHODS[name], cohorts(given, partition, seed)
    learners, judge = learners_of(sites, seed)
    gc.freeze()  # Trainer collects garbage in every round, among all that transformers ever imported
    profiles = drawn_profiles(sorted(learners), seed, seconds_per_example=SECONDS_AN_EXAMPLE)
    clock = SimulatedClock(profiles, seed)
    rule, said, last = rule_of(method, sites, clock, learners, seed), list[dict[str, Any]](), [0.0]

    def quality(number: int, state: Any, updates: Any) -> dict[str, float]:
        said.append({"round": number, "rule": plain(rule.report()), "trained": sorted(updates)})
        if clock.now - last[0] < given.hours * 3600 / CHECKS and number + 1 < given.rounds:
            return {}
        last[0] = clock.now
        found = judge.quality(state)
        print(f"{name} {number} {clock.now:.0f} s {found}", flush=True)
        return found

    run = federate_clocked(
        learners,
        rule,
        given.rounds,
        lambda r: RoundPlan(round=r, rounds=given.rounds, seed=seed),
        clock,
        Workload(down=MESSAGE, up=MESSAGE, batch=SETTINGS["optimiser"]["batch"]),
        on_round=quality,
        budget=given.hours * 3600,
    )
    folder = unit_folder(given.out, f"{partition}-{name}", seed)
    folder.mkdir(parents=True, exist_ok=True)
    rounds = [entry.to_json() | one for entry, one in zip(run.rounds, said, strict=True)]
    (folder / "rounds.json").write_text(json.dumps(rounds))


def plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """What of a rule's report the tables read."""
    return {key: report[key] for key in ("drawn", "importance", "odds", "ages", "solution") if key in report}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/ddcs"))
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--partitions", default=",".join(PARTITIONS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--hours", type=float, default=1.1, help="simulated, of a run")
    parser.add_argument("--rounds", type=int, default=60, help="at most, whatever the clock says")
    parser.add_argument("--tables", action="store_true", help="tables of what is there, and nothing else")
    return parser.parse_args()


def main() -> None:
    import torch

    torch.set_num_threads(1)
    given = arguments()
    partitions, seeds = given.partitions.split(","), given.seeds.split(",")
    methods = given.methods.split(",")
    units = [(p, m, s) for s in seeds for p in partitions for m in methods]
    for partition, method, seed in [] if given.tables else units:
        folder = unit_folder(given.out, f"{partition}-{method}", seed)
        if (folder / DONE).is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        timed(folder, lambda p=partition, m=method, s=seed: train_unit(p, m, int(s), given))  # type: ignore[misc]
        print(f"{partition} {method} {seed}: {time.monotonic() - started:.0f} s", flush=True)
    write_tables(given, partitions, seeds)


def write_tables(given: argparse.Namespace, partitions: Sequence[str], seeds: Sequence[str]) -> None:
    """tables.md of the units that are done."""
    from study_ddcs_tables import tables

    titles = {name: method.title for name, method in METHODS.items()}
    beside = {name: method.beside for name, method in METHODS.items()}
    found = tables(given.out, titles, beside, partitions, seeds, given.hours * 3600)
    (given.out / "tables.md").write_text(found, encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
