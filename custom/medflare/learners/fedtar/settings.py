# SPDX-License-Identifier: Apache-2.0
"""FedTAR's settings."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from medflare.core.config import Settings
from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts, MethodSettings
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.learners.fedtar.profile import ProfileSettings
from medflare.learners.setting_types import (
    BatchSize,
    ClipNorm,
    EvaluationBatch,
    LearningRate,
    NotNegative,
    Passes,
    PositiveCount,
    Rate,
    ReportTokens,
    Share,
    WeightDecay,
)
from medflare.models.adapters.lora import ALL_PROJECTIONS, LoraSettings
from medflare.models.longitudinal_generator import LongitudinalSettings
from medflare.models.patient_adapter import PatientAdapterSettings
from medflare.models.report_generator import SHORT_REPORTS, DecodingSettings, ModelSettings


class FedTARSettings(MethodSettings):
    """Everything of FedTAR at a site that a job can choose; α and its rate are the rule's."""

    facts_of_the_run: ClassVar[tuple[str, ...]] = ("visits", "mixture")
    variant: str = "fedtar"
    visits: PositiveCount = Field(5, description="T; later visits of a site are not used")
    model: ModelSettings = ModelSettings(prompts=False, lora=LoraSettings(rank=4, lora_alpha=128))
    decoding: DecodingSettings = DecodingSettings()

    # -- who the patient is --
    personal: bool = Field(
        default=True, description="factors made for each patient; false: Table 2's 'w/o GMM'"
    )
    patient: PatientAdapterSettings = PatientAdapterSettings()
    profile: ProfileSettings = ProfileSettings()
    mixture: MixtureSettings = MixtureSettings()

    # -- what is seen and what learns --
    prior_context: bool = Field(default=False, description="the report before stands in the prefix (TAR-14)")
    max_prior_tokens: PositiveCount = Field(100, description="most tokens of the report before")
    visit_context: bool = Field(
        default=False, description="the prefix says whether it is a patient's first visit (TAR-14)"
    )
    train_backbone: bool = Field(
        default=False, description="encoder and decoder learn and are sent too (TAR-7)"
    )

    # -- training of one exchange --
    lr: LearningRate = 1e-5
    patient_lr_scale: Rate = Field(1.0, description="the patient adapter's rate is lr times this")
    schedule: Literal["cosine", "constant"] = Field(
        default="cosine", description="over all exchanges of the run"
    )
    warmup: Share = Field(0.0, description="share of all exchanges with a rising rate")
    weight_decay: WeightDecay = 0.01
    keep_moments: bool = Field(
        default=True, description="AdamW's moments outlive an exchange, at the site; false: anew (TAR-19)"
    )
    clip: ClipNorm = 1.0
    batch: BatchSize = 4
    local_epochs: Passes = Field(1, description="E, unless the job says steps or fraction")
    max_report_tokens: ReportTokens = 128
    rotation: NotNegative = Field(5.0, description="degrees, of pictures of an encoder that learns")
    eval_batch: EvaluationBatch = 16
    eval_limit: NonNegativeInt | None = Field(
        default=32, description="validation visits drafted after a round; null for all"
    )

    @property
    def classification(self) -> bool:
        """No diagnosis is named before the report is written."""
        return False

    @property
    def without_effect(self) -> dict[str, str]:
        return idle_if(
            (not self.personal, "personal is false", "patient profile mixture patient_lr_scale"),
            (not self.prior_context, "prior_context is false", "max_prior_tokens"),
            (not self.train_backbone, "train_backbone is false", "rotation"),
        )

    @property
    def passes(self) -> int:
        return self.local_epochs

    @property
    def learning_rate(self) -> float:
        return self.lr

    @property
    def peft_method(self) -> str:
        """Return which adapter is communicated."""
        return self.model.peft.method

    @property
    def visit_count(self) -> int | None:
        return self.visits

    def mixture_problem(self, configured: Settings | None) -> str | None:
        if not self.personal:
            if configured is not None:
                return (
                    "the controller's `mixture` is to be fitted, and with settings.personal false nobody "
                    "asks for it. Set mixture to null."
                )
        elif configured is None and self.mixture.source == "federated":
            return (
                "the method makes factors for each patient from a mixture that sites agree on before round "
                "1, and no `mixture` stands in the controller's settings. Use workflow 'temporal' with the "
                "same `mixture` there, or settings.personal false, or another settings.mixture.source."
            )
        elif configured is not None and configured != self.mixture:
            return (
                f"settings.mixture is {self.mixture.model_dump()}, and the controller's `mixture` is "
                f"{configured.model_dump()}. Give both the same."
            )
        return None

    @property
    def generator(self) -> LongitudinalSettings:
        """The model these settings stand for."""
        return LongitudinalSettings(
            model=self.model,
            patient=self.patient if self.personal else None,
            components=self.mixture.components,
            prior_context=self.prior_context,
            max_prior_tokens=self.max_prior_tokens,
            visit_context=self.visit_context,
            train_backbone=self.train_backbone,
        )

    @field_validator("model")
    @classmethod
    def _no_prompts(cls, value: ModelSettings) -> ModelSettings:
        if value.prompts:
            raise ValueError("prompts: diagnosis tokens belong to FedMRG; set it to false")
        return value

    @model_validator(mode="after")
    def _something_to_keep_running(self) -> FedTARSettings:
        if self.train_backbone and self.model.encoder.batch_norm == "local":
            raise ValueError(
                "train_backbone sends everything, so model.encoder.batch_norm cannot be 'local'; "
                "set it to 'average'"
            )
        return self


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {"model": {"prompts": False}, "visit_context": True},
    "paper": {
        "model": {"prompts": False},
        "schedule": "constant",
        "clip": None,
        "lr": 1e-5,
        "patient": {"rank": 4, "lora_alpha": 128},
    },
    "instruct": {
        "model": {"prompts": False, "lora": {"rank": 16, "lora_alpha": 32, "targets": ALL_PROJECTIONS}},
        "patient": {"rank": 4, "lora_alpha": 8, "targets": ("q_proj", "v_proj")},
        "batch": 8,
        "lr": 5e-4,
        "warmup": 0.05,
        "visit_context": True,
        "decoding": SHORT_REPORTS,
        "eval_limit": 4,
    },
}
"""Preset -> settings that it changes before a job's own settings apply. `paper` is what is printed:
AdamW at 1e-5 for model and adapters, rank 4, a = 128, 16 components; the rest is not. The others tell the
model which visit is a patient's first, as drafts of first visits compare with a study that is not there
otherwise."""

PAPER_JOB: dict[str, Any] = {
    "steps": None,
    "uplink": "float32",
    "downlink": "float32",
}
"""Of the job: full passes, and updates as they are (the paper names no number of rounds)."""

PAPER_RULES: dict[str, dict[str, Any]] = {
    "temporal": {
        "rule_settings.alpha_mode": "softmax",
        "rule_settings.embedding": "visit",
        "rule_settings.lr": 1e-4,
        "rule_settings.weighting": "examples",
    }
}
"""Softmax coefficients learnt at 1e-4."""

VARIANTS: dict[str, dict[str, Any]] = {
    "fedtar": {},
    "without_personalisation": {"personal": False},
    "pooled_baseline": {"personal": False},
}
"""Table 2's "w/o GMM", and what the baselines train: client LoRA and bridge. Table 2's "w/o temporal" is a
setting of the rule: `alpha_mode: constant, alpha: 1`."""

METHOD = Method(
    name="fedtar",
    task="visits",
    settings=FedTARSettings,
    presets=PRESETS,
    job_presets={"paper": PAPER_JOB, "instruct": {"deadline": 6 * 3600.0}},
    rule_presets={"paper": PAPER_RULES},
    kept_by_presets=("variant", "visits", "mixture", "profile", "model.encoder"),
    pretrained_presets=("instruct", "recommended"),
    variants=VARIANTS,
    facts=MethodFacts(
        summary="FedTAR: visits of a patient to reports; a client adapter, and factors made "
        "for each patient.",
        source="FedTAR (paper 001); TAR-1 to TAR-19",
        metrics=("loss", "steps", "val_loss", "visit", "seconds"),
        lora=True,
        judged=True,
    ),
    build="medflare.learners.fedtar.learner:build",
    result_file="longitudinal_generator.json",
    footprint="medflare.learners.fedtar.footprint:training_step",
)
