# SPDX-License-Identifier: Apache-2.0
"""Memory of one site's training steps beside the estimate that `medflare preflight` makes for them.

    medflare cohort make cohorts
    python benchmarks/step_memory.py jobs/fedmrg -f cohorts/site.yaml --site site-1

The learner is built in a process of its own, as a site's worker does it, takes the first state, trains, and
makes an update of it. Printed is the most memory that this process held, and how much of it are pages of
program files: those are shared by the workers of a machine, and how many count depends on its kernel. On a
GPU what its allocator held is printed too. It needs Linux.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from medflare.core.plan import RoundPlan
from medflare.data.settings.site import load_site
from medflare.in_process.temporal_loop import agree_on_mixture
from medflare.learners.fedtar.federated_em import FIRST
from medflare.learners.registry import build_learner, get_method
from medflare.wire.memory import LESS_MEMORY, peak_bytes

GB = 1e9


def main() -> None:
    """Print the estimate for a job at a site, and what a few steps of it took."""
    # a worker imports none of FLARE, and the process that trains here imports this module
    from medflare.learners.footprint import footprint
    from medflare.recipes.job_reader import read_job

    parser = argparse.ArgumentParser(description="Memory of training steps beside its estimate.")
    parser.add_argument("job", type=Path)
    parser.add_argument("-f", "--site-file", type=Path, required=True)
    parser.add_argument("--site", required=True, help="a name in the site file")
    parser.add_argument("--steps", type=int, default=6)
    given = parser.parse_args()
    job, site = read_job(given.job), load_site(given.site_file, given.site)
    need = footprint(job.method, job.settings, site)
    print("no estimate" if need is None else f"estimate {need.total / GB:.2f} GB", flush=True)
    os.environ |= LESS_MEMORY
    arguments = (job.method, job.settings, given.site_file, given.site, given.steps)
    process = multiprocessing.get_context("spawn").Process(target=train, args=arguments)
    process.start()
    process.join()
    raise SystemExit(process.exitcode)


def train(method: str, settings: dict[str, Any], site_file: Path, name: str, steps: int) -> None:
    """Train a site's learner and print the memory of this process."""
    site = load_site(site_file, name)
    torch.set_num_threads(site.threads)
    with tempfile.TemporaryDirectory() as cache:
        learner = build_learner(method, settings, site, 0, Path(cache))
        if (patients := learner.patient_profiles) is not None:
            entries = patients.profile_sums()[FIRST].shape[0]
            agree_on_mixture({name: patients}, get_method(method).resolve(settings).mixture, entries, 0)
        before = peak_bytes()
        learner.load_shared(learner.initial_shared())
        update = learner.fit(RoundPlan(round=0, rounds=1, steps=steps))
    values = sum(tensor.numel() for tensor in update.delta.values())
    peak, files = peak_bytes() / GB, _file_bytes() / GB
    print(f"peak {peak:.2f} GB, {before / GB:.2f} before it trained; pages of files {files:.2f}")
    if torch.cuda.is_available():
        print(f"held on the GPU {torch.cuda.max_memory_allocated() / GB:.2f} GB")
    print(f"an update of {values:,} values after {steps} steps")


def _file_bytes() -> int:
    """Return the bytes of this process's memory that are pages of files."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text("utf-8").splitlines())
    return int(rows["RssFile"].split()[0]) * 1024


if __name__ == "__main__":
    main()
