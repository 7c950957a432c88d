# SPDX-License-Identifier: Apache-2.0
"""FedMRG as a FLARE job: generates exactly this folder, or runs it.

python jobs/fedmrg/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/fedmrg/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main

JOB = Job(
    title="fedmrg",
    method="fedmrg",
    n_clients=3,
    controller={"num_rounds": 5, "steps": 30},
    settings={
        "preset": "recommended",
        # The embedded models' own sizes and rates. For a 7B backbone leave `model`, `lr`, `clip_value` and
        # `decoding` out: the defaults are the paper's.
        "model": {
            "encoder": {"name": "small", "weights": "embedded", "image_size": 96, "token_grid": 4},
            "lora": {
                "rank": 16,
                "lora_alpha": 32,
                "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            },
        },
        "batch": 16,
        "lr": 3e-3,
        "encoder_lr_scale": 0.02,  # at one rate for all, the pretrained encoder is lost in a few steps
        "warmup": 0.05,
        "clip_value": 1.0,
        "prompt_dropout": 0.5,  # which negatives a house mentions is its habit; see docs/results/fedmrg.md
        "decoding": {
            "beams": 1,
            "max_new_tokens": 110,
            "min_new_tokens": 0,
            "repetition_penalty": 1.0,
            "length_penalty": 1.0,
        },
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
