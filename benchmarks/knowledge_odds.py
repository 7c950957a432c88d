# SPDX-License-Identifier: Apache-2.0
"""How far knowledge graphs move the odds of DDCS: with both readings of ε, without alignment, exchanged.

    python benchmarks/knowledge_odds.py [--out studies/ddcs] [--seeds 0,1,2] [--shares 1,0.95,0.9]

The hospitals, latencies and settings of study_ddcs.py; nothing is trained. ε is a share of what q = d attains
on the same graphs. "Moved" is the total variation between the odds with the hospitals' aligned graphs and the
odds with others: names as spelled, or each hospital with another's graph. "By repeats" is the part of the
lower divergence that equal distances between all hospitals would have given too: Δ(1 − qᵀq) times their mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np

from medflare.data.load import load_cohort
from medflare.knowledge.divergence import distance_matrix
from medflare.selection.clock import SimulatedClock, drawn_profiles
from medflare.selection.objective import Matrix, Vector
from medflare.selection.optimiser import solve
from medflare.selection.problem import PairsOf, Problem, Solution
from medflare.selection.sampling import data_shares
from study_ddcs import CAP, DRAWS, MESSAGE, PARTITIONS, SECONDS_AN_EXAMPLE, cohorts, sketches_of
from study_ddcs_tables import with_interval

READINGS: tuple[PairsOf, ...] = ("draws", "sites")
HEADS = ("ε", "expected slowest, s", "Σ d²/q", "smallest ε, share", "by repeats, %", "unaligned", "exchanged")


class Federation:
    """The hospitals of one partition and seed, as the rule sees them."""

    def __init__(self, given: argparse.Namespace, partition: str, seed: int) -> None:
        sites = cohorts(given, partition, seed)
        asked = {name: load_cohort(site).questions for name, site in sites.items()}
        sizes = {name: sum(q.split == "train" for q in own) for name, own in asked.items()}
        sizes = {name: size for name, size in sizes.items() if size}
        self.names = sorted(sizes)
        shares = data_shares(sizes, self.names)
        self.shares: Vector = np.array([shares[name] for name in self.names])
        profiles = drawn_profiles(self.names, seed, seconds_per_example=SECONDS_AN_EXAMPLE)
        clock = SimulatedClock(profiles, seed)
        times = [clock.timing(name, 0, sizes[name], MESSAGE, MESSAGE) for name in self.names]
        self.latencies: Vector = np.array([time.total for time in times if time is not None])
        groups = sorted({q.group for own in asked.values() for q in own})
        self.specialties = np.array(
            [
                [
                    sum(q.group == group and q.split == "train" for q in asked[name]) / sizes[name]
                    for group in groups
                ]
                for name in self.names
            ]
        )
        self.graphs = {
            graph: distance_matrix(sketches_of(sites, graph), self.names) for graph in ("plain", "unaligned")
        }
        order = np.random.default_rng(seed).permutation(len(self.names))
        self.graphs["exchanged"] = self.graphs["plain"][np.ix_(order, order)]

    def follows(self) -> float:
        """Correlation, over pairs of hospitals, of graphs' distance with how unlike their specialties are."""
        pairs = np.triu_indices(len(self.names), 1)
        unlike = np.abs(self.specialties[:, None] - self.specialties[None]).sum(-1) / 2
        return float(np.corrcoef(self.graphs["plain"][pairs], unlike[pairs])[0, 1])

    def solved(self, graph: str, pairs_of: PairsOf, share: float) -> Solution:
        """The odds where ε is `share` of what q = d attains on `graph`."""

        def problem(epsilon: float | None) -> Problem:
            return Problem(
                sites=tuple(self.names),
                latencies=self.latencies,
                shares=self.shares,
                distances=self.graphs[graph],
                draws=DRAWS,
                epsilon=epsilon,
                most_variance=CAP,
                pairs_of=pairs_of,
            )

        return solve(problem(share * problem(None).limit))

    def facts(self, pairs_of: PairsOf, share: float) -> dict[str, float]:
        """One cell of each column."""
        own = self.solved("plain", pairs_of, share)
        D = self.graphs["plain"]
        even, binds = own.epsilon / share, pairs_of == "draws" and share < 1
        moved = {name: self.solved(name, pairs_of, share).q for name in ("unaligned", "exchanged")}
        return {
            "expected slowest, s": own.expected_slowest,
            "Σ d²/q": own.variance,
            "smallest ε, share": own.smallest_epsilon / even,
            "by repeats, %": by_repeats(own.q, self.shares, D) if binds else np.nan,
        } | {name: float(np.abs(q - own.q).sum() / 2) for name, q in moved.items()}


def by_repeats(q: Vector, d: Vector, D: Matrix) -> float:
    """Percent of dᵀDd − qᵀDq that D with all distances at their mean would give; NaN where nothing fell."""
    fell = float(d @ D @ d - q @ D @ q)
    mean = float(D.sum() / (D.size - len(D)))
    return 100 * mean * float(q @ q - d @ d) / fell if fell > 1e-3 else np.nan


def table(federations: Sequence[Federation], shares: Sequence[float]) -> list[str]:
    """Markdown rows of one partition, means over seeds."""
    lines = []
    for pairs_of, share in product(READINGS, shares):
        facts = [federation.facts(pairs_of, share) for federation in federations]
        cells = [decimals(head, [fact[head] for fact in facts]) for head in HEADS[1:]]
        lines.append(f"| {pairs_of} | {share:.2f} | {' | '.join(cells)} |")
    return lines


def decimals(head: str, values: Sequence[float]) -> str:
    if head in ("unaligned", "exchanged", "smallest ε, share", "Σ d²/q"):
        return f"{np.mean(values):.2f}"
    return with_interval(values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("studies/ddcs"), help="where the study's cohorts are"
    )
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--shares", default="1,0.95,0.9", help="of the ε that q = d attains")
    given = parser.parse_args()
    shares = [float(share) for share in given.shares.split(",")]
    for partition in PARTITIONS:
        found = [Federation(given, partition, int(seed)) for seed in given.seeds.split(",")]
        follows = ", ".join(f"{federation.follows():.2f}" for federation in found)
        print(f"**{partition}**: distances follow specialties with a correlation of {follows}\n")
        print(f"| pairs of | {' | '.join(HEADS)} |\n|---|{'---:|' * len(HEADS)}")
        print("\n".join(table(found, shares)), flush=True)


if __name__ == "__main__":
    main()
