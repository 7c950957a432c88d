# SPDX-License-Identifier: Apache-2.0
"""Cost of FedTAR beside FedAvg on the same T exchanges: `python benchmarks/fedtar_overhead.py`.

One synthetic hospital, one thread. Every variant trains the same visits in the same batches; rounds of all
variants alternate in one process, so that a busy machine hits all alike, and ratios are to FedAvg's round
before. `FLOPs` are what torch.utils.flop_counter finds in a round after the first (matrix products,
convolutions, attention, forward and backward, validation and slopes included), `bytes` those of messages as
the wire counts them. A round holds the site's training, its validation loss, slopes, the writing of what must
survive a restart, and the server's rule.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from medflare.aggregation import make_rule
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.data.settings.site import SiteConfig
from medflare.in_process.loop import FederationLoop
from medflare.in_process.temporal_loop import agree_on_mixture, visit_by_visit
from medflare.learners.fedtar.learner import FedTARLearner, build
from medflare.synthetic import DEMO_HOSPITALS
from medflare.synthetic.follow_up import write_follow_up
from medflare.wire.compression import message_bytes
from medflare.wire.files import save_tensors

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
VISITS = 4
SETTINGS: dict[str, Any] = {
    "visits": VISITS,
    "model": {
        "encoder": {"name": "small", "weights": "embedded", "image_size": 96, "token_grid": 4},
        "lora": {"rank": 16, "lora_alpha": 32, "targets": ATTENTION},
    },
    "patient": {"rank": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]},
    "batch": 8,
    "lr": 3e-3,
    "decoding": {"beams": 1, "max_new_tokens": 110, "min_new_tokens": 0, "repetition_penalty": 1.0},
    "eval_batch": 64,
}
WIDTHS = (8, 16, 64)
WIRE = "float32"


@dataclass(slots=True)
class Variant:
    """One column of what is compared, and what was measured of it."""

    title: str
    learner: FedTARLearner
    loop: FederationLoop
    kept: Path
    seconds: list[float]
    wall: list[float]
    number: int = 0

    def round(self) -> tuple[float, float]:
        """Processor and wall-clock seconds of the next T exchanges, local state written after each."""
        started, clock = time.process_time(), time.perf_counter()
        for _ in range(VISITS):
            self.loop.round(self.number)
            save_tensors(self.kept, self.learner.local_state()[0])
            self.number += 1
        return time.process_time() - started, time.perf_counter() - clock


def variants(site: SiteConfig, steps: int, kept: Path) -> Iterator[Variant]:
    """FedAvg over one visit after the other, then FedTAR without and with factors for patients."""
    plain: dict[str, Any] = {"variant": "without_personalisation"}
    yield variant("FedAvg, sequential", site, steps, plain, "fedavg", kept)
    yield variant("FedTAR w/o GMM", site, steps, plain, "temporal", kept)
    for width in WIDTHS:
        own = {"patient": SETTINGS["patient"] | {"width": width}}
        yield variant(f"FedTAR, d = {width}", site, steps, own, "temporal", kept)


def variant(
    title: str, site: SiteConfig, steps: int, own: Mapping[str, Any], rule: str, kept: Path
) -> Variant:
    learner = build(SETTINGS | dict(own), site, 0)
    if learner.patients is not None:
        agree_on_mixture({site.name: learner.patients}, learner.settings.mixture, 2, 0)

    def plan(number: int) -> RoundPlan:
        return RoundPlan(round=number, rounds=100 * VISITS, steps=steps)

    temporal = rule == "temporal"
    made = make_rule(rule, {"visits": VISITS, "lr": 1e-3} if temporal else {})
    plans = plan if temporal else visit_by_visit(plan, VISITS)
    return Variant(title, learner, FederationLoop({site.name: learner}, made, plans), kept, [], [])


def flops(found: Variant) -> int:
    """Of a round."""
    with FlopCounterMode(display=False) as counter:
        found.round()
    return int(counter.get_total_flops())


def bytes_of_round(found: Variant) -> tuple[int, int, int]:
    """(up, down, of it beside the shared state) of a site in T exchanges, without FLARE's envelopes.

    The mixture goes down in the hints of every plan, as JSON.
    """
    learner = found.learner
    state = message_bytes(learner.shared_spec(), WIRE)
    sums = message_bytes(learner.sums_spec(1), WIRE) if found.title != "FedAvg, sequential" else 0
    mixture = learner.patients.mixture if learner.patients is not None else None
    hint = len(json.dumps(RoundHints(mixture=mixture.to_hint()).to_json())) if mixture else 0
    return VISITS * (state + sums), VISITS * (state + hint), VISITS * (sums + hint)


def report(found: list[Variant]) -> None:
    """The table."""
    base, most = found[0], flops(found[0])
    first = bytes_of_round(base)
    print(
        "| | shared parameters | GFLOP a round | bytes up a round | bytes down | beside the state | "
        "processor seconds a round, ratio [min, max] | wall-clock seconds a round, ratio [min, max] |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for one in found:
        count = most if one is base else flops(one)
        up, down, beside = bytes_of_round(one)
        shared = sum(t.numel() for t in one.learner.initial_shared().values())
        cells = [
            f"{shared:,}",
            f"{count / 1e9:.1f} ({count / most:.2f})",
            f"{up:,} ({up / first[0]:.2f})",
            f"{down:,} ({down / first[1]:.2f})",
            f"{beside:,}",
            beside_base(one.seconds, base.seconds),
            beside_base(one.wall, base.wall),
        ]
        print(f"| {one.title} | " + " | ".join(cells) + " |")


def beside_base(own: list[float], base: list[float]) -> str:
    """Median seconds, and the ratios round by round."""
    ratios = [a / b for a, b in zip(own, base, strict=True)]
    middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
    return f"{statistics.median(own):.2f}, {middle:.2f} [{low:.2f}, {high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--patients", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="of each exchange")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_follow_up(DEMO_HOSPITALS[0], Path(folder), given.patients, VISITS)
        cohort = {"format": "manifest", "root": folder, "visits": {"order": "visit", "most": VISITS}}
        site = SiteConfig.model_validate({"name": "site-1", "cohort": cohort, "device": "cpu"})
        found = list(variants(site, given.steps, Path(tempfile.gettempdir()) / "fedtar_overhead.safetensors"))
    counts = {split: len(found[0].learner.rows(split)) for split in ("train", "val")}
    for one in found:
        one.round()
    for _ in range(given.rounds):
        for one in found:
            seconds, wall = one.round()
            one.seconds.append(seconds)
            one.wall.append(wall)
    print(
        f"T = {VISITS}, {given.steps} steps of {SETTINGS['batch']} in an exchange, "
        f"{counts['val']} validation visits, {given.rounds} rounds\n"
    )
    report(found)


if __name__ == "__main__":
    main()
