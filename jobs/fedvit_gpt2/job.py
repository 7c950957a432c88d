# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 as a FLARE job: generates exactly this folder, or runs it.

python jobs/fedvit_gpt2/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/fedvit_gpt2/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="fedvit_gpt2",
    method="fedvit_gpt2",
    n_clients=3,
    controller={"num_rounds": 5},
    settings={
        "preset": "recommended",
        # For a small model from random weights. For ViT-B/16 and GPT-2 from local folders leave `optimiser`
        # and `decoding` out: the defaults are the paper's (AdamW 5e-5, batch 8) and beam 4 over 128 tokens.
        "optimiser": {"batch": 8, "lr": 1e-3, "warmup": 0.05},
        "local_epochs": 3,
        "decoding": {"beams": 1, "max_new_tokens": 110},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
