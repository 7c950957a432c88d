# SPDX-License-Identifier: Apache-2.0
"""Settings of the Transformer and of R2Gen, which is the same with a memory at work."""

from __future__ import annotations

from typing import Any

from medflare.core.method import Method, MethodFacts
from medflare.learners.fedmrg.settings import PAPER_JOB, PAPER_RULES
from medflare.learners.generators.settings import GeneratorSettings
from medflare.models.generators.settings import TransformerSettings


class TransformerLearnerSettings(GeneratorSettings):
    """Everything of the Transformer that a job can choose."""

    variant: str = "transformer"
    model: TransformerSettings = TransformerSettings()


class R2GenSettings(GeneratorSettings):
    """Everything of R2Gen that a job can choose."""

    variant: str = "r2gen"
    model: TransformerSettings = TransformerSettings(memory="relational")


PAPER_SHAPE: dict[str, Any] = {
    "encoder": {"name": "resnet101", "weights": "site", "image_size": 224},
    "width": 512,
    "attention_heads": 8,
    "layers": 3,
    "feed_forward": 512,
}
"""ResNet-101 over 224 pixels, 49 features; 3 + 3 layers of 512 with 8 heads and d_ff 512."""
PAPER_OPTIMISER: dict[str, Any] = {
    "amsgrad": True,
    "lr": 1e-4,
    "encoder_lr_scale": 0.5,
    "weight_decay": 5e-5,
    "schedule": "constant",
    "clip_norm": None,
}
"""R2Gen's released training: Adam with AMSGrad, 5e-5 for the image encoder, 1e-4 for the rest, batch 16."""


def presets(**model: Any) -> dict[str, dict[str, Any]]:
    """Return the presets of a generator of R2Gen's family; `model` comes on top of the paper's shape."""
    return {
        "recommended": {},
        "paper": {"model": PAPER_SHAPE | model, "optimiser": PAPER_OPTIMISER},
    }


TRANSFORMER = Method(
    name="transformer",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=TransformerLearnerSettings,
    presets=presets(memory="unused"),
    variants={"transformer": {}},
    facts=MethodFacts(
        summary="Transformer: radiographs to reports by image features and a Transformer, all travels.",
        source="Chen et al., EMNLP 2020 (R2Gen's base); baseline in paper 000; BL-1 to BL-5",
        metrics=("loss", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.transformer.learner:build_transformer",
    result_file="transformer.json",
    footprint="medflare.learners.transformer.footprint:training_step",
    new_model="a new image encoder and Transformer",
    weights_in_folder=False,
)
R2GEN = Method(
    name="r2gen",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=R2GenSettings,
    presets=presets(memory="relational"),
    variants={"r2gen": {}},
    facts=MethodFacts(
        summary="R2Gen: a Transformer whose layer norms a relational memory conditions; all weights travel.",
        source="Chen et al., EMNLP 2020; baseline in paper 000; BL-1 to BL-5",
        metrics=("loss", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.transformer.learner:build_r2gen",
    result_file="r2gen.json",
    footprint="medflare.learners.transformer.footprint:training_step",
    new_model="a new image encoder and Transformer",
    weights_in_folder=False,
)
