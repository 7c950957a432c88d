# SPDX-License-Identifier: Apache-2.0
"""Epsilon by Opacus, as medflare counts it, beside dp-accounting, which needs an environment of its own.

    python -m tools.compare_accountants ours > ours.json          # in medflare's environment
    python tools/compare_accountants.py theirs ours.json          # in the other; prints the table

dp-accounting declares attrs < 24, which medflare's environment cannot have:
`pip install --no-deps "dp-accounting>=0.6.0" && pip install dm-tree attrs numpy scipy absl-py mpmath`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DELTA = 1e-5
ROWS: tuple[tuple[str, tuple[tuple[float, float, int], ...]], ...] = (
    ("noise 1, rate 0.05, 400 steps", ((1.0, 0.05, 400),)),
    ("noise 0.8, rate 0.02, 1,000 steps", ((0.8, 0.02, 1000),)),
    ("noise 4, rate 0.3, 200 steps", ((4.0, 0.3, 200),)),
    ("noise 2, every patient, 10 steps", ((2.0, 1.0, 10),)),
    ("two jobs: noise 1.2, rate 0.1, 60 steps; noise 2, rate 0.05, 300", ((1.2, 0.1, 60), (2.0, 0.05, 300))),
)
"""Title, and (noise, rate, steps) of what was done."""


def ours() -> dict[str, dict[str, float]]:
    """Return title -> accountant -> epsilon by medflare."""
    from medflare.core.patient_privacy import Mechanism
    from medflare.differential_privacy.accounting import epsilon

    done = {
        title: [Mechanism(noise=noise, rate=rate, steps=steps) for noise, rate, steps in parts]
        for title, parts in ROWS
    }
    return {
        title: {"rdp": epsilon(parts, DELTA, "rdp"), "prv": epsilon(parts, DELTA, "prv")}
        for title, parts in done.items()
    }


def theirs() -> dict[str, dict[str, float]]:
    """Return title -> accountant -> epsilon by dp-accounting."""
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant
    from dp_accounting.rdp import rdp_privacy_accountant

    found: dict[str, dict[str, float]] = {}
    for title, parts in ROWS:
        accountants: dict[str, Any] = {
            "rdp": rdp_privacy_accountant.RdpAccountant(),
            "pld": pld_privacy_accountant.PLDAccountant(),
        }
        for accountant in accountants.values():
            for noise, rate, steps in parts:
                event = dp_event.GaussianDpEvent(noise)
                if rate < 1:
                    event = dp_event.PoissonSampledDpEvent(rate, event)
                accountant.compose(event, steps)
        found[title] = {name: float(one.get_epsilon(DELTA)) for name, one in accountants.items()}
    return found


def main() -> None:
    """Print our values as JSON, or both as a table."""
    if sys.argv[1:2] == ["ours"]:
        print(json.dumps(ours(), indent=1))
        return
    before, beside = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")), theirs()
    print("| what was done | Opacus RDP | dp-accounting RDP | Opacus PRV | dp-accounting PLD |")
    print("|---|---:|---:|---:|---:|")
    for title, _ in ROWS:
        a, b = before[title], beside[title]
        print(f"| {title} | {a['rdp']:.3f} | {b['rdp']:.3f} | {a['prv']:.3f} | {b['pld']:.3f} |")


if __name__ == "__main__":
    main()
