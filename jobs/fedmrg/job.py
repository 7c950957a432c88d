# SPDX-License-Identifier: Apache-2.0
"""FedMRG as a FLARE job: generates exactly this folder, or runs it.

python jobs/fedmrg/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/fedmrg/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.federation.job_main import main
from medflare.federation.recipes import Job

JOB = Job(
    title="fedmrg",
    method="fedmrg",
    n_clients=3,
    controller={"num_rounds": 5},
    settings={"preset": "recommended"},
)

if __name__ == "__main__":
    sys.exit(main(JOB))
