# SPDX-License-Identifier: Apache-2.0
"""What an adapter gives away, round by round: Fed-MedLoRA on synthetic notes of three hospitals.

    python benchmarks/study_audit.py --seeds 0,1,2 --shadows 8

After 0, 1, 3 and 6 rounds of the committed job's settings every hospital attacks the global adapter: training
notes against as many held-out notes of the same hospital, one of each patient. Records of all hospitals are
pooled for the loss attack; the likelihood-ratio attack is hospital 1's, whose shadows are trained as long as
the run was. Results of finished seeds in results.json are not measured again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from medflare.aggregation import make_rule
from medflare.auditing.likelihood_ratio import likelihood_ratios
from medflare.auditing.membership import membership_attack
from medflare.auditing.shadow_adapters import copied, halves
from medflare.auditing.text_tasks import AUDITED, RecordRows, losses_of_records
from medflare.core.plan import RoundPlan
from medflare.core.run_record import Estimate
from medflare.data.cohort import Cohort
from medflare.data.settings.site import SiteConfig
from medflare.in_process.loop import federate
from medflare.learners.registry import build_learner
from medflare.models.adapters.base import GENERIC
from medflare.recipes.job_reader import read_job
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from study_privacy import cohort

SITES = ("site-1", "site-2", "site-3")
TASK = AUDITED["extraction"]


def learners_of(out: Path, seed: int, notes: int) -> dict[str, Any]:
    """Return a learner for each site with its own training and held-out notes of the same generator."""
    settings = read_job(Path(__file__).parents[1] / "jobs" / "fed_medlora").settings
    found = {}
    for house in NOTE_HOSPITALS:
        if house.name not in SITES:
            continue
        for part, number in (("train", 2 * seed + 100), ("test", 2 * seed + 101)):
            folder = out / f"{part}-{seed}" / house.name
            if not folder.is_dir():
                write_notes_hospital(house.with_seed(number), folder, notes, "jsonl")
        cohorts = tuple(cohort(out / f"{part}-{seed}" / house.name, part) for part in ("train", "test"))
        found[house.name] = build_learner(
            "fed_medlora", settings, SiteConfig(name=house.name, cohort=cohorts), seed
        )
    return found


def sides(learner: Any) -> tuple[RecordRows, RecordRows]:
    """Return a site's training and held-out notes with their rows."""
    first, second = (RecordRows.of(TASK, learner.predictor, learner.records(s)) for s in ("train", "test"))
    return first, second


def losses(learner: Any, rows: RecordRows, state: Any, adapters: tuple[str, ...] = (GENERIC,)) -> list[float]:
    """Return the loss of each note by a state."""
    learner.load_shared(copied(state))
    learner.model.adapters.use(adapters)
    return losses_of_records(learner.model, rows, 32)


def plan(number: int, rounds: int, seed: int) -> RoundPlan:
    return RoundPlan(round=number, rounds=rounds, seed=seed)


def attack(members: list[float], others: list[float]) -> dict[str, list[float | None]]:
    """Return AUC and shares recognised, each with its interval."""
    found = membership_attack(members, others)

    def ends(item: Estimate) -> list[float | None]:
        return [round(v, 4) if v is not None else None for v in (item.value, item.low, item.high)]

    return {
        "auc": ends(found.auc),
        "tpr_1": ends(found.true_positives[0.01]),
        "tpr_01": ends(found.true_positives[0.001]),
    }


def shadow_scores(learner: Any, rows: RecordRows, inside: Any, rounds: int, start: Any, seed: int) -> Any:
    """Return the scores (K, R) of shadows that were trained on the records that `inside` (K, R) says."""
    scores = []
    own = learner.cohort
    for number, chosen in enumerate(inside):
        notes = [note for note, member in zip(rows.records, chosen, strict=True) if member]
        learner.learn_from(Cohort(name="shadow", notes=[replace(note, split="train") for note in notes]))
        state = copied(start)
        for place in range(rounds):
            learner.load_shared(copied(state))
            delta = learner.fit(plan(place, rounds, seed + number)).delta
            state = {name: value + delta[name] for name, value in state.items()}
        scores.append([-loss for loss in losses(learner, rows, state)])
    learner.learn_from(own)
    return np.array(scores)


def measure(seed: int, given: argparse.Namespace) -> dict[str, Any]:
    """Return the attacks of one seed after each number of rounds."""
    learners = learners_of(given.out / "cohorts", seed, given.notes)
    start = next(iter(learners.values())).initial_shared()
    states, wanted = {0: copied(start)}, sorted(int(n) for n in given.rounds.split(","))

    def keep(number: int, state: Any, updates: Any) -> None:
        if number + 1 in wanted:
            states[number + 1] = copied(state)

    federate(
        learners,
        make_rule("weighted_mean", {}),
        wanted[-1],
        lambda r: plan(r, wanted[-1], seed),
        keep,
        state=copied(start),
    )
    rows = {name: sides(learner) for name, learner in learners.items()}
    base = {
        name: [losses(learner, side, start, ()) for side in rows[name]] for name, learner in learners.items()
    }
    result: dict[str, Any] = {}
    for number in wanted:
        gains: tuple[list[float], list[float]] = ([], [])
        for name, learner in learners.items():
            for place in (0, 1):
                adapted = losses(learner, rows[name][place], states[number])
                gains[place].extend(b - a for b, a in zip(base[name][place], adapted, strict=True))
        result[str(number)] = {"loss": attack(*gains)}
    if given.shadows:
        learner, (first, second) = learners[SITES[0]], rows[SITES[0]]
        both, cut = first.joined(second), len(first.records)
        inside = halves(both.patients, given.shadows, seed)
        for number in map(int, given.shadow_rounds.split(",")):
            shadows = shadow_scores(learner, both, inside, number, start, seed)
            observed = np.array([-loss for loss in losses(learner, both, states[number])])
            found = likelihood_ratios(observed, shadows, inside)
            for kind, scores in (("online", found.online), ("offline", found.offline)):
                result[str(number)][kind] = attack(scores[:cut].tolist(), scores[cut:].tolist())
            gain = observed + np.array(base[SITES[0]][0] + base[SITES[0]][1])
            result[str(number)]["loss, site-1"] = attack(gain[:cut].tolist(), gain[cut:].tolist())
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/audit"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--notes", type=int, default=20, help="training, and held-out, notes of a hospital")
    parser.add_argument("--rounds", default="0,1,3,6")
    parser.add_argument("--shadows", type=int, default=0, help="of hospital 1; an even number, 0 for none")
    parser.add_argument("--shadow-rounds", default="6", help="after which the shadows attack, of --rounds")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for seed in map(int, given.seeds.split(",")):
        key = f"{seed}:{given.notes}:{given.rounds}:{given.shadows}"
        if key not in results:
            results[key] = measure(seed, given)
            file.write_text(json.dumps(results, indent=1) + "\n")
        print(key, json.dumps(results[key], indent=1), flush=True)


if __name__ == "__main__":
    main()
