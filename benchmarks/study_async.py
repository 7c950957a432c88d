# SPDX-License-Identifier: Apache-2.0
"""Asynchronous rounds against synchronous ones over the same simulated time: `make study-async`.

Six synthetic hospitals answer questions as in study_ddcs.py, and all of them train all the time. A
synchronous round waits for the slowest; an asynchronous one ends with K updates. Uneven hospitals have
log-normal speeds and lines; even ones are all the same, and there nothing can be gained (the control).
Quality is the accuracy on facts of all hospitals in wordings that nobody trains on: its mean over the
simulated time, which a method that learns sooner has more of, and at the end.

Units (profiles, K, seed) run one after the other, none of them twice.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

from medflare.evaluation.seed_tests import difference_between_seeds, significant
from study_ddcs import MESSAGE, SECONDS_AN_EXAMPLE, SETTINGS, cohorts, learners_of
from study_units import DONE, timed, unit_folder

SPREADS = {"uneven": 0.8, "even": 0.0}
BUFFERS = {"sync": 0, "3": 3, "2": 2, "1": 1}
"""Row -> K; 0 for a round of all."""
HOSPITALS, PARTITION, CHECKS = 6, "dirichlet", 16


def train_unit(given: argparse.Namespace, profiles: str, row: str, seed: int, folder: Path) -> None:
    """Train one unit and write its curve: (simulated seconds, accuracy), and how old the updates were."""
    import gc

    from medflare.aggregation import make_rule
    from medflare.core.plan import RoundPlan
    from medflare.in_process.buffered_loop import federate_buffered
    from medflare.in_process.clocked_loop import Workload, federate_clocked
    from medflare.selection.clock import SimulatedClock, drawn_profiles

    learners, judge = learners_of(cohorts(given, PARTITION, seed, HOSPITALS), seed)
    gc.freeze()
    drawn = drawn_profiles(
        sorted(learners), seed, SPREADS[profiles], seconds_per_example=SECONDS_AN_EXAMPLE, jitter=0.1
    )
    clock, budget = SimulatedClock(drawn, seed), given.hours * 3600
    work = Workload(down=MESSAGE, up=MESSAGE, batch=SETTINGS["optimiser"]["batch"])
    curve, last = list[tuple[float, float]](), [0.0]

    def quality(number: int, state: Any, updates: Any) -> dict[str, float]:
        if clock.now - last[0] < budget / CHECKS and clock.now < budget:
            return {}
        last[0] = clock.now
        accuracy = judge.quality(state)["accuracy"]
        curve.append((clock.now, accuracy))
        print(f"{profiles} {row} {seed}: round {number}, {clock.now:.0f} s, {accuracy:.3f}", flush=True)
        return {}

    def plan(number: int) -> RoundPlan:
        return RoundPlan(round=number, rounds=10_000, seed=seed)

    rule, buffer = make_rule("weighted_mean", {}), BUFFERS[row]
    if buffer:
        run = federate_buffered(
            learners, rule, 10_000, plan, clock, work, buffer, on_round=quality, budget=budget
        )
    else:
        run = federate_clocked(learners, rule, 10_000, plan, clock, work, on_round=quality, budget=budget)
    facts = {
        "curve": curve,
        "rounds": len(run.rounds),
        "updates": sum(len(entry.timings) for entry in run.rounds),
    }
    (folder / "curve.json").write_text(json.dumps(facts))


def mean_over_time(curve: list[tuple[float, float]], budget: float) -> float:
    """Return the mean of a step function of time, which is 0 before its first value."""
    ends = [*(seconds for seconds, _ in curve[1:]), math.inf]
    area = sum(
        value * max(0.0, min(end, budget) - begin) for (begin, value), end in zip(curve, ends, strict=True)
    )
    return area / budget


def table(given: argparse.Namespace, seeds: list[str]) -> str:
    """Markdown of all units that are done for every seed."""
    lines = [
        "| hospitals | round | rounds | updates | mean over time | at the end |",
        "|---|---|---:|---:|---:|---:|",
    ]
    cells, gaps = {}, {}
    for profiles in SPREADS:
        for row in BUFFERS:
            files = [unit_folder(given.out, f"{profiles}-{row}", seed) / "curve.json" for seed in seeds]
            if all(file.is_file() for file in files):
                units = [json.loads(file.read_text()) for file in files]
                means = [mean_over_time(unit["curve"], given.hours * 3600) for unit in units]
                cells[profiles, row] = (
                    units,
                    {"mean": means, "end": [unit["curve"][-1][1] for unit in units]},
                )
    for (profiles, row), (_, scores) in cells.items():
        if row != "sync" and (profiles, "sync") in cells:
            for metric, values in scores.items():
                gaps[profiles, row, metric] = difference_between_seeds(
                    values, cells[profiles, "sync"][1][metric]
                )
    marked = significant(gaps)
    for (profiles, row), (units, scores) in cells.items():
        counts = [sum(unit[key] for unit in units) / len(units) for key in ("rounds", "updates")]
        found = []
        for metric, values in scores.items():
            text, gap = f"{100 * sum(values) / len(values):.1f}", gaps.get((profiles, row, metric))
            if gap is not None:
                star = "*" if (profiles, row, metric) in marked else ""
                interval = "" if gap.low is None else f" [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"  # type: ignore[operator]
                text += f" ({100 * gap.value:+.1f}{star}{interval})"
            found.append(text)
        title = "of all" if row == "sync" else f"of {row}"
        lines.append(
            f"| {profiles} | {title} | {counts[0]:.0f} | {counts[1]:.0f} | " + " | ".join(found) + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    import torch

    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("studies/async"))
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--profiles", default=",".join(SPREADS))
    parser.add_argument("--rows", default=",".join(BUFFERS))
    parser.add_argument("--hours", type=float, default=3.0, help="simulated, of a run")
    given = parser.parse_args()
    seeds = given.seeds.split(",")
    for seed in seeds:
        for profiles in given.profiles.split(","):
            for row in given.rows.split(","):
                folder = unit_folder(given.out, f"{profiles}-{row}", seed)
                if not (folder / DONE).is_file():
                    folder.mkdir(parents=True, exist_ok=True)
                    unit = (given, profiles, row, int(seed), folder)
                    timed(folder, lambda unit=unit: train_unit(*unit))  # type: ignore[misc]
    found = table(given, seeds)
    (given.out / "table.md").write_text(found, encoding="utf-8")
    print(found)


if __name__ == "__main__":
    main()
