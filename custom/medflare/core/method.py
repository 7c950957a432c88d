# SPDX-License-Identifier: Apache-2.0
"""A training method as one object: its task, settings, variants, facts, and where its code is.

Every method folder defines one `METHOD` beside its settings; `learners.registry` lists them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.presets import Blocks, resolve_settings
from medflare.core.tensor_names import FeatureKind

LARGE = 3_000_000_000
"""Parameters of a language model from which the papers' rates are right, made for 7 and 8 billion."""


HIGHEST_PRETRAINED_RATE = 1e-3
"""Rate from which a job's settings are those of the small embedded models and unfit for a pretrained one."""


class MethodSettings(Settings):
    """Settings that every method has, and what other rooms ask of a method's settings.

    Attributes:
        facts_of_the_run: settings that the controller, or the rule, must have with the same value.
    """

    facts_of_the_run: ClassVar[tuple[str, ...]] = ()
    preset: Literal["recommended", "paper", "instruct"] = "recommended"
    """Values of what the job leaves out: ours, the paper's, or those for a pretrained model."""
    variant: str = ""
    """A named form of the method, as `medflare methods` lists them: an ablation or a baseline."""

    @property
    def peft_method(self) -> str:
        """The adapter, a name in `models.adapters.registry.PEFT_METHODS`; empty where all weights learn."""
        return ""

    @property
    def lora_sharing(self) -> str:
        """LoRA factors that are communicated: `factors`, `freeze_a`, `fedsa`, `stack`; `none` where there
        are no pairs of factors."""
        return "factors" if self.peft_method == "lora" else "none"

    @property
    def learning_rate(self) -> float | None:
        """The optimiser's rate; None where a method has no single one."""
        return None

    @property
    def passes(self) -> int:
        """Passes over a site's examples in a round, where the job says neither steps nor a fraction."""
        return 1

    @property
    def sends_sums(self) -> dict[str, str]:
        """Settings by which updates carry auxiliary sums -> what would send none."""
        return {}

    @property
    def sends_features(self) -> FeatureKind:
        """Image features in updates, which a site's policy must allow."""
        return "none"

    @property
    def visit_count(self) -> int | None:
        """Exchanges of updates that a round goes through, one for each visit; None for any number."""
        return None

    def mixture_problem(self, configured: Settings | None) -> str | None:
        """Return why the mixture of patients' profiles in the controller's settings does not suit this
        method; None where it does.

        Args:
            configured: the controller's `mixture`, if it has one.
        """
        return None


MethodSettingsT = TypeVar("MethodSettingsT", bound=MethodSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodFacts:
    """Facts of one method, for listings and for the check that rule and method fit together.

    Attributes:
        summary: what is trained, in one sentence.
        source: paper; section of the specification; resolution ids.
        metrics: numbers that every update holds, by which a rule may weigh it.
        lora: whether it has adapters, of any method in `models.adapters`. Of LoRA, pairs of factors
            are communicated; which of them, `MethodSettings.lora_sharing` says.
        scored: whether a site can score its own update on shared validation data.
        judged: whether an update can be scored by others, at the server or at another site, by what
            `evaluate` gives for a plan that asks for the loss alone.
    """

    summary: str
    source: str
    metrics: tuple[str, ...]
    lora: bool = False
    scored: bool = False
    judged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Method(Generic[MethodSettingsT]):
    """One training method.

    `build` and `footprint` are `module:function` and imported when they are called, because learners import
    transformers and monai.

    Attributes:
        name: as a job names it.
        task: name of its task in `tasks.TASKS`.
        settings: the class that a job's `settings` block is validated by.
        presets: preset -> settings that it puts below the job's own; the first is the default.
        job_presets: preset -> what it changes in a job beside the method's settings, with the keys of --set.
        rule_presets: preset -> rule of a job -> what it changes for that rule, with the keys of --set; a job
            with any other rule keeps it as it is.
        kept_by_presets: dotted names of a job's settings that a preset of the whole job leaves alone.
        pretrained_presets: presets for a pretrained language model of up to LARGE parameters, and of more;
            None where a site's `backbone` is none.
        several_devices: whether a site can train on several (`devices`): a process each on its share of every
            batch, or one over whose devices the layers are spread.
        variants: variant -> the settings it stands for; the first is the method itself.
        build: `(settings, site, seed, cache) -> Learner`.
        result_file: file that a result folder of this method has beside its adapter.
        footprint: `(settings, backbone folder, precision) -> learners.training_step.TrainingStep`, from which
            the memory of a training step is estimated; None where there is no estimate.
        new_model: what is trained where a site sets no `backbone.folder`; empty for the task's embedded
            language model.
        weights_in_folder: whether a site's `backbone.folder` holds weights; else a tokenizer alone.
    """

    name: str
    task: str
    settings: type[MethodSettingsT]
    presets: Blocks
    variants: Mapping[str, dict[str, Any]]
    facts: MethodFacts
    build: str
    result_file: str
    footprint: str | None = None
    new_model: str = ""
    weights_in_folder: bool = True
    job_presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rule_presets: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    kept_by_presets: tuple[str, ...] = ("variant",)
    pretrained_presets: tuple[str, str] | None = None
    several_devices: bool = False

    def resolve(self, given: Mapping[str, Any]) -> MethodSettingsT:
        """Return the validated settings of a job: preset, then what the job says, then its variant.

        Raises:
            ConfigError: with everything that is wrong with them.
        """
        return resolve_settings(self.settings, given, self.presets, self.variants)

    def preset_changes(self, name: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a preset of a whole job is: the `settings` block, and changes with the keys of --set.

        Raises:
            ConfigError: the method has no such preset.
        """
        if not isinstance(name, str) or name not in self.presets:
            raise ConfigError(f"preset is '{name}'; {self.name} has {', '.join(self.presets)}.")
        return {"preset": name}, dict(self.job_presets.get(name, {}))

    def preset_for(self, parameters: int) -> str | None:
        """Return the preset for a pretrained language model of so many parameters, if there is one."""
        return None if self.pretrained_presets is None else self.pretrained_presets[parameters > LARGE]

    def rate_for_embedded(self, given: Mapping[str, Any]) -> float | None:
        """Return a job's learning rate where it is right for an embedded language model only, else None."""
        rate = self.resolve(given).learning_rate
        too_high = self.pretrained_presets is not None and rate is not None and rate > HIGHEST_PRETRAINED_RATE
        return rate if too_high else None

    def builder(self) -> Callable[..., Any]:
        """Import and return the function that builds this method's learner."""
        return import_function(self.build)


def import_function(path: str) -> Callable[..., Any]:
    """Import and return a function of this package by its constant path `module:function`."""
    module, name = path.split(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function
