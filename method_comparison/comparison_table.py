# SPDX-License-Identifier: Apache-2.0
"""One table of methods: mean over seeds with an interval, and the difference to a reference (ST-1 to ST-3).

Intervals resample seeds and, within a draw, patients. Differences are paired by seed; a star stands where a
t test over five seeds or more, corrected by Holm for all comparisons of the table, gives p < 0.05.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from medflare.core.run_record import Estimate
from medflare.evaluation.seed_tests import SeedDifference, difference_between_seeds, significant
from medflare.evaluation.statistics import Statistic, bootstrap, over_seeds

Groups = Sequence[Hashable]


@dataclass(frozen=True)
class Run:
    """Scores of one method with one training seed.

    Attributes:
        scores: metric -> what every study adds to it; a metric that was not measured is left out.
        groups: the patient of each study.
    """

    scores: Mapping[str, Statistic]
    groups: Groups | Mapping[str, Groups]

    def groups_of(self, metric: str) -> Groups:
        """The patient of each row of a metric."""
        return self.groups[metric] if isinstance(self.groups, Mapping) else self.groups


Systems = Mapping[str, Sequence[Run]]


def comparison_table(
    systems: Systems,
    titles: Mapping[str, str],
    columns: Mapping[str, str],
    against: Mapping[str, str],
    untested: Sequence[str] = (),
) -> tuple[str, dict[str, Any]]:
    """Markdown and facts of one table.

    Args:
        systems: method -> its runs, one for each seed, in the same order of seeds.
        columns: metric -> heading.
        against: method -> the method that it is compared with; others are compared with none.
        untested: metrics of which no difference is given.
    """
    gaps = differences(systems, columns, {n: other for n, other in against.items() if n != other}, untested)
    marked = significant(gaps)
    lines = ["| | " + " | ".join(columns.values()) + " |", "|---|" + "---:|" * len(columns)]
    facts: dict[str, Any] = {}
    for name, runs in systems.items():
        cells, facts[name] = [titles[name]], {}
        for metric in columns:
            mine = [run.scores[metric] for run in runs if metric in run.scores]
            if not mine or len(mine) < len(runs):
                cells.append("-")
                continue
            found = interval(mine, runs[0].groups_of(metric))
            low, high = found.interval or (math.nan, math.nan)
            text = f"{100 * found.value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
            facts[name][metric] = {"seeds": [run.value for run in mine], **found.model_dump()}
            gap = gaps.get((name, metric))
            if gap is not None:
                star = "*" if (name, metric) in marked else ""
                text += f" ({100 * gap.value:+.1f}{star})"
                facts[name][metric][f"minus_{against[name]}"] = asdict(gap)
            cells.append(text)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines), facts


def interval(runs: Sequence[Statistic], groups: Groups) -> Estimate:
    """Return the mean over seeds with its interval: BCa for few patients and one seed (ST-1)."""
    if len(runs) == 1:
        return bootstrap({"": runs[0]}, groups=groups)[""]
    return over_seeds(runs, groups=groups)


def differences(
    systems: Systems, columns: Mapping[str, str], against: Mapping[str, str], untested: Sequence[str]
) -> dict[tuple[str, str], SeedDifference]:
    """(method, metric) -> its score minus that of the method it is compared with, on the same studies."""
    gaps = {}
    for name, other in against.items():
        for metric in columns:
            if metric in untested or name not in systems or other not in systems:
                continue
            mine, theirs = (
                [run.scores[metric] for run in systems[which] if metric in run.scores]
                for which in (name, other)
            )
            if len(mine) == len(theirs) > 0 and len(mine[0]) == len(theirs[0]):
                gaps[name, metric] = difference_between_seeds(
                    [item.value for item in mine], [item.value for item in theirs]
                )
    return gaps
