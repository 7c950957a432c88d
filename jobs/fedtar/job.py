# SPDX-License-Identifier: Apache-2.0
"""FedTAR as a FLARE job: generates exactly this folder, or runs it.

python jobs/fedtar/job.py --n_clients 3 --num_rounds 4 --sites site.yaml
python jobs/fedtar/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

VISITS = 4
MIXTURE = {"source": "federated", "components": 16, "least_patients": 10}

JOB = Job(
    title="fedtar",
    method="fedtar",
    workflow="temporal",
    n_clients=3,
    controller={
        "num_rounds": 4,
        "visits": VISITS,
        "steps": 10,
        "mixture": MIXTURE,
        "uplink": "float32",
        "downlink": "float32",  # a visit's step is smaller than bf16's spacing at the weights
    },
    # `softmax` and 1e-4 are the paper's: a step of 1/T each visit, and no α moves in a few rounds.
    aggregation={
        "rule": "temporal",
        "rule_settings": {"visits": VISITS, "alpha_mode": "sigmoid", "start": 0.9, "lr": 1e-2},
    },
    settings={
        "preset": "recommended",
        "visits": VISITS,
        "mixture": MIXTURE,
        # The embedded models' own sizes and rates; preset `paper` and a folder of your own for the paper's.
        "model": {
            "encoder": {"name": "small", "weights": "embedded", "image_size": 96, "token_grid": 4},
            "lora": {
                "rank": 16,
                "lora_alpha": 32,
                "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            },
        },
        "patient": {"rank": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]},
        "batch": 16,
        "lr": 3e-3,
        "warmup": 0.05,
        "decoding": {
            "beams": 1,
            "max_new_tokens": 110,
            "min_new_tokens": 0,
            "repetition_penalty": 1.0,
            "length_penalty": 1.0,
        },
        "eval_batch": 32,
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
