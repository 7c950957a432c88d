# SPDX-License-Identifier: Apache-2.0
"""Findings to impression by DDCS as a FLARE job: generates exactly this folder, or runs it.

python jobs/ddcs_summary/job.py --n_clients 6 --num_rounds 10 --sites site.yaml
python jobs/ddcs_summary/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.federation.job_main import main
from medflare.federation.recipes import Job

# Simulated hospitals, fast and slow ones: seconds of computing for an example, megabits per second. Without
# this entry (--set latency_profiles={}) the seconds are those that the sites take.
PROFILES = {
    "site-1": {"seconds_per_example": 0.15, "down": 200.0, "up": 100.0, "jitter": 0.1},
    "site-2": {"seconds_per_example": 0.3, "down": 100.0, "up": 40.0, "jitter": 0.1},
    "site-3": {"seconds_per_example": 0.5, "down": 100.0, "up": 20.0, "jitter": 0.1},
    "site-4": {"seconds_per_example": 0.5, "down": 50.0, "up": 10.0, "jitter": 0.1},
    "site-5": {"seconds_per_example": 1.0, "down": 50.0, "up": 10.0, "jitter": 0.1},
    "site-6": {"seconds_per_example": 2.5, "down": 20.0, "up": 4.0, "jitter": 0.1},
}

JOB = Job(
    title="ddcs_summary",
    method="summarisation",
    n_clients=6,
    controller={
        "num_rounds": 10,
        "latency_profiles": PROFILES,
    },
    aggregation={"rule": "ddcs", "rule_settings": {"draws": 3, "most_variance": 2.0}},
    settings={
        # The embedded notes decoder's own rate and batch. For a real backbone leave `optimiser`, `lora` and
        # `max_tokens` out, or take preset `paper`.
        "optimiser": {"batch": 8, "lr": 5e-3},
        "lora": {
            "rank": 16,
            "lora_alpha": 64,
            "targets": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
            "dropout": 0.0,
        },
        "max_tokens": 400,
        "eval_batch": 32,
        "eval_limit": 8,
        "writing": {"beams": 1, "max_new_tokens": 60},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
