# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+ as a FLARE job: the job fed_medlora with influence weights at the server.

python jobs/fed_medlora_plus/job.py --n_clients 3 --num_rounds 3 --sites site.yaml
python jobs/fed_medlora_plus/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from medflare.recipes.job_main import main
from medflare.recipes.job_reader import read_job

JOB = replace(
    read_job(Path(__file__).parents[1] / "fed_medlora"),
    title="fed_medlora_plus",
    aggregation={
        "rule": "influence",
        # server: the server holds the base model and five notes (`server:` in site.yaml). client: every site
        # holds the notes (`validation:`) and scores itself; the server sees sums alone.
        "rule_settings": {"mode": "server", "temperature": 0.1, "use_data_size": True},
    },
)

if __name__ == "__main__":
    sys.exit(main(JOB))
