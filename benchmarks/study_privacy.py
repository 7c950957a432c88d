# SPDX-License-Identifier: Apache-2.0
"""Utility against epsilon: Fed-MedLoRA on synthetic notes under patient-level DP-SGD, and a step's cost.

A seed decides the training notes of all sites and the run; held-out notes are the same for all. Every unit
(arm, seed) trains three sites by `in_process.loop.federate` and measures the loss per answer token on them.
Units that are in results.json are not run again. The table is written by the same command.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from medflare.aggregation import make_rule
from medflare.core.plan import RoundPlan
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.site import SiteConfig
from medflare.differential_privacy.accounting import noise_for
from medflare.differential_privacy.settings import PrivacySettings
from medflare.in_process.loop import federate
from medflare.learners.registry import build_learner
from medflare.recipes.job_reader import read_job

SITES = ("site-1", "site-2", "site-3")
DELTA = 1e-4
FREE: dict[str, Any] = {"noise_multiplier": 1e-9, "delta": DELTA}
ARMS = ("plain", "sampled", "clipped", "8", "3", "1")
"""Ordinary training; Poisson samples with neither clipping nor noise; with clipping; epsilon 8, 3 and 1."""
TITLES = {
    "plain": "ordinary training",
    "sampled": "Poisson samples, no clipping, no noise",
    "clipped": "and clipping",
    "8": "and noise, ε = 8",
    "3": "and noise, ε = 3",
    "1": "and noise, ε = 1",
}


def write_cohorts(out: Path, seed: int, patients: int, test: int) -> None:
    """Training notes of a seed, one of each patient, and test notes where they are missing."""
    from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

    for house in NOTE_HOSPITALS:
        if not (out / "test" / house.name).is_dir():
            write_notes_hospital(house.with_seed(777), out / "test" / house.name, test, "jsonl")
        if not (out / f"train-{seed}" / house.name).is_dir():
            write_notes_hospital(house.with_seed(seed), out / f"train-{seed}" / house.name, patients, "jsonl")


def cohort(folder: Path, split: str) -> CohortConfig:
    """All notes of a folder in one split."""
    shares = SplitConfig.model_validate({name: float(name == split) for name in ("train", "val", "test")})
    return CohortConfig(format="notes_jsonl", root=folder, split=shares)


def privacy(arm: str, given: argparse.Namespace) -> PrivacySettings | None:
    """Return the block `dp` of an arm; None for ordinary training."""
    rate = given.batch / given.patients
    common: dict[str, Any] = {"sample_rate": rate, "records_per_patient": given.records}
    if arm == "plain":
        return None
    if arm in ("sampled", "clipped"):
        norm = given.clip if arm == "clipped" else 1e9
        return PrivacySettings(clip_norm=norm, **FREE, **common)
    noise = noise_for(float(arm), DELTA, rate, given.rounds * given.steps)
    return PrivacySettings(noise_multiplier=noise, clip_norm=given.clip, delta=DELTA, **common)


def learners_of(out: Path, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return a learner for each site, with rows by patient; arms change its settings."""
    job = read_job(Path(__file__).parents[1] / "jobs" / "fed_medlora")
    settings = dict(job.settings) | {
        "eval_batch": 96,
        "sharing": "freeze_a",
        "lora": {"rank": 4, "lora_alpha": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
        "optimiser": {"batch": given.batch, "lr": given.lr},
        "dp": {},
    }
    return {
        name: build_learner(
            "fed_medlora",
            settings,
            SiteConfig(
                name=name,
                cohort=(
                    cohort(out / f"train-{seed}" / name, "train"),
                    cohort(out / "test" / name, "val"),
                ),
            ),
            seed,
        )
        for name in SITES
    }


def run_unit(learners: dict[str, Any], start: Any, arm: str, seed: int, given: argparse.Namespace) -> Any:
    """Train one arm from the same start; return its loss, noise and seconds of a step."""
    dp, rows = privacy(arm, given), {name: learner.patients for name, learner in learners.items()}
    for name, learner in learners.items():
        learner.settings = learner.settings.model_copy(update={"dp": dp})
        learner.patients = rows[name] if dp else None
        learner.order.position = 0
    began = time.process_time()
    state = federate(
        learners,
        make_rule("freeze_a", {}),
        given.rounds,
        lambda r: RoundPlan(round=r, rounds=given.rounds, steps=given.steps, seed=seed),
        state={name: value.clone() for name, value in start.items()},
    )
    seconds = (time.process_time() - began) / (given.rounds * given.steps * len(learners))
    losses = []
    for name, learner in learners.items():
        learner.patients = rows[name]
        learner.load_shared({key: value.clone() for key, value in state.items()})
        learner.use()
        losses.append(learner.mean_loss(learner.val_rows[: given.test_rows]))
    noise = dp.noise_multiplier if dp and dp.noise_multiplier > 1e-6 else 0.0
    return {"loss": statistics.fmean(losses), "noise": noise, "step_seconds": seconds}


def table(results: dict[str, dict[str, Any]], seeds: list[str]) -> str:
    """Return the table in Markdown: mean and range over seeds."""
    lines = [
        "| arm | noise multiplier | loss per token, mean (min to max) | CPU s a step |",
        "|---|---|---|---|",
    ]
    for arm in ("start", *ARMS):
        found = [results[f"{arm}:{seed}"] for seed in seeds if f"{arm}:{seed}" in results]
        if not found:
            continue
        losses = [one["loss"] for one in found]
        spread = f"{statistics.fmean(losses):.4f} ({min(losses):.4f} to {max(losses):.4f})"
        noise = f"{found[0]['noise']:.2f}" if found[0]["noise"] else "none"
        seconds = statistics.fmean(one["step_seconds"] for one in found)
        title = TITLES.get(arm, "before training")
        lines.append(
            f"| {title} | {noise} | {spread} | {seconds:.2f} |" if seconds else f"| {title} | | {spread} | |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/privacy"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--patients", type=int, default=300, help="training patients of a site")
    parser.add_argument("--batch", type=int, default=30, help="mean number of patients in a step")
    parser.add_argument("--records", type=int, default=2, help="most questions of a patient in a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a site in a round")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--test", type=int, default=6, help="held-out notes of a site")
    parser.add_argument("--test-rows", type=int, default=120)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    seeds = given.seeds.split(",")
    for seed in seeds:
        missing = [arm for arm in given.arms.split(",") if f"{arm}:{seed}" not in results]
        if not missing:
            continue
        write_cohorts(given.out / "cohorts", int(seed), given.patients, given.test)
        learners = learners_of(given.out / "cohorts", int(seed), given)
        start = next(iter(learners.values())).initial_shared()
        losses = []
        for learner in learners.values():
            learner.load_shared({key: value.clone() for key, value in start.items()})
            learner.use()
            losses.append(learner.mean_loss(learner.val_rows[: given.test_rows]))
        results[f"start:{seed}"] = {"loss": statistics.fmean(losses), "noise": 0.0, "step_seconds": 0.0}
        for arm in missing:
            results[f"{arm}:{seed}"] = run_unit(learners, start, arm, int(seed), given)
            file.write_text(json.dumps(results, indent=1) + "\n")
            print(arm, seed, results[f"{arm}:{seed}"], flush=True)
    (given.out / "table.md").write_text(table(results, seeds))
    print(table(results, seeds))


if __name__ == "__main__":
    main()
