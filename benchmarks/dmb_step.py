# SPDX-License-Identifier: Apache-2.0
"""Cost of a mini-batch of FedMRG against one of plain LoRA: `python benchmarks/dmb_step.py`.

All variants run in one process on the same batches, interleaved, one thread, with the job's settings; the
table gives medians and ratios to plain LoRA of the same repetition, so that a busy machine hits all alike.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from medflare.data.settings.site import SiteConfig
from medflare.learners.fedmrg.learner import build
from medflare.recipes.job_reader import read_job
from medflare.synthetic import DEMO_HOSPITALS, write_hospital

VARIANTS: dict[str, dict[str, Any]] = {
    "plain LoRA (Fed-LoRA)": {"variant": "fed_lora"},
    "one adapter with HCP": {"variant": "without_specialised"},
    "FedMRG": {},
    "FedMRG, teacher of step 2 afresh": {"reuse_teacher": False},
    "FedMRG, encoder updated in step 1 only": {"encoder_update": "first"},
    "FedMRG without distillation": {"distil_to_generic": False, "distil_to_specialised": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    settings = read_job(Path(__file__).parents[1] / "jobs" / "fedmrg").settings | {"batch": given.batch}
    with tempfile.TemporaryDirectory() as folder:
        write_hospital(DEMO_HOSPITALS[0], Path(folder), 120)
        site = SiteConfig.model_validate(
            {"name": "site-1", "cohort": {"format": "manifest", "root": folder}, "device": "cpu"}
        )
        learners = {name: build(settings | change, site, 0) for name, change in VARIANTS.items()}
    torch.set_num_threads(1)
    times: dict[str, list[float]] = {name: [] for name in learners}
    for learner in learners.values():
        learner.load_shared(learner.initial_shared())
        learner.model.train()
    for repeat in range(given.repeats + 1):
        for name, learner in learners.items():
            rows = learner.train_rows[: given.batch]
            started = time.perf_counter()
            generator = torch.Generator().manual_seed(repeat)
            learner.training.train_batch(learner._load(rows, generator), generator)
            if repeat:
                times[name].append(time.perf_counter() - started)
    base = times["plain LoRA (Fed-LoRA)"]
    precision = learners["FedMRG"].model.backbone.precision
    print(f"batch {given.batch}, {given.repeats} repeats, backbone {precision}\n")
    print("| mini-batch of | ms, median | ratio to plain LoRA, median [min, max] |\n|---|---:|---:|")
    for name, found in times.items():
        ratios = [a / b for a, b in zip(found, base, strict=True)]
        shown = f"{statistics.median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        print(f"| {name} | {1000 * statistics.median(found):.0f} | {shown} |")


if __name__ == "__main__":
    main()
