# SPDX-License-Identifier: Apache-2.0
"""Settings of DCL, a generator with a dynamic graph, a contrast over a queue and a matching loss."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts
from medflare.learners.fedmrg.settings import PAPER_JOB, PAPER_RULES
from medflare.learners.generators.settings import GeneratorSettings
from medflare.learners.setting_types import PositiveCount
from medflare.models.generators.settings import DCLModelSettings


class DCLSettings(GeneratorSettings):
    """Everything of DCL that a job can choose."""

    variant: str = "dcl"
    model: DCLModelSettings = DCLModelSettings()
    momentum: float = Field(0.995, ge=0, lt=1, description="of the momentum networks, which stay at the site")
    queue: PositiveCount = Field(512, description="reports in the queue; 65,536 in the paper")
    soft_share: float = Field(0.4, ge=0, lt=1, description="of the momentum networks' targets, at the end")
    soft_ramp: float = Field(0.2, ge=0, le=1, description="share of the run over which it grows from 0")
    contrast: bool = Field(True, description="the contrast and matching losses; false: words alone")
    retrieval: bool = Field(True, description="statements of retrieved reports enter the graph")

    @property
    def without_effect(self) -> dict[str, str]:
        return super().without_effect | idle_if(
            (not self.contrast, "contrast is false", "momentum soft_share soft_ramp"),
            (not self.retrieval, "retrieval is false", "model.retrieved"),
            (not self.contrast and not self.retrieval, "contrast and retrieval are false", "queue"),
        )

    @model_validator(mode="after")
    def _queue_has_enough(self) -> DCLSettings:
        if self.queue < self.model.retrieved:
            raise ValueError(f"queue is {self.queue}, fewer than model.retrieved ({self.model.retrieved})")
        return self


PAPER: dict[str, Any] = {
    "model": {
        "encoder": {"name": "vit_b_16", "weights": "site", "image_size": 224},
        "width": 768,
        "layers": 12,
        "attention_heads": 12,
        "feed_forward": 3072,
        "graph_heads": 6,
        "graph_feed_forward": 1024,
        "contrast_width": 256,
    },
    "queue": 65_536,
    "max_report_tokens": 90,
    "optimiser": {
        "amsgrad": True,
        "lr": 1e-5,
        "weight_decay": 5e-5,
        "batch": 8,
        "schedule": "constant",
        "clip_norm": None,
    },
}
"""ViT-B/16 and a text network of SciBERT's shape; training as in the released code's command."""

METHOD = Method(
    name="dcl",
    task="reports",
    job_presets={"paper": PAPER_JOB},
    rule_presets={"paper": PAPER_RULES},
    settings=DCLSettings,
    presets={"recommended": {}, "paper": PAPER},
    variants={"dcl": {}, "without_contrast": {"contrast": False}, "without_retrieval": {"retrieval": False}},
    facts=MethodFacts(
        summary="DCL: images read a graph of concepts and of what similar reports state; all weights travel.",
        source="Li et al., CVPR 2023; baseline in paper 000; BL-1, BL-4, BL-5, BL-13 to BL-16",
        metrics=("loss", "loss_words", "loss_contrast", "loss_match", "steps", "seconds"),
        judged=True,
    ),
    build="medflare.learners.dcl.learner:build",
    footprint="medflare.learners.dcl.footprint:training_step",
    result_file="dcl.json",
    new_model="a new image encoder, graph and text network",
    weights_in_folder=False,
)
