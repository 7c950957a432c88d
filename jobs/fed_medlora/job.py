# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA as a FLARE job: generates exactly this folder, or runs it.

python jobs/fed_medlora/job.py --n_clients 3 --num_rounds 3 --sites site.yaml
python jobs/fed_medlora/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="fed_medlora",
    method="fed_medlora",
    n_clients=3,
    controller={"num_rounds": 3, "uplink": "int4", "downlink": "int8"},
    settings={
        # The embedded notes decoder's own rate and batch. For an 8B backbone leave `optimiser`, `lora` and
        # `max_tokens` out: the defaults are the paper's (AdamW 2e-4, batch 4, rank 16, a = 64, dropout 0.05).
        "optimiser": {"batch": 8, "lr": 2e-3},
        "lora": {
            "rank": 16,
            "lora_alpha": 64,
            "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            "dropout": 0.0,
        },
        "local_epochs": 1,
        "max_tokens": 400,
        "eval_batch": 64,
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
