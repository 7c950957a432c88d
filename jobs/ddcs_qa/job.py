# SPDX-License-Identifier: Apache-2.0
"""Medical multiple-choice questions by DDCS as a FLARE job: generates exactly this folder, or runs it.

python jobs/ddcs_qa/job.py --n_clients 6 --num_rounds 10 --sites site.yaml
python jobs/ddcs_qa/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys

from medflare.recipes.job import Job
from medflare.recipes.job_main import main
from medflare.selection.clock import DEMO_PROFILES

JOB = Job(
    title="ddcs_qa",
    method="question_answering",
    n_clients=6,
    controller={
        "num_rounds": 10,
        # Without it (--set latency_profiles={}) seconds are those that the sites take.
        "latency_profiles": DEMO_PROFILES,
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
        "eval_limit": 40,
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
