# SPDX-License-Identifier: Apache-2.0
"""DCL as a FLARE job: generates exactly this folder, or runs it.

python jobs/dcl/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/dcl/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="dcl",
    method="dcl",
    n_clients=3,
    controller={"num_rounds": 5},
    settings={
        "preset": "recommended",
        # For a small model from random words. `--set preset=paper` is the published shape and training.
        "optimiser": {"batch": 16, "lr": 1e-3, "warmup": 0.05},
        "local_epochs": 3,
        "decoding": {"beams": 1, "max_new_tokens": 110},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
