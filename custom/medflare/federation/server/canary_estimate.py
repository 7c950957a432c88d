# SPDX-License-Identifier: Apache-2.0
"""Estimate of a round from the canary's one step: seconds at each site, against the deadline, and memory.

A first step also loads what later ones have, so a round takes at most about this long. Hence two limits: past
the deadline there is a warning; past twice the deadline a site would train for hours and count for nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from medflare.core.metrics import as_metric
from medflare.core.plan import RoundPlan
from medflare.in_process.clocked_loop import Workload

FULL = 0.9
"""Share of a machine's memory from which a longer batch may be too much."""
HOPELESS = 2.0
"""Times the deadline from which a site cannot be done in time, warm or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEstimate:
    """One site's round, by its step in the canary.

    Attributes:
        steps: of a round; seconds: of training them.
        peak_gb: memory of the worker at most; memory_share: of what was free for it and its own. Both None
            where the site's policy keeps its metrics.
    """

    steps: int
    seconds_per_step: float
    seconds: float
    peak_gb: float | None = None
    memory_share: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers for the record, without those that are not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def estimate_round(
    facts: Mapping[str, Any], plan: RoundPlan, work: Workload, examples: int
) -> RoundEstimate | None:
    """Return the estimate for a site; None where its reply names no seconds.

    Args:
        facts: of its reply in the canary.
        plan: of a round of the run; work: what a round costs a site, of so many training examples.
    """
    metrics = facts.get("metrics") or {}
    per_step = as_metric(metrics.get("seconds", facts.get("seconds")))
    if not math.isfinite(per_step) or per_step < 0:
        return None
    steps = max(1, math.ceil(work.examples(plan, examples) / min(work.batch, max(examples, 1))))
    known = {name: as_metric(metrics[name]) for name in ("peak_gb", "memory_share") if name in metrics}
    finite = {name: value for name, value in known.items() if math.isfinite(value)}
    return RoundEstimate(
        steps=steps, seconds_per_step=round(per_step, 3), seconds=round(steps * per_step, 1), **finite
    )


def too_slow(estimates: Mapping[str, RoundEstimate], deadline: float, times: float = 1.0) -> dict[str, str]:
    """Return site -> why it would miss the deadline, of those whose round takes longer than `times` of it."""
    return {
        site: f"{site} needs about {found.seconds:,.0f} s for the {found.steps:,} steps of a round "
        f"({found.seconds_per_step:.2f} s a step)"
        for site, found in sorted(estimates.items())
        if found.seconds > times * deadline
    }


def advice(slow: Mapping[str, str], estimates: Mapping[str, RoundEstimate], deadline: float) -> str:
    """Return what was found of slow sites, what was expected, and what to set."""
    longest = max(estimates[site].seconds for site in slow)
    steps = max(1, min(int(deadline / max(estimates[site].seconds_per_step, 1e-9)) for site in slow))
    return (
        f"{'; '.join(slow.values())}, and the deadline is {deadline:,.0f} s. Set "
        f"deadline={1.5 * longest:.0f}, or fewer steps a round: steps={steps} (with more rounds), or a "
        "fraction of the examples; or let these sites use more threads, a GPU, or a smaller model."
    )


def too_full(estimates: Mapping[str, RoundEstimate]) -> str:
    """Return which sites are near the end of their memory and what to set, or ''."""
    full = [
        f"{site} used {found.peak_gb or 0:.1f} GB, {found.memory_share:.0%} of what it has"
        for site, found in sorted(estimates.items())
        if found.memory_share is not None and found.memory_share > FULL
    ]
    return (
        f"{'; '.join(full)}: a longer batch may not fit. Set a smaller batch or max_tokens, gradient "
        "checkpointing, or precision bf16, int8 or nf4 in site.yaml."
        if full
        else ""
    )
