# SPDX-License-Identifier: Apache-2.0
"""Settings of R2GenGPT."""

from __future__ import annotations

from typing import Any

from medflare.core.method import Method, MethodFacts
from medflare.learners.fedmrg.settings import PAPER_JOB, PAPER_RULES
from medflare.learners.generators.settings import GeneratorOptimiserSettings, GeneratorSettings
from medflare.models.generators.r2gengpt import R2GenGPTModelSettings
from medflare.models.generators.settings import LanguageModelSearchSettings


class R2GenGPTSettings(GeneratorSettings):
    """Everything of R2GenGPT that a job can choose."""

    variant: str = "r2gengpt"
    model: R2GenGPTModelSettings = R2GenGPTModelSettings()
    optimiser: GeneratorOptimiserSettings = GeneratorOptimiserSettings(lr=1e-4)
    decoding: LanguageModelSearchSettings = LanguageModelSearchSettings()


PAPER_ENCODER: dict[str, Any] = {"name": "resnet101", "weights": "site", "image_size": 224}
"""FedMRG's encoder, which it gave to every method with a language model."""

METHOD = Method(
    name="r2gengpt",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=R2GenGPTSettings,
    presets={
        "recommended": {},
        "paper": {
            "model": {"encoder": PAPER_ENCODER},
            "optimiser": {"lr": 1e-4, "weight_decay": 0.05, "clip_norm": None},
        },
    },
    variants={"r2gengpt": {}},
    facts=MethodFacts(
        summary="R2GenGPT: an image encoder and a projection learn; the language model is frozen and stays.",
        source="Wang et al., Meta-Radiology 2023; baseline in paper 000; BL-1, BL-9",
        metrics=("loss", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.r2gengpt.learner:build",
    footprint="medflare.learners.r2gengpt.footprint:training_step",
    result_file="r2gengpt.json",
)
