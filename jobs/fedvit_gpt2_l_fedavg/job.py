# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2 with L-FedAvg: the job fedvit_gpt2 with validation losses in the weights.

python jobs/fedvit_gpt2_l_fedavg/job.py --n_clients 3 --num_rounds 5 --sites site.yaml
python jobs/fedvit_gpt2_l_fedavg/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from medflare.recipes.job_main import main
from medflare.recipes.job_reader import read_job

JOB = replace(
    read_job(Path(__file__).parents[1] / "fedvit_gpt2"),
    title="fedvit_gpt2_l_fedavg",
    aggregation={
        "rule": "l_fedavg",
        # loss_weight "raw" is the paper's formula, in which omega does not mean what its table says (VG-2).
        "rule_settings": {"omega": 0.5, "loss_weight": "normalised"},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
