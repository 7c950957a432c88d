# SPDX-License-Identifier: Apache-2.0
"""Metrics of other packages for tasks that write text: reports, visits and summaries.

A package offers a function (references, hypotheses) -> one number for each record under the group
`medflare.metrics`; the mean is reported with its interval, under the entry point's name. It is measured at
the final test of a hospital whose policy admits the package, and leaves like any other metric, if
`policy: metrics` lets it. Under masks it stays at the site: there a sum is of what all sites declared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medflare.core.errors import ConfigError
from medflare.core.plugins import find_plugin, installed_plugins
from medflare.evaluation.statistics import Statistic, mean_statistic


def plugin_statistics(
    references: Sequence[str], hypotheses: Sequence[str], known: Sequence[str]
) -> tuple[dict[str, Statistic], dict[str, str]]:
    """Return the statistics of all admitted metrics, and for each that could not be measured why.

    Args:
        known: metrics of medflare itself, whose names mean these.
    """
    statistics, skipped = dict[str, Statistic](), dict[str, str]()
    admitted = {
        plugin.name for plugin in installed_plugins() if plugin.group == "metrics" and plugin.admitted
    }
    for name in sorted(admitted - set(known)):
        try:
            statistics[name] = mean_statistic(_values(name, references, hypotheses))
        except ConfigError as error:
            skipped[name] = f"skipped: {error}"
        except Exception as error:  # code of somebody else, whose message may hold a report: it stays here
            skipped[name] = f"skipped: {name} failed with {type(error).__name__}"
    return statistics, skipped


def _values(name: str, references: Sequence[str], hypotheses: Sequence[str]) -> np.ndarray:
    """Return one finite number for each record; ConfigError where the metric gives something else."""
    measure = find_plugin("metrics", name)
    if not callable(measure):
        raise ConfigError(f"metric '{name}': what its package offers is no function.")
    values = np.asarray(measure(list(references), list(hypotheses)), dtype=np.float64)
    if values.shape != (len(references),) or not np.isfinite(values).all():
        raise ConfigError(f"metric '{name}': expected a finite number for each of {len(references)} records.")
    return values
