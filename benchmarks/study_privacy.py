# SPDX-License-Identifier: Apache-2.0
"""Utility against epsilon: training under patient-level DP-SGD, and a step's cost.

Fed-MedLoRA on synthetic notes with the embedded model; or, with `--impressions FILE` (JSON lines with `uid`,
`findings` and `impression`, one report of each patient) and `--model NAME`, the impression of real findings
by a model of `medflare models`.

A seed decides the training notes of all sites and the run; held-out notes are the same for all. Every unit
(arm, seed) trains the sites by `in_process.loop.federate` and measures on held-out notes the loss per answer
token, and the share of questions whose greedy answer is right to the last token.
Units that are in results.json are not run again. The table is written by the same command.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from medflare.aggregation import make_rule
from medflare.core.model_folders import stored_model
from medflare.core.plan import RoundPlan
from medflare.data.settings.cohort import CohortConfig, SplitConfig
from medflare.data.settings.site import BackboneConfig, SiteConfig
from medflare.differential_privacy.accounting import noise_for
from medflare.differential_privacy.settings import PrivacySettings
from medflare.in_process.loop import federate
from medflare.learners.registry import build_learner
from medflare.models.backbone import autocast
from medflare.models.padding import batches_by_length, pad_rows
from medflare.recipes.job_reader import read_job

SITES = ("site-1", "site-2", "site-3")
"""Those of the synthetic hospitals that train, at most."""
DELTA = 1e-4
FEWEST_WORDS = 8
"""Of findings that are used."""
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


def write_impressions(out: Path, seed: int, given: argparse.Namespace) -> None:
    """Findings and impressions: a seed's training patients for each site, the same held-out ones for all."""
    lines = given.impressions.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["impression"] and row["findings"]]
    usable = [row for row in rows if len(row["findings"].split()) >= FEWEST_WORDS]
    random.Random(0).shuffle(usable)
    held_out, others = usable[: given.test_rows], usable[given.test_rows :]
    random.Random(seed).shuffle(others)
    for number, name in enumerate(SITES[: given.sites]):
        _write_summaries(out / f"train-{seed}" / name, others[number :: given.sites][: given.patients])
        _write_summaries(out / "test" / name, held_out)


def _write_summaries(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as file:
        for row in rows:
            text = {"findings": row["findings"], "impression": row["impression"]}
            file.write(json.dumps({"id": row["uid"], "patient_id": row["uid"], **text}) + "\n")


def cohort(folder: Path, split: str, kind: str = "notes_jsonl") -> CohortConfig:
    """All records of a folder in one split."""
    shares = SplitConfig.model_validate({name: float(name == split) for name in ("train", "val", "test")})
    return CohortConfig(format=kind, root=folder, split=shares)


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
    real = given.impressions is not None
    job = read_job(Path("ddcs_summary" if real else "fed_medlora"))
    kind = "summaries_jsonl" if real else "notes_jsonl"
    backbone = BackboneConfig(folder=stored_model(given.model)) if given.model else BackboneConfig()
    base = {"preset": "instruct"} if given.model else dict(job.settings)
    settings: dict[str, Any] = base | {
        "eval_batch": 96,
        "sharing": "freeze_a",
        "lora": {"rank": 4, "lora_alpha": 16, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
        "optimiser": {"batch": given.batch, "lr": given.lr},
        "dp": {},
    }
    return {
        name: build_learner(
            job.method,
            settings,
            SiteConfig(
                name=name,
                cohort=(
                    cohort(out / f"train-{seed}" / name, "train", kind),
                    cohort(out / "test" / name, "val", kind),
                ),
                backbone=backbone,
            ),
            seed,
        )
        for name in SITES[: given.sites]
    }


@torch.no_grad()
def right_answers(learner: Any, rows: list[Any], batch: int = 32) -> float:
    """Return the share of rows whose every answer token is the likeliest after those before it, so that
    greedy decoding writes the right answer."""
    model, right = learner.model, 0
    with model.evaluating(), autocast(model.backbone.precision, str(model.device)):
        for part in batches_by_length([row.ids for row in rows], batch):
            chosen = [rows[i] for i in part]
            ids, _ = pad_rows([row.ids for row in chosen], model.padding, model.device, left=False)
            decoder, output = model.backbone.model.get_decoder(), model.backbone.model.get_output_embeddings()
            states = decoder(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (N, T, H)
            for row, found in zip(chosen, states, strict=True):
                best = output(found[row.start - 1 : len(row.ids) - 1]).argmax(-1)  # (answer's tokens,)
                right += best.tolist() == list(row.ids[row.start :])
    return right / len(rows)


def quality(learners: dict[str, Any], state: Any, given: argparse.Namespace) -> dict[str, float]:
    """Return the means over sites of loss and right answers on held-out questions.

    Held-out findings are the same for all sites, which then have the same adapter and are one.
    """
    losses, right, count = list[float](), list[float](), given.test_rows
    for learner in list(learners.values())[: 1 if given.impressions else None]:
        learner.load_shared({key: value.clone() for key, value in state.items()})
        learner.use()
        # every k-th row, so that all notes are in it
        rows = list(learner.val_rows)[:: max(1, len(learner.val_rows) // count)][:count]
        losses.append(learner.mean_loss(rows))
        right.append(right_answers(learner, rows))
    return {"loss": statistics.fmean(losses), "right": statistics.fmean(right)}


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
    for name, learner in learners.items():
        learner.patients = rows[name]
    noise = dp.noise_multiplier if dp and dp.noise_multiplier > 1e-6 else 0.0
    return quality(learners, state, given) | {"noise": noise, "step_seconds": seconds}


KEYS = (("loss", 1, 4), ("right", 100, 1))


def _spread(values: list[float], digits: int) -> str:
    """Return the mean with its 95 % t-interval over seeds; the value alone of one seed."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    half = stats.t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean} ± {half:.{digits}f}"


def share_kept(results: dict[str, dict[str, Any]], arm: str, seed: str) -> float:
    """Return what an arm gains in loss over the start, as a share of what ordinary training gains; nan
    where that was not run."""
    if f"plain:{seed}" not in results:
        return float("nan")
    start, plain, here = (results[f"{name}:{seed}"]["loss"] for name in ("start", "plain", arm))
    return float((start - here) / (start - plain))


def table(results: dict[str, dict[str, Any]], seeds: list[str]) -> str:
    """Return the table in Markdown: means and intervals over seeds."""
    lines = [
        "| arm | noise multiplier | loss per token | share of the gain in loss kept | right answers, % | "
        "CPU s a step |",
        "|---|---|---|---|---|---|",
    ]
    for arm in ("start", *ARMS):
        found = [results[f"{arm}:{seed}"] for seed in seeds if f"{arm}:{seed}" in results]
        if not found:
            continue
        loss, right = (_spread([one[key] * scale for one in found], digits) for key, scale, digits in KEYS)
        noise = f"{found[0]['noise']:.2f}" if found[0]["noise"] else "none"
        kept = _spread([share_kept(results, arm, seed) for seed in seeds if f"{arm}:{seed}" in results], 2)
        seconds = statistics.fmean(one["step_seconds"] for one in found)
        title = TITLES.get(arm, "before training")
        lines.append(
            f"| {title} | {noise} | {loss} | {kept} | {right} | {f'{seconds:.2f}' if seconds else ''} |"
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
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--batch", type=int, default=30, help="mean number of patients in a step")
    parser.add_argument("--records", type=int, default=2, help="most questions of a patient in a step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help="steps of a site in a round")
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--impressions", type=Path, help="real findings with impressions, JSON lines")
    parser.add_argument("--model", help="of `medflare models`; the embedded one without")
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
        if given.impressions is None:
            write_cohorts(given.out / "cohorts", int(seed), given.patients, given.test)
        else:
            write_impressions(given.out / "cohorts", int(seed), given)
        learners = learners_of(given.out / "cohorts", int(seed), given)
        start = next(iter(learners.values())).initial_shared()
        before = quality(learners, start, given)
        results[f"start:{seed}"] = before | {"noise": 0.0, "step_seconds": 0.0}
        for arm in missing:
            results[f"{arm}:{seed}"] = run_unit(learners, start, arm, int(seed), given)
            file.write_text(json.dumps(results, indent=1) + "\n")
            print(arm, seed, results[f"{arm}:{seed}"], flush=True)
    (given.out / "table.md").write_text(table(results, seeds))
    print(table(results, seeds))


if __name__ == "__main__":
    main()
