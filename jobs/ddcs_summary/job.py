# SPDX-License-Identifier: Apache-2.0
"""Findings to impression by DDCS as a FLARE job: the job ddcs_qa with summaries in place of questions.

python jobs/ddcs_summary/job.py --n_clients 6 --num_rounds 10 --sites site.yaml
python jobs/ddcs_summary/job.py --export --export-dir jobs
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from medflare.recipes.job_main import main
from medflare.recipes.job_reader import read_job

QUESTIONS = read_job(Path(__file__).parents[1] / "ddcs_qa")
JOB = replace(
    QUESTIONS,
    title="ddcs_summary",
    method="summarisation",
    settings=QUESTIONS.settings | {"eval_limit": 8, "writing": {"beams": 1, "max_new_tokens": 60}},
)

if __name__ == "__main__":
    sys.exit(main(JOB))
