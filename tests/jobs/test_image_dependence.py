# SPDX-License-Identifier: Apache-2.0
"""A generated report depends on the image: with the images of other patients it loses its findings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from medflare.core.plan import RoundPlan
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.report_metrics import label_metrics, rule_codes
from medflare.learners.fedmrg.learner import build
from medflare.recipes.job_reader import read_job
from medflare.synthetic import DEMO_HOSPITALS, write_hospital
from medflare.tasks.reports.evaluation import draft

JOB = Path(__file__).parents[2] / "jobs/fedmrg"


def test_swapping_images_between_patients_changes_the_findings(tmp_path: Path) -> None:
    settings = read_job(JOB).settings
    write_hospital(DEMO_HOSPITALS[0], tmp_path, 300)
    site = SiteConfig.model_validate(
        {"name": "site-1", "cohort": {"format": "manifest", "root": str(tmp_path)}, "device": "cpu"}
    )
    learner = build({**settings, "variant": "without_specialised"}, site, 0)
    learner.load_shared(learner.initial_shared())
    learner.fit(RoundPlan(round=0, rounds=1, steps=45))
    learner.use_generic()
    rows = learner.samples.split_indices("test")
    texts, _ = draft(learner.model, learner.samples, rows, learner.settings.decoding, 32)
    gold = learner.samples.codes[rows].numpy()
    rule_f1 = label_metrics(gold, rule_codes(texts))["label_micro_f1"]
    swapped = [
        label_metrics(gold, rule_codes(list(np.roll(texts, shift))))["label_micro_f1"] for shift in (1, 7, 13)
    ]
    assert rule_f1 > 0.45, texts[:3]
    assert rule_f1 > max(swapped) + 0.2
    assert len(set(texts)) > len(texts) / 4
    assert torch.isfinite(learner.model.prompts).all()
