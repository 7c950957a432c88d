# SPDX-License-Identifier: Apache-2.0
"""FedMRG's settings: presets, the paper's ablations and its Fed-LoRA baseline as named variants."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeInt, model_validator

from medflare.core.idle_settings import idle_if
from medflare.core.method import Method, MethodFacts, MethodSettings
from medflare.core.tensor_names import FeatureKind
from medflare.differential_privacy.settings import PrivacySettings, private_settings_problem
from medflare.learners.fedmrg.memory_bank import BankMode
from medflare.learners.setting_types import (
    BatchSize,
    EvaluationBatch,
    LearningRate,
    NotNegative,
    PositiveCount,
    Rate,
    ReportTokens,
    Share,
    WeightDecay,
)
from medflare.models.adapters.lora import ALL_PROJECTIONS
from medflare.models.adapters.registry import PEFT_METHODS
from medflare.models.report_generator import SHORT_REPORTS, DecodingSettings, ModelSettings

_DISTILLATION = "lambda_kd kd_temperature kd_cosine kl_direction"
_SECOND_ADAPTER = (
    "specialised_lr_scale combine gamma_mix encoder_update distil_to_generic distil_to_specialised "
    "reuse_teacher"
)


class FedMRGSettings(MethodSettings):
    """Everything of FedMRG that a job can choose; ids are resolutions of the method's page."""

    variant: str = "fedmrg"
    model: ModelSettings = ModelSettings()
    decoding: DecodingSettings = DecodingSettings()

    # -- training --
    batch: BatchSize = 16
    lr: LearningRate = 5e-5
    encoder_lr_scale: NotNegative = Field(
        1.0, description="the encoder's rate is lr times this; 0 freezes it"
    )
    specialised_lr_scale: Rate = Field(1.0, description="A_s's rate is lr times this")
    warmup: Share = Field(0.0, description="share of all steps with a rising rate")
    weight_decay: WeightDecay = 0.05
    clip_value: Rate = Field(0.1, description="gradients are cut to this absolute value (PromptMRG)")
    max_report_tokens: ReportTokens = 100
    rotation: NotNegative = Field(5.0, description="degrees; never a flip, laterality is reported")

    # -- HCP --
    contrastive: bool = Field(True, description="L_hcl, the contrastive loss of two views of an image")
    classification: bool = Field(True, description="L_cls: the diagnosis head learns")
    tau: Rate = Field(0.07, description="temperature of L_hcl")
    positive_in_denominator: bool = Field(False, description="MRG-1: True is InfoNCE")
    bank: BankMode = Field(
        "off",
        description="MRG-4: further negatives of L_hcl. local_queue: the site's own. prototypes: sums over "
        "sites. raw: features in the clear, as in the paper",
    )
    bank_rows: PositiveCount = Field(64, description="of a local queue, or that a site sends raw")
    k_min: PositiveCount = Field(16, description="fewest images of a prototype")
    bank_sample: PositiveCount = Field(1024, description="training images a site's prototypes are made of")
    lambda_hcl: NotNegative = Field(0.1, description="weight of L_hcl")
    lambda_cls: NotNegative = Field(1.0, description="weight of the diagnoses' loss")
    prompt_dropout: float = Field(
        0.0, ge=0, le=1, description="MRG-16: share of images prompted by prediction"
    )

    # -- DMB --
    dual: bool = Field(True, description="a specialised adapter A_s beside the generic A_g; false: A_g alone")
    distil_to_generic: bool = Field(True, description="A_s teaches A_g in step 1")
    distil_to_specialised: bool = Field(True, description="A_g teaches A_s in step 2")
    lambda_kd: NotNegative = Field(0.1, description="weight of L_kd")
    kd_temperature: Rate = Field(2.0, description="of the distributions that are distilled")
    kd_cosine: NotNegative = Field(1.0, description="weight of 1 − cos of hidden states in L_kd")
    kl_direction: Literal["teacher_student", "student_teacher"] = Field(
        "teacher_student", description="MRG-9: KL(teacher ‖ student), or KL(student ‖ teacher)"
    )
    combine: Literal["sum", "mean"] = Field(
        "sum", description="MRG-7: A_g and A_s act together as their sum or as their mean"
    )
    gamma_mix: float = Field(0.5, ge=0, le=1, description="MRG-8; 0 is the adapter as trained")
    encoder_update: Literal["both", "encoder_once", "first"] = Field(
        "both",
        description="MRG-12: what step 2 moves beside the specialised adapter: all that step 1 moves, all of "
        "it but the encoder, or nothing",
    )
    reuse_teacher: bool = Field(
        True, description="step 1's student output teaches step 2, as FedDAT's code does"
    )
    share_forward: bool = Field(
        False,
        description="MRG-21: one forward pass of the specialised adapter teaches step 1 and learns in "
        "step 2; needs encoder_update 'first'",
    )

    dp: PrivacySettings | None = Field(
        default=None,
        description="train with differential privacy for patients, in the form of variant `private`: no "
        "contrast, no bank, one adapter; clip_value is not used",
    )

    # -- evaluation --
    eval_batch: EvaluationBatch = 32
    eval_limit: NonNegativeInt | None = Field(
        32, description="validation studies drafted per round; None for all"
    )

    @property
    def contrasts(self) -> bool:
        """True if L_hcl is computed: it moves nothing but the encoder."""
        return self.contrastive and self.encoder_lr_scale > 0

    @property
    def memory_bank(self) -> BankMode:
        """`bank`, or `off` where nothing contrasts: features that nobody reads do not leave a site."""
        return self.bank if self.contrasts else "off"

    @property
    def without_effect(self) -> dict[str, str]:
        still = "contrastive is false" if not self.contrastive else "encoder_lr_scale is 0"
        bank, dual = self.memory_bank, self.dual
        distils = self.lambda_kd > 0 and (self.distil_to_generic or self.distil_to_specialised)
        return idle_if(
            (not self.contrasts, still, "bank tau positive_in_denominator lambda_hcl"),
            (bank not in ("local_queue", "raw"), f"bank is '{bank}'", "bank_rows"),
            (bank != "prototypes", f"bank is '{bank}'", "k_min bank_sample"),
            (not self.classification, "classification is false", "lambda_cls"),
            (not self.model.prompts, "model.prompts is false", "prompt_dropout"),
            (dual and not distils, "nothing is distilled", _DISTILLATION),
            (dual and not self.distil_to_specialised, "distil_to_specialised is false", "reuse_teacher"),
            (not dual, "dual is false", f"{_SECOND_ADAPTER} {_DISTILLATION}"),
            (self.dp is not None, "dp bounds the gradients of each patient", "clip_value"),
        )

    @property
    def learning_rate(self) -> float:
        return self.lr

    @property
    def peft_method(self) -> str:
        """The adapters' method, a name in `models.adapters.registry.PEFT_METHODS`."""
        return self.model.peft.method

    @property
    def sends_sums(self) -> dict[str, str]:
        """Settings by which updates carry declared sums -> what would send none."""
        sums = {}
        if self.memory_bank in ("prototypes", "raw"):
            sums[f"settings.bank '{self.bank}'"] = "settings.bank 'off' or 'local_queue'"
        if self.peft_method == "adalora":
            sums["settings.model.peft.method 'adalora'"] = "another method"
        return sums

    @property
    def sends_features(self) -> FeatureKind:
        """Image features in updates, of which the memory bank at other sites is made."""
        bank = self.memory_bank
        return bank if bank in ("prototypes", "raw") else "none"

    @model_validator(mode="after")
    def _prompts_need_the_head(self) -> FedMRGSettings:
        if self.model.prompts and not self.classification:
            raise ValueError(
                "model.prompts needs classification: an untrained head would prompt at test time"
            )
        return self

    @model_validator(mode="after")
    def _what_a_shared_pass_needs(self) -> FedMRGSettings:
        needed = {
            "dual true": self.dual,
            "distil_to_generic true": self.distil_to_generic,
            "encoder_update 'first'": self.encoder_update == "first",
        }
        if self.share_forward and (missing := [name for name, holds in needed.items() if not holds]):
            raise ValueError(
                f"share_forward needs {' and '.join(missing)}; otherwise there is no pass to share"
            )
        return self

    @model_validator(mode="after")
    def _private_form(self) -> FedMRGSettings:
        if self.dp is None:
            return self
        problem = private_settings_problem(
            checkpointing=False,
            sums=self.sends_sums,
            adapter=self.peft_method,
            adapters=[name for name, row in PEFT_METHODS.items() if row.per_example],
        )
        if problem is None and self.contrastive:
            problem = (
                "dp: contrastive compares the images of a batch, so none has a gradient of its own: set it "
                "to false, or take variant 'private'"
            )
        if problem is None and self.dual:
            problem = (
                "dp: the specialised adapter learns from the same patients without noise and teaches what is "
                "sent: set dual to false, or take variant 'private'"
            )
        if problem:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _two_adapters_at_once(self) -> FedMRGSettings:
        if self.dual and not PEFT_METHODS[self.peft_method].several_active:
            usable = " or ".join(f"'{name}'" for name, row in PEFT_METHODS.items() if row.several_active)
            raise ValueError(
                f"dual needs two adapters at once, and model.peft.method '{self.peft_method}' can have one: "
                f"set dual to false, or use method {usable}"
            )
        return self


PRESETS: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"bank": "raw", "kl_direction": "student_teacher", "reuse_teacher": False},
    "instruct": {
        "model": {"lora": {"rank": 16, "lora_alpha": 32, "targets": ALL_PROJECTIONS}},
        "batch": 8,
        "lr": 5e-4,
        "encoder_lr_scale": 0.1,
        "warmup": 0.05,
        "clip_value": 1.0,
        "prompt_dropout": 0.5,
        "decoding": SHORT_REPORTS,
        "eval_limit": 4,
    },
}
"""Preset -> settings that it changes before a job's own settings apply."""

PAPER_JOB: dict[str, Any] = {
    "num_rounds": 1000,
    "steps": None,
    "fraction": 0.02,
    "uplink": "float32",
    "downlink": "float32",
}
"""Of the job: 1000 rounds of 2 % of a site's data, and updates as they are."""
PAPER_RULES: dict[str, dict[str, Any]] = {"weighted_mean": {"rule_settings.weighting": "examples"}}
"""Averages by n_k (MRG-17 has the other reading)."""

_PLAIN: dict[str, Any] = {"dual": False, "contrastive": False, "classification": False}


def _baseline(method: str) -> dict[str, Any]:
    """Return Fed-LoRA's settings with another parameter-efficient method."""
    return {**_PLAIN, "model": {"prompts": False, "peft": {"method": method}}}


VARIANTS: dict[str, dict[str, Any]] = {
    "fedmrg": {},
    "fed_lora": {**_PLAIN, "model": {"prompts": False}},
    "private": {"contrastive": False, "dual": False},
    "without_specialised": {"dual": False},
    "without_contrastive": {"contrastive": False},
    "without_prompts": {"classification": False, "model": {"prompts": False}},
    "without_g2l": {"distil_to_specialised": False},
    "without_l2g": {"distil_to_generic": False},
    "fed_para": _baseline("fedpara"),
    "fed_adalora": _baseline("adalora"),
    "fed_vera": _baseline("vera"),
    "fed_prefix": _baseline("prefix"),
    "fed_prompt": _baseline("prompt"),
    "fed_p_tuning": _baseline("p_tuning"),
    "fed_dat": {
        **_baseline("bottleneck"),
        "dual": True,
        "combine": "mean",
        "gamma_mix": 0.0,
        "lambda_kd": 1.0,
        "kd_temperature": 3.0,
        "kd_cosine": 0.0,
        "kl_direction": "teacher_student",
        "reuse_teacher": True,
        "encoder_update": "first",
    },
}
"""Table IV's ablations, Fed-LoRA, and the other adapters of the paper's tables.
`private` is the form that `dp` can train.
`without_prompts` drops the diagnosis branch as a whole, since nothing else reads it. `fed_dat` is FedDAT with
rule weighted_mean, weighting uniform; its halves of (L + KL) / 2 are left out: AdamW sees no scale."""

METHOD = Method(
    name="fedmrg",
    task="reports",
    settings=FedMRGSettings,
    presets=PRESETS,
    job_presets={"paper": PAPER_JOB, "instruct": {"deadline": 6 * 3600.0}},
    rule_presets={"paper": PAPER_RULES},
    kept_by_presets=("variant", "model.encoder", "bank"),
    pretrained_presets=("instruct", "recommended"),
    variants=VARIANTS,
    facts=MethodFacts(
        summary="FedMRG: radiographs to reports; a shared encoder and adapter, and an adapter that stays.",
        source="FedMRG (paper 000); MRG-1 to MRG-19",
        metrics=("loss", "steps", "seconds"),
        lora=True,
    ),
    build="medflare.learners.fedmrg.learner:build",
    result_file="report_generator.json",
    footprint="medflare.learners.fedmrg.footprint:training_step",
)
