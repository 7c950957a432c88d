# SPDX-License-Identifier: Apache-2.0
"""One table of methods: mean over seeds with an interval, and the difference to a reference (ST-1 to ST-3).

Intervals resample seeds and, within a draw, patients. Differences are paired by seed; a star stands where a
t test over five seeds or more, corrected by Holm for all comparisons of the table, gives p < 0.05.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from medflare.core.run_record import Estimate
from medflare.evaluation.seed_tests import SeedDifference, difference_between_seeds
from medflare.evaluation.statistics import Statistic, bootstrap, over_seeds
from method_comparison.markdown_table import Column, markdown_table

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
    systems: Systems, titles: Mapping[str, str], columns: Mapping[str, Column], against: Mapping[str, str]
) -> str:
    """Return one table as Markdown.

    Args:
        systems: method -> its runs, one for each seed, in the same order of seeds.
        titles: method -> heading of its row.
        columns: metric -> its column.
        against: method -> the method that it is compared with; others are compared with none.
    """
    cells = {}
    for method, runs in systems.items():
        for metric, column in columns.items():
            mine = [run.scores[metric] for run in runs if metric in run.scores]
            if mine and len(mine) == len(runs):
                found = interval(mine, runs[0].groups_of(metric))
                edges = f" {column.interval(*found.interval)}" if found.interval else ""
                cells[method, metric] = f"{column.show(found.value)}{edges}"
    rows = {method: titles[method] for method in systems}
    return markdown_table(rows, columns, cells, differences(systems, columns, against), against)


def interval(runs: Sequence[Statistic], groups: Groups) -> Estimate:
    """Return the mean over seeds with its interval: BCa for few patients and one seed (ST-1)."""
    if len(runs) == 1:
        return bootstrap({"": runs[0]}, groups=groups)[""]
    return over_seeds(runs, groups=groups)


def differences(
    systems: Systems, columns: Mapping[str, Column], against: Mapping[str, str]
) -> dict[tuple[str, str], SeedDifference]:
    """(method, metric) -> its score minus that of the method it is compared with, on the same studies."""
    gaps = {}
    for name, other in against.items():
        for metric, column in columns.items():
            if not column.tested or name == other or name not in systems or other not in systems:
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
