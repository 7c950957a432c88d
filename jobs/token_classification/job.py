# SPDX-License-Identifier: Apache-2.0
"""Token classification as a FLARE job: generates exactly this folder, or runs it.

python jobs/token_classification/job.py --n_clients 3 --num_rounds 3 --sites site.yaml
python jobs/token_classification/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="token_classification",
    method="token_classification",
    n_clients=3,
    controller={"num_rounds": 3},
    settings={
        # For the small encoder with random weights. A pretrained one gets the preset `recommended`: 2e-4.
        "optimiser": {"lr": 2e-3},
        "local_epochs": 10,
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
