# SPDX-License-Identifier: Apache-2.0
"""Clients chosen in a simulated federation, and their cost: a table, and the picture of the docs.

    python benchmarks/client_selection.py [--sites 20] [--draws 5] [--hours 24] [--seeds 3]
    python benchmarks/client_selection.py --picture FILE, or --solve

Hospitals belong to four specialties, whose graphs overlap more within than between; latencies come from
profiles and a simulated clock, and every way of selection gets the same hours. The model is a toy: a vector
that each hospital pulls towards an optimum of its own, with noise; the target is a distance from the optimum
of all data of a fifth of the first one. It shows seconds and variance, and nothing of what unlike data do to
a language model.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, get_args

import numpy as np

from medflare.core.data_order import derived_seed
from medflare.core.sketch import Sketch
from medflare.knowledge.minhash import Sketcher
from medflare.knowledge.sketch_key import SECRET, SketchKey
from medflare.knowledge.triples import Triple
from medflare.selection.baselines import FedCSSelector, ImportanceSelector, UniformSelector
from medflare.selection.clock import SimulatedClock, drawn_profiles, seconds_to_target
from medflare.selection.objective import Matrix, divergence, expected_slowest
from medflare.selection.optimiser import extreme_points, solve
from medflare.selection.problem import PairsOf, Problem
from medflare.selection.sampling import data_shares
from medflare.selection.selectors import DdcsSelector, Selector, SiteStatistics

WIDTH, BYTES = 20, 80_000_000
GROUPS = 4
TARGET = 0.2


class Hospitals:
    """A simulated federation."""

    def __init__(self, size: int, seed: int) -> None:
        random = np.random.default_rng(derived_seed("hospitals", seed))
        self.sites = [f"hospital-{i:03d}" for i in range(size)]
        sizes = np.exp(5.5 + 0.6 * random.standard_normal(size)).astype(int).tolist()
        self.examples = dict(zip(self.sites, sizes, strict=True))
        self.shares = data_shares(self.examples, self.sites)
        self.clock = SimulatedClock(drawn_profiles(self.sites, seed), seed)
        centres = random.standard_normal((GROUPS, WIDTH))
        self.optima = {
            site: centres[i % GROUPS] + 0.3 * random.standard_normal(WIDTH)
            for i, site in enumerate(self.sites)
        }
        self.optimum = sum((self.shares[site] * own for site, own in self.optima.items()), np.zeros(WIDTH))
        sketcher = Sketcher(SketchKey(bytes(SECRET), "benchmark"))
        self.sketches = {
            site: self._sketch(sketcher, i % GROUPS, random) for i, site in enumerate(self.sites)
        }

    @staticmethod
    def _sketch(sketcher: Sketcher, group: int, random: np.random.Generator) -> Sketch:
        common = random.choice(300, 150, replace=False)
        own = 1000 + 300 * group + random.choice(300, 150, replace=False)
        return sketcher.sketch({Triple("x", "y", str(i)): 1.0 for i in [*common.tolist(), *own.tolist()]})

    def problem(self, **more: Any) -> Problem:
        """With the latencies of the profiles, as if long observed."""
        known = SiteStatistics(sketches=self.sketches)
        for number in range(5):
            for site in self.sites:
                timing = self.clock.timing(site, number, self.examples[site], BYTES, BYTES)
                assert timing is not None
                known.latencies.observe(site, timing)
        return DdcsSelector(**more).problem(self.shares, known)


def seconds_to_solve(size: int, **more: Any) -> float:
    """Processor seconds of one solution for so many hospitals."""
    problem = Hospitals(size, 0).problem(**more)
    started = time.process_time()
    solve(problem)
    return time.process_time() - started


def solving(size: int) -> None:
    """Seconds that the probabilities of one period take, with both readings of ε, without and with a cap."""
    for pairs_of in get_args(PairsOf):
        for cap in (None, 2.0):
            seconds = seconds_to_solve(size, pairs_of=pairs_of, most_variance=cap)
            print(f"{size} sites, pairs of {pairs_of}, most_variance {cap}: {seconds:.3f} s")


def run(hospitals: Hospitals, selector: Selector, hours: float, seed: int) -> dict[str, float]:
    """One run's numbers."""
    clock = SimulatedClock(hospitals.clock.profiles, seed)
    known, random = (
        SiteStatistics(sketches=hospitals.sketches),
        np.random.default_rng(derived_seed("run", seed)),
    )
    theta, curve, different, waited = np.zeros(WIDTH), list[tuple[float, float]](), list[int](), 0
    first = float(np.linalg.norm(hospitals.optimum))
    for number in count():
        if clock.now > 3600 * hours:
            break
        draw = selector.choose(number, hospitals.shares, known, random)
        timings = {s: clock.timing(s, number, hospitals.examples[s], BYTES, BYTES) for s in draw.sites}
        clock.advance(timings)
        rate, step = 0.5 / (1 + number / 20), np.zeros(WIDTH)
        for site, timing in timings.items():
            assert timing is not None
            known.latencies.observe(site, timing)
            delta = rate * (hospitals.optima[site] - theta + 0.3 * random.standard_normal(WIDTH))
            known.norms[site] = float(np.linalg.norm(delta))
            step += draw.weights[site] * delta
        theta = theta + step
        known.staleness = {
            s: 0 if s in draw.counts else known.staleness.get(s, 0) + 1 for s in hospitals.sites
        }
        waited, different = max(waited, *known.staleness.values()), [*different, len(draw.counts)]
        curve.append((clock.now, -float(np.linalg.norm(theta - hospitals.optimum)) / first))
    reached = seconds_to_target(curve, -TARGET)
    return {
        "minutes a round": clock.now / len(curve) / 60,
        "sites a round": float(np.mean(different)),
        "longest wait": float(waited),
        "error at the end": -curve[-1][1],
        "hours to target": np.nan if reached is None else reached / 3600,
    }


def selectors(hospitals: Hospitals, draws: int) -> dict[str, Callable[[], Selector]]:
    times = np.sort(hospitals.problem().latencies)
    return {
        "uniform": lambda: UniformSelector(draws=draws),
        "importance": lambda: ImportanceSelector(draws=draws),
        "FedCS": lambda: FedCSSelector(deadline=1.3 * float(times[len(times) // 2])),
        "DDCS": lambda: DdcsSelector(draws=draws),
        "DDCS, V = 2": lambda: DdcsSelector(draws=draws, most_variance=2.0),
        "DDCS, φ = 1": lambda: DdcsSelector(draws=draws, floor=1.0),
    }


def table(sites: int, draws: int, hours: float, seeds: int) -> None:
    """Means and standard deviations over seeds, in Markdown."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in range(seeds):
        hospitals = Hospitals(sites, seed)
        for name, make in selectors(hospitals, draws).items():
            found.setdefault(name, []).append(run(hospitals, make(), hours, seed))
    heads = list(next(iter(found.values()))[0])
    print(f"| selection | {' | '.join(heads)} |\n|{' --- |' * (len(heads) + 1)}")
    for name, runs in found.items():
        cells = []
        for head in heads:
            values = np.array([one[head] for one in runs])
            there = values[~np.isnan(values)]
            missed = f" ({len(values) - len(there)} never)" if len(there) < len(values) else ""
            cells.append((f"{there.mean():.2f} ± {there.std():.2f}" if len(there) else "") + missed)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def picture(file: Path, draws: int) -> None:
    """Two panels: who is drawn, and time against divergence."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.fonttype"], matplotlib.rcParams["svg.hashsalt"] = "none", "medflare"
    import matplotlib.pyplot as plt

    hospitals = Hospitals(12, 1)
    problem, tight = hospitals.problem(draws=draws), hospitals.problem(draws=draws, most_variance=2.0)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 4.2), layout="constrained")
    order = np.argsort(problem.latencies)
    left.bar(range(12), problem.latencies[order] / 60, color="#d0d4da", label="minutes a round, t")
    left.set_xlabel("hospitals, fastest first")
    left.set_ylabel("minutes")
    odds = left.twinx()
    for q, name, mark in (
        (problem.shares, "q = d, share of the data", "o"),
        (solve(problem).q, "DDCS", "D"),
        (solve(tight).q, "DDCS, variance at most 2", "^"),
        (problem.floor * problem.shares, "floor φ d", "_"),
    ):
        odds.plot(range(12), q[order], mark, label=name)
    odds.set_ylabel("probability of a draw")
    odds.legend(loc="upper center", fontsize=8)
    _trade(right, problem, tight)
    figure.savefig(file, metadata={"Date": None})


def _trade(axes: object, problem: Problem, tight: Problem) -> None:
    """Expected slowest against divergence: what can be had, and what is taken."""
    plot, D, n = axes, problem.metric, len(problem.sites)

    def at(q: Matrix) -> tuple[float, float]:
        return divergence(q, D), expected_slowest(q, problem.latencies, problem.draws) / 60

    random = np.random.default_rng(0)
    cloud = [
        at(problem.floor * problem.shares + (1 - problem.floor) * p)
        for p in random.dirichlet(np.ones(n) / 3, 300)
    ]
    plot.plot(*zip(*cloud, strict=True), ".", ms=2, color="#c8ccd2", label="above the floor")  # type: ignore[attr-defined]
    marks = {
        "q = d": ([problem.shares], "o"),
        "uniform": ([np.full(n, 1 / n)], "s"),
        "extreme points": (list(extreme_points(problem)), "+"),
        "fastest alone (as printed)": ([np.eye(n)[problem.latencies.argmin()]], "x"),
        "DDCS": ([solve(problem).q], "D"),
        "DDCS, variance at most 2": ([solve(tight).q], "^"),
    }
    for name, (points, mark) in marks.items():
        plot.plot(*zip(*map(at, points), strict=True), mark, ls="", label=name)  # type: ignore[attr-defined]
    plot.axvline(problem.limit, ls=":", color="grey", label="ε")  # type: ignore[attr-defined]
    plot.set_xlabel("mean distance of two draws, qᵀDq")  # type: ignore[attr-defined]
    plot.set_ylabel("expected slowest site, minutes")  # type: ignore[attr-defined]
    plot.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))  # type: ignore[attr-defined]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--sites", type=int, default=20)
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path)
    parser.add_argument(
        "--solve", action="store_true", help="processor seconds of a solution, and nothing else"
    )
    given = parser.parse_args()
    if given.picture:
        picture(given.picture, given.draws)
    elif given.solve:
        solving(given.sites)
    else:
        table(given.sites, given.draws, given.hours, given.seeds)


if __name__ == "__main__":
    main()
