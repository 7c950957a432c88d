# SPDX-License-Identifier: Apache-2.0
"""CT2RepLong as a FLARE job: generates exactly this folder, or runs it.

python jobs/ct2replong/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/ct2replong/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="ct2replong",
    method="ct2replong",
    n_clients=3,
    controller={"num_rounds": 5},
    settings={
        "preset": "recommended",
        # For pictures in place of volumes and a small model. `--set preset=paper` is the published shape.
        "model": {"encoder": {"image_size": 96, "slices": 2, "patch": 16, "slice_patch": 1}},
        "optimiser": {"batch": 16, "lr": 2e-3, "warmup": 0.05},
        "local_epochs": 1,
        "decoding": {"beams": 1, "max_new_tokens": 110},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
