# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 with Krum: the job fedvit_gpt2 with one site's update in every round.

python jobs/fedvit_gpt2_krum/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/fedvit_gpt2_krum/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from medflare.recipes.job_main import main
from medflare.recipes.job_reader import read_job

JOB = replace(
    read_job(Path(__file__).parents[1] / "fedvit_gpt2"),
    title="fedvit_gpt2_krum",
    aggregation={
        "rule": "krum",
        # The demo's three sites and the paper's four are fewer than the 2f+3 = 5 that Krum's guarantee needs,
        # and run.json says so in every round (VG-6). With five sites or more take allow_unsafe out.
        "rule_settings": {"f": 1, "allow_unsafe": True},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
