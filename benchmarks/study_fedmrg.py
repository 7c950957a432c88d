# SPDX-License-Identifier: Apache-2.0
"""FedMRG, its baselines and ablations on the synthetic hospitals, over seeds: `make study-fedmrg`.

Every unit (method, seed) trains in a process of its own with the job's committed settings through
`learners.loop.federate` (the FLARE run equals it, see tests/federation), writes its predictions, and is not
repeated when its folder is complete. The table is made from the predictions alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medflare.data.settings.site import SiteConfig, load_site_file
from study_units import run_units, unit_folder

SITES, UNSEEN = ("site-1", "site-2", "site-3"), "hospital-4"


@dataclass(frozen=True)
class Method:
    """One row of the table: a variant of the learner and who trains with whom."""

    title: str
    variant: str
    mode: str = "federated"


METHODS = {
    "fedmrg": Method("FedMRG", "fedmrg"),
    "fed_lora": Method("Fed-LoRA", "fed_lora"),
    "local_only": Method("Local-only (HCP, one adapter)", "without_specialised", "local"),
    "centralised": Method("Centralised (HCP, one adapter)", "without_specialised", "pooled"),
    "without_specialised": Method("FedMRG w/o A_s", "without_specialised"),
    "without_contrastive": Method("FedMRG w/o L_hcl", "without_contrastive"),
    "without_prompts": Method("FedMRG w/o p", "without_prompts"),
    "without_g2l": Method("FedMRG w/o L_g2l", "without_g2l"),
    "without_l2g": Method("FedMRG w/o L_l2g", "without_l2g"),
}


def job_settings() -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings and the controller block of the committed job."""
    from medflare.recipes.job_reader import read_job

    job = read_job(Path(__file__).parents[1] / "jobs" / "fedmrg")
    return job.settings, job.controller


def train_unit(name: str, seed: int, site_file: Path, folder: Path, budget: Mapping[str, int]) -> None:
    """Trains one unit and writes its predictions below `folder`."""
    from medflare.aggregation.weighted_mean import WeightedMean
    from medflare.core.plan import RoundPlan
    from medflare.in_process.loop import federate
    from medflare.learners.fedmrg.learner import build

    method, sites = METHODS[name], load_site_file(site_file)
    settings = job_settings()[0] | {"variant": method.variant}
    started, cache = time.monotonic(), folder.parent / "cache"

    def learner(site: SiteConfig) -> Any:
        return build(settings, site, seed, cache / site.name)

    def plan(steps: int) -> Any:
        return lambda r: RoundPlan(round=r, rounds=budget["rounds"], steps=steps, seed=seed)

    groups: dict[str, dict[str, SiteConfig]] = {"": {s: sites[s] for s in SITES}}
    steps = budget["steps"]
    if method.mode == "local":
        groups = {s: {s: sites[s]} for s in SITES}
    elif method.mode == "pooled":
        pooled = tuple(cohort for s in SITES for cohort in sites[s].cohort)
        groups = {"": {"pooled": sites[SITES[0]].model_copy(update={"name": "pooled", "cohort": pooled})}}
        steps *= len(SITES)
    for owner, members in groups.items():
        learners = {s: learner(config) for s, config in members.items()}
        state = federate(learners, WeightedMean(), budget["rounds"], plan(steps))
        tested = [owner] if owner else list(SITES)
        for site in (*tested, UNSEEN):
            own = learners.get(site) or learner(sites[site])
            own.load_shared(state)
            _predict(own, site, folder / (f"{owner}-{site}" if owner and site == UNSEEN else site), budget)
    (folder / "done.json").write_text(json.dumps({"seconds": time.monotonic() - started, "seed": seed}))


def _predict(learner: Any, site: str, folder: Path, budget: Mapping[str, int]) -> None:
    """Predictions of the generic adapter and, where there is one of this site, the personalised one.

    The personalised adapter also as it was trained (γ_mix = 0, MRG-8), and both on the validation split, so
    that γ can be chosen without looking at test studies.
    """
    if site == UNSEEN:
        rows = [row for split in ("test", "val", "train") for row in learner.samples.split_indices(split)]
        _write(learner, site, "generic", rows[: budget["unseen"]], folder)
        return
    test, val = learner.samples.split_indices("test"), learner.samples.split_indices("val")
    _write(learner, site, "generic", test, folder)
    if not learner.settings.dual:
        return
    _write(learner, site, "personalised", test, folder)
    _write(learner, site, "personalised", val, folder.with_name(f"{site}@val"))
    learner.settings = learner.settings.model_copy(update={"gamma_mix": 0.0})
    _write(learner, site, "personalised", test, folder.with_name(f"{site}@gamma-0"))
    _write(learner, site, "personalised", val, folder.with_name(f"{site}@val-gamma-0"))


def _write(learner: Any, site: str, kind: Any, rows: list[int], folder: Path) -> None:
    from medflare.tasks.reports.evaluation import ScoredSite, predict

    (learner.use_personalised if kind == "personalised" else learner.use_generic)()
    scored = ScoredSite(site, "unseen" if site == UNSEEN else "participant", kind, folder)
    predict(learner.model, learner.samples, rows, scored, learner.settings.decoding)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/fedmrg"))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--patients", type=int, default=0, help="of each hospital; 0: its own number")
    parser.add_argument("--rounds", type=int, help="default: the job's")
    parser.add_argument("--steps", type=int, help="default: the job's")
    parser.add_argument("--unseen", type=int, default=300, help="studies of the unseen hospital")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--unit", help="method:seed; used by the program itself")
    given = parser.parse_args()
    controller = job_settings()[1]
    budget = {
        "rounds": given.rounds or controller["num_rounds"],
        "steps": given.steps or controller["steps"],
        "unseen": given.unseen,
    }
    site_file = given.out / "cohorts" / "site.yaml"
    if given.unit:
        name, seed = given.unit.split(":")
        train_unit(name, int(seed), site_file, unit_folder(given.out, name, seed), budget)
        return
    if not site_file.is_file():
        command = [sys.executable, "-m", "medflare.cli.main", "cohort", "make", str(given.out / "cohorts")]
        subprocess.run([*command, "--patients", str(given.patients)], check=True)
    units = [(m, s) for s in given.seeds.split(",") for m in given.methods.split(",")]
    options = [part for key, value in budget.items() for part in (f"--{key}", str(value))]
    run_units(__file__, given.out, units, options, given.workers)
    from study_tables import write_tables

    write_tables(given.out, {m: METHODS[m].title for m in given.methods.split(",")}, given.seeds.split(","))


if __name__ == "__main__":
    main()
