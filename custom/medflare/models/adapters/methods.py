# SPDX-License-Identifier: Apache-2.0
"""The parameter-efficient methods of adapter jobs: their settings, and the PEFT configuration of each.

Sources: algorithms.md 7.7 to 7.14; communicated parameters in 9.1. Every method but `bottleneck` is PEFT's
own implementation. Targets are those of the block `lora` unless the block `peft` names its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args

from pydantic import Field, model_validator

from medflare.core.config import Settings


class LoraSettings(Settings):
    """Rank ρ, numerator a of the scale a/ρ, and the projections that carry a pair.

    Defaults are the ones recovered from the paper's traffic (59.28 M parameters, algorithms.md 2.1).
    """

    method: ClassVar[str] = "lora"
    rank: int = 16
    lora_alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "v_proj")
    dropout: float = 0.0


class LoraChoice(Settings):
    """LoRA, with the numbers of the block `lora`."""

    method: Literal["lora"] = "lora"


class AdaLoraSettings(Settings):
    """ΔW = a/ρ₀ P Λ Q with an orthogonality penalty; the server's sums decide which singular values stay.

    rank: ρ₀, of every module at the start; target_rank: mean rank a module has at the end.
    warm_rounds: rounds with all ranks; final_rounds: rounds with the final ranks (both of the run's rounds).
    """

    method: Literal["adalora"] = "adalora"
    rank: int = Field(12, ge=1)
    target_rank: int = Field(8, ge=1)
    alpha: int = Field(12, ge=1)
    orthogonality: float = Field(0.5, ge=0, description="weight of mean ‖PᵀP − I‖ in the loss")
    warm_rounds: float = Field(0.1, ge=0, lt=1, description="share of the rounds with all ranks")
    final_rounds: float = Field(0.3, ge=0, lt=1, description="share of the rounds with the final ranks")
    beta: float = Field(0.85, gt=0, lt=1, description="smoothing of importance and of its uncertainty")
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _shrinks(self) -> AdaLoraSettings:
        if self.target_rank > self.rank:
            raise ValueError(f"target_rank {self.target_rank} is above rank {self.rank}")
        if self.warm_rounds + self.final_rounds >= 1:
            raise ValueError("warm_rounds and final_rounds leave no round to allocate ranks in")
        return self


class FedParaSettings(Settings):
    """ΔW = a/ρ (X₁Y₁ᵀ)∘(X₂Y₂ᵀ): the Hadamard product of two low-rank matrices (PEFT's LoHa)."""

    method: Literal["fedpara"] = "fedpara"
    rank: int = Field(24, ge=1)
    alpha: int = Field(24, ge=1)
    targets: tuple[str, ...] = ()


class VeraSettings(Settings):
    """ΔW = diag(b) B diag(d) A with A and B made from the run's seed at every site; b and d travel."""

    method: Literal["vera"] = "vera"
    rank: int = Field(256, ge=1)
    d_initial: float = Field(0.1, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[str, ...] = ()


class PrefixSettings(Settings):
    """Keys and values of virtual tokens in every layer."""

    method: Literal["prefix"] = "prefix"
    tokens: int = Field(200, ge=1)


class PromptSettings(Settings):
    """Embeddings of virtual tokens before the input, first values from the vocabulary (MRG-19)."""

    method: Literal["prompt"] = "prompt"
    tokens: int = Field(200, ge=1)


class PTuningSettings(Settings):
    """Embeddings of virtual tokens, reparameterised by three linear layers (MRG-19).

    width: of the hidden layers; None is the backbone's.
    """

    method: Literal["p_tuning"] = "p_tuning"
    tokens: int = Field(200, ge=1)
    width: int | None = Field(None, ge=1)


class BottleneckSettings(Settings):
    """h + W_up GELU(W_down h) after the feed-forward block of every layer; FedDAT's adapters (7.9).

    reduction: hidden size over the width of the bottleneck; width: given outright instead.
    """

    method: Literal["bottleneck"] = "bottleneck"
    reduction: int = Field(16, ge=1)
    width: int | None = Field(None, ge=1)


PeftChoice = Annotated[
    Union[  # noqa: UP007 - pydantic wants the discriminator on a Union
        LoraChoice,
        AdaLoraSettings,
        FedParaSettings,
        VeraSettings,
        PrefixSettings,
        PromptSettings,
        PTuningSettings,
        BottleneckSettings,
    ],
    Field(discriminator="method"),
]
AdapterSettings = (
    LoraSettings
    | AdaLoraSettings
    | FedParaSettings
    | VeraSettings
    | PrefixSettings
    | PromptSettings
    | PTuningSettings
    | BottleneckSettings
)
"""What `chosen` makes of the blocks `peft` and `lora`."""

Own = TypeVar("Own", bound=Settings)


def chosen(peft: Any, lora: LoraSettings) -> AdapterSettings:
    """The settings that count: those of the block `peft`, or of the block `lora` where it says so.

    peft: one of `PeftChoice`. Targets that `peft` leaves out are those of `lora`.
    """
    if isinstance(peft, LoraChoice):
        return lora
    if getattr(peft, "targets", None) == ():
        peft = peft.model_copy(update={"targets": lora.targets})
    assert isinstance(peft, get_args(AdapterSettings))
    return peft


def as_written(peft: Any, lora: LoraSettings, config: Mapping[str, Any]) -> tuple[Any, LoraSettings]:
    """The blocks `peft` and `lora` that fit an adapter's file, whose sizes a rule or a merge may change.

    config: adapter_config.json of the file. P-tuning's file holds plain virtual tokens.
    """
    if isinstance(peft, LoraChoice):
        return peft, lora.model_copy(update={"rank": config["r"], "lora_alpha": config["lora_alpha"]})
    if isinstance(peft, PTuningSettings):
        return PromptSettings(tokens=config["num_virtual_tokens"]), lora
    if isinstance(peft, BottleneckSettings):
        return peft.model_copy(update={"width": config["width"]}), lora
    return peft, lora


# ---- PEFT's configurations ---------------------------------------------------------------------------------


def _lora(s: LoraSettings, hidden: int, seed: int) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=s.rank,
        lora_alpha=s.lora_alpha,
        target_modules=list(s.targets),
        lora_dropout=s.dropout,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _adalora(s: AdaLoraSettings, hidden: int, seed: int) -> Any:
    from peft import AdaLoraConfig

    return AdaLoraConfig(
        init_r=s.rank,
        target_r=s.target_rank,
        lora_alpha=s.alpha,
        lora_dropout=s.dropout,
        orth_reg_weight=s.orthogonality,
        beta1=s.beta,
        beta2=s.beta,
        total_step=1,  # PEFT wants one; rounds and server decide here (rank_allocation.py)
        target_modules=list(s.targets),
        task_type="CAUSAL_LM",
    )


def _fedpara(s: FedParaSettings, hidden: int, seed: int) -> Any:
    from peft import LoHaConfig

    return LoHaConfig(r=s.rank, alpha=s.alpha, target_modules=list(s.targets), task_type="CAUSAL_LM")


def _vera(s: VeraSettings, hidden: int, seed: int) -> Any:
    from peft import VeraConfig

    return VeraConfig(
        r=s.rank,
        d_initial=s.d_initial,
        vera_dropout=s.dropout,
        projection_prng_key=seed,
        save_projection=True,
        target_modules=list(s.targets),
        task_type="CAUSAL_LM",
    )


def _prefix(s: PrefixSettings, hidden: int, seed: int) -> Any:
    from peft import PrefixTuningConfig

    return PrefixTuningConfig(num_virtual_tokens=s.tokens, task_type="CAUSAL_LM")


def _prompt(s: PromptSettings, hidden: int, seed: int) -> Any:
    from peft import PromptTuningConfig

    return PromptTuningConfig(
        num_virtual_tokens=s.tokens, prompt_tuning_init="SAMPLE_VOCAB", task_type="CAUSAL_LM"
    )


def _p_tuning(s: PTuningSettings, hidden: int, seed: int) -> Any:
    from peft import PromptEncoderConfig

    width = s.width or hidden
    return PromptEncoderConfig(num_virtual_tokens=s.tokens, encoder_hidden_size=width, task_type="CAUSAL_LM")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftMethod:
    """One row of the table.

    Attributes:
        summary: what learns and travels; source: paper, section of algorithms.md, resolution ids.
        configure: (settings, hidden size, seed) -> PEFT's configuration; None where PEFT has none.
        virtual: whether it adds virtual tokens and leaves every layer as it is.
        identity: whether a new adapter changes nothing.
        several: whether two adapters can compute at once, as FedMRG's and FedDAT's do.
        quantised: whether it works on int8 and NF4 layers.
        checkpoints: whether it works with gradient checkpointing.
    """

    summary: str
    source: str
    configure: Callable[[Any, int, int], Any] | None
    virtual: bool = False
    identity: bool = True
    several: bool = False
    quantised: bool = True
    checkpoints: bool = True


METHODS: dict[str, PeftMethod] = {
    "lora": PeftMethod(
        summary="LoRA: pairs of factors A and B beside linear layers.",
        source="Hu et al. 2022; algorithms.md 7.7",
        configure=_lora,
        several=True,
    ),
    "adalora": PeftMethod(
        summary="AdaLoRA: triplets P, Λ, Q; one rank allocation for all sites from their summed importance.",
        source="Zhang et al. 2023; algorithms.md 7.10, 10",
        configure=_adalora,
    ),
    "fedpara": PeftMethod(
        summary="FedPara: the Hadamard product of two low-rank products (PEFT's LoHa); four factors travel.",
        source="Hyeon-Woo et al. 2022; algorithms.md 7.11",
        configure=_fedpara,
        quantised=False,
    ),
    "vera": PeftMethod(
        summary="VeRA: vectors b and d travel; the random A and B every site makes from the run's seed.",
        source="Kopiczko et al. 2024; algorithms.md 7.12",
        configure=_vera,
    ),
    "prefix": PeftMethod(
        summary="Prefix tuning: keys and values of virtual tokens in every layer.",
        source="Li & Liang 2021; algorithms.md 7.13",
        configure=_prefix,
        virtual=True,
        identity=False,
        checkpoints=False,
    ),
    "prompt": PeftMethod(
        summary="Prompt tuning: embeddings of virtual tokens before the input.",
        source="Lester et al. 2021; algorithms.md 7.14; MRG-19",
        configure=_prompt,
        virtual=True,
        identity=False,
    ),
    "p_tuning": PeftMethod(
        summary="P-tuning: embeddings of virtual tokens through three linear layers, which travel with them.",
        source="Liu et al. 2021; algorithms.md 7.14; MRG-19",
        configure=_p_tuning,
        virtual=True,
        identity=False,
    ),
    "bottleneck": PeftMethod(
        summary="Bottleneck adapters after every feed-forward block; our own module, PEFT has none.",
        source="Houlsby et al. 2019, FedDAT; algorithms.md 7.9",
        configure=None,
        several=True,
    ),
}
"""Name in `peft.method` -> the method."""
