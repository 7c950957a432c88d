# SPDX-License-Identifier: Apache-2.0
"""FedTAR, its ablations and six baselines, pooled and visit by visit: `make study-fedtar`.

Three synthetic hospitals whose patients come again; what becomes of findings depends on age, sex and the
number of the visit (synthetic/progression.py). All methods begin with the same bridge and client adapter,
taught once on visits of other hospitals, and have the same exchanges, the same passes over each site's visits
and the same rates; a baseline trains on all visits in each exchange ("pooled", as in the paper)
or on one after the other ("sequential", TAR-15). With --real the three publishers of cxr_multisite.

Units (method, seed) run in one process, one after the other, none of them twice. The tables are made from
the predictions and rounds.json alone: --tables makes them of what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from medflare.data.settings.site import SiteConfig, load_site_file
from study_units import DONE, timed, unit_folder

REAL = Path(__file__).parents[1] / "jobs" / "fedtar" / "sites" / "cxr_multisite.yaml"
VISITS, REAL_VISITS = 4, 2
"""T of the synthetic hospitals, and of the real ones, of whose patients few came more than twice."""
PATIENTS = {"site-1": 72, "site-2": 60, "site-3": 54}
"""Of each hospital; half of them for training, two in five for the test."""
SPLIT = "{train: 0.5, val: 0.1, test: 0.4}"
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SETTINGS: dict[str, Any] = {
    "visits": VISITS,
    "model": {
        "encoder": {"name": "small", "weights": "embedded", "image_size": 96, "token_grid": 4},
        "lora": {"rank": 16, "lora_alpha": 32, "targets": ATTENTION},
    },
    "patient": {"rank": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]},
    "batch": 8,
    "lr": 3e-3,
    "decoding": {"beams": 1, "max_new_tokens": 110, "min_new_tokens": 0, "repetition_penalty": 1.0},
    "eval_batch": 64,
}
"""As in jobs/fedtar; equal for all methods. Rounds and passes are options of this program."""
TEACHING: dict[str, Any] = {"patients": 100, "steps": 500, "batch": 16, "lr": 3e-3}
META = 1e-2
"""Rate of ψ: with the paper's 1e-4 no α moves in so few rounds (docs/methods/fedtar.md)."""


@dataclass(frozen=True)
class Method:
    """One row of the tables. order: "visits" as FedTAR has them, "pooled" or "in_turn"; times: the rounds."""

    title: str
    rule: str
    rule_settings: Mapping[str, Any] = field(default_factory=dict)
    order: str = "visits"
    settings: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1


def _temporal(title: str, rule: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> Method:
    return Method(title, "temporal", {"lr": META, **rule}, settings=settings or {})


BASELINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fedavg": ("FedAvg", "fedavg", {}),
    "fedprox": ("FedProx", "fedprox", {"mu": 0.01}),
    "scaffold": ("SCAFFOLD", "scaffold", {"weighting": "examples"}),
    "fedadam": ("FedAdam", "fedadam", {"lr": 1e-2}),
    "fedyogi": ("FedYogi", "fedyogi", {"lr": 1e-2}),
    "drfa": ("DRFA", "drfa", {}),
}
PLAIN = {"variant": "pooled_baseline"}
METHODS = {
    "start": replace(Method("the common start", "fedavg", order="pooled", settings=PLAIN), times=0),
    "fedtar": _temporal("FedTAR (softmax)", {}),
    "fedtar_beta": _temporal("FedTAR (beta_softmax)", {"alpha_mode": "beta_softmax"}),
    "fedtar_no_gmm": _temporal("w/o GMM", {}, {"variant": "without_personalisation"}),
    "fedtar_no_temporal": _temporal("w/o temporal (α = 1)", {"alpha_mode": "constant", "alpha": 1.0}),
    **{
        f"{name}_{order}": Method(f"{title}, {told}", rule, own, order, PLAIN)
        for order, told in (("pooled", "pooled"), ("in_turn", "sequential"))
        for name, (title, rule, own) in BASELINES.items()
    },
    "fedtar_prior": _temporal("FedTAR (softmax), report before", {}, {"prior_context": True}),
    "fedtar_prior_1": _temporal(
        "w/o temporal, report before", {"alpha_mode": "constant", "alpha": 1.0}, {"prior_context": True}
    ),
    "fedtar_paper_rate": _temporal("FedTAR (softmax), meta rate 1e-4", {"lr": 1e-4}),
    "fedtar_long": replace(_temporal("FedTAR (softmax), four times the rounds", {}), times=4),
    "fedtar_fast": _temporal("FedTAR (softmax), four times the local rate", {}, {"lr": 4 * SETTINGS["lr"]}),
    "fedavg_fast": Method(
        "FedAvg, pooled, four times the local rate",
        "fedavg",
        order="pooled",
        settings=PLAIN | {"lr": 4 * SETTINGS["lr"]},
    ),
    "fedadam_slow": Method("FedAdam, pooled, rate 3e-3", "fedadam", {"lr": 3e-3}, "pooled", PLAIN),
}
EXTRA = ("fedtar_paper_rate", "fedtar_long", "fedtar_fast", "fedavg_fast", "fedadam_slow")
"""Not asked for without being named."""


def write_hospitals(folder: Path) -> None:
    """The three hospitals and their site.yaml; site-3 misses visits and does not have the last one."""
    from medflare.synthetic import DEMO_HOSPITALS
    from medflare.synthetic.follow_up import write_follow_up

    lines = ["sites:"]
    for profile, (site, patients) in zip(DEMO_HOSPITALS, PATIENTS.items(), strict=True):
        write_follow_up(profile, folder / site, patients, VISITS)
        lines += [
            f"  {site}:",
            "    cohort:",
            f"      {{format: manifest, root: {site}, visits: {{order: visit, most: {VISITS}}},",
            f"       columns: {{split: null}}, split: {SPLIT}}}",
        ]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def write_teaching(folder: Path) -> None:
    """Hospitals of mixed house styles, as one site, whose patients are none of the study's."""
    from medflare.synthetic import pretraining_hospitals
    from medflare.synthetic.follow_up import write_follow_up

    lines = ["sites:", "  teaching:", "    cohort:"]
    for profile in pretraining_hospitals(6):
        write_follow_up(profile, folder / profile.name, TEACHING["patients"], VISITS)
        lines += [
            f"      - {{format: manifest, root: {profile.name}, visits: {{order: visit, most: {VISITS}}}}}"
        ]
    (folder / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")


def start_file(out: Path, settings: Mapping[str, Any]) -> Path:
    """Initial states of the methods: those that see the report before were also taught with it."""
    return out / ("start_prior.safetensors" if settings.get("prior_context") else "start.safetensors")


def write_start(out: Path, own: Mapping[str, Any]) -> None:
    """Bridge and client adapter after a central training on the teaching hospitals."""
    from safetensors.torch import save_file

    from medflare.core.plan import RoundPlan
    from medflare.learners.fedtar.learner import build

    if not (out / "teaching" / "site.yaml").is_file():
        write_teaching(out / "teaching")
    site = load_site_file(out / "teaching" / "site.yaml")["teaching"]
    settings = (
        SETTINGS | PLAIN | dict(own) | {"batch": TEACHING["batch"], "lr": TEACHING["lr"], "warmup": 0.05}
    )
    learner = build(settings, site, 0, out / "cache" / "teaching")
    learner.load_shared(learner.initial_shared())
    update = learner.fit(RoundPlan(round=0, rounds=1, steps=TEACHING["steps"]))
    print(f"start: {update.metrics}", flush=True)
    save_file(learner.initial_shared(), start_file(out, own))


def sites_of(given: argparse.Namespace) -> dict[str, SiteConfig]:
    found = load_site_file(REAL if given.real else given.out / "cohorts" / "site.yaml")
    return {name: site for name, site in found.items() if name != "server"}


def train_unit(name: str, seed: int, given: argparse.Namespace) -> None:
    """Trains one unit; writes its predictions, and of every exchange what the rule says and what it took."""
    from safetensors.torch import load_file

    from medflare.aggregation import make_rule
    from medflare.aggregation.temporal import TemporalResidual
    from medflare.core.json_lines import write_lines
    from medflare.core.plan import RoundPlan
    from medflare.in_process.loop import federate
    from medflare.in_process.temporal_loop import agree_on_mixture, federate_visits, visit_by_visit
    from medflare.learners.fedtar.evaluation import predictions
    from medflare.learners.fedtar.learner import build
    from study_fedtar_tables import FILE

    method, folder, visits = METHODS[name], unit_folder(given.out, name, seed), given.visits
    rounds = given.rounds * method.times
    settings = SETTINGS | {"visits": visits} | dict(method.settings)
    learners = {
        site: build(settings, config, seed, given.out / "cache" / site)
        for site, config in sites_of(given).items()
    }
    first = next(iter(learners.values()))
    profiles = {site: made.patients for site, made in learners.items() if made.patients is not None}
    if profiles:
        agree_on_mixture(profiles, first.settings.mixture, 2, seed)
    own = {"seed": seed, "visits": visits} if method.rule == "temporal" else {}
    rule, said = make_rule(method.rule, {**method.rule_settings, **own}), list[dict[str, Any]]()

    def plan(number: int) -> RoundPlan:
        share = given.passes / (visits if method.order == "pooled" else 1)
        return RoundPlan(round=number, rounds=rounds * visits, seed=seed, fraction=share)

    def note(number: int, state: Any, updates: Any) -> None:
        entry = {"exchange": number, "rule": plain(rule.report())}
        entry["sites"] = {site: update.metrics for site, update in updates.items()}
        if (number + 1) % visits == 0:
            entry["val"] = {site: validation(learner, state, visits) for site, learner in learners.items()}
        said.append(entry)

    if not start_file(given.out, method.settings).is_file():
        write_start(given.out, {n: v for n, v in method.settings.items() if n == "prior_context"})
    start = first.initial_shared() | load_file(start_file(given.out, method.settings))
    if isinstance(rule, TemporalResidual):
        state = federate_visits(learners, rule, rounds, plan, note, start)
    else:
        plans = visit_by_visit(plan, visits) if method.order == "in_turn" else plan
        state = federate(learners, rule, rounds * visits, plans, note, start)
    if not said:
        untrained = {site: validation(learner, state, visits) for site, learner in learners.items()}
        said.append({"exchange": -1, "rule": {}, "sites": {}, "val": untrained})
    for site, learner in learners.items():
        learner.load_shared(state)
        path, rows = folder / site / FILE, learner.rows("test")
        write_lines(path, predictions(learner, rows, learner.draft(rows), path))
    (folder / "rounds.json").write_text(json.dumps(said, indent=1))


def plain(report: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of a rule's report that the tables read."""
    kept = ("weights", "visit", "alpha", "beta", "slopes", "alpha_gradient")
    return {name: report[name] for name in kept if name in report}


def validation(learner: Any, state: Any, visits: int) -> list[float | None]:
    """Loss per token of each visit's validation rows at a state."""
    learner.load_shared(state)
    rows = [learner.rows("val", visit) for visit in range(1, visits + 1)]
    return [learner.rows_loss(own) if own else None for own in rows]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/fedtar"))
    default = ",".join(name for name in METHODS if name not in EXTRA)
    parser.add_argument("--methods", default=default, help=f"of {', '.join(METHODS)}")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, default=4, help="of T exchanges each")
    parser.add_argument("--passes", type=float, default=0.5, help="over a site's visits in a round")
    parser.add_argument("--real", action="store_true", help="cxr_multisite below MEDFLARE_DATA")
    parser.add_argument("--tables", action="store_true", help="make the tables of what is there")
    given = parser.parse_args()
    given.visits = REAL_VISITS if given.real else VISITS
    if given.real and not os.environ.get("MEDFLARE_DATA"):
        parser.exit(2, "MEDFLARE_DATA is not set: export the folder that holds cxr_multisite/.\n")
    return given


def run(name: str, seed: str, given: argparse.Namespace) -> None:
    """One unit, unless it is done; a fault is told and the others go on."""
    folder = unit_folder(given.out, name, seed)
    if (folder / DONE).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    started = time.process_time()
    try:
        timed(folder, lambda: train_unit(name, int(seed), given), rounds=given.rounds, passes=given.passes)
        told = f"done, {time.process_time() - started:.0f} s of processor time"
    except Exception as error:  # the study goes on without this unit
        told = f"failed: {type(error).__name__}: {error}"
    print(f"{name} seed {seed}: {told}", flush=True)


def main() -> None:
    import torch

    torch.set_num_threads(1)
    given = arguments()
    if not given.real and not (given.out / "cohorts" / "site.yaml").is_file():
        write_hospitals(given.out / "cohorts")
    methods, seeds = given.methods.split(","), given.seeds.split(",")
    for name, seed in [(m, s) for s in seeds for m in methods] if not given.tables else ():
        run(name, seed, given)
    write_tables(given, methods, seeds)


def write_tables(given: argparse.Namespace, methods: list[str], seeds: list[str]) -> None:
    from study_fedtar_plots import plots
    from study_fedtar_tables import tables

    titles = {name: METHODS[name].title for name in methods}
    found = tables(given.out, titles, list(sites_of(given)), seeds)
    done = {n: [s for s in seeds if (unit_folder(given.out, n, s) / DONE).is_file()] for n in methods}
    plots(given.out, {n: own for n, own in done.items() if own}, titles, given.out)
    (given.out / "tables.md").write_text(found, encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
