# SPDX-License-Identifier: Apache-2.0
"""Contract of aggregation rules: pure accumulators of updates, with declared facts and settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import ConfigDict, ValidationError

from medflare.core.config import Settings
from medflare.core.tensors import State
from medflare.core.update import Update

C = TypeVar("C")
Needs = Literal["sum", "individual"]
Weighting = Literal["examples", "tokens", "uniform"]
"""Unit of an update's weight: training examples, tokens, or 1 for every update."""


class RuleSettings(Settings):
    """Base of the settings of every rule: types and bounds stand here, descriptions under each field.

    Listings, docs and error messages are made from the schema.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    @property
    def clips_norms(self) -> bool:
        """Return whether updates are clipped before they are averaged (`norm_clip.NormClipSettings`)."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFacts:
    """Declared properties of a rule; an instance whose settings change one of them has facts of its own.

    Attributes:
        summary: what the rule does, in one sentence for listings.
        source: paper and resolution ids.
        needs: whether the rule works on a weighted sum alone ("sum": can be masked or encrypted) or must see
            each update in the clear ("individual").
        sum_with: settings with which a rule that otherwise needs individual updates needs a sum alone.
        instead: what to use where the server may see a sum only; of a rule that needs individual updates.
        streams: whether memory is independent of the number of sites.
        reads_sum: whether the server must read the sum to go on, where encryption leaves it unread.
        server_optimiser: whether the state takes the step of an optimiser, not the mean change.
        compares: whether updates of different sites are held against each other.
        sharing: the modes of sharing LoRA factors the rule can work with; empty for all but `stack`.
        stack_with: settings with which a rule works on LoRA pairs that are stacked, where others do not.
        extra_tensors: prefixes of tensors that the rule may add to the state beside the shared ones.
    """

    summary: str
    source: str
    needs: Needs = "sum"
    sum_with: Mapping[str, Any] = field(default_factory=dict)
    instead: str = ""
    streams: bool = True
    reads_sum: bool = False
    server_optimiser: bool = False
    compares: bool = False
    sharing: tuple[str, ...] = ()
    stack_with: Mapping[str, Any] = field(default_factory=dict)
    extra_tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteWeight:
    """Weight that a site gives its own update before a secure sum; must equal the weight of the rule itself.

    Attributes:
        unit: what the weight is proportional to.
        most_per_example: largest number of units that one training example can count for.
        most_factor: largest factor by which the site may scale its weight; None for what the rule allows.
    """

    unit: Weighting = "examples"
    most_per_example: float = 1.0
    most_factor: float | None = None


class AggregationRule(ABC):
    """begin, add for each accepted update, finish; memory independent of the number of sites where it can be.

    Everything else a rule may do or need is a mixin of `aggregation.capabilities`.

    Attributes:
        facts: of the class; an instance may replace them where its settings change them.
        Settings: the model of the job's `rule_settings`.
        site_weight: how sites weigh their own updates under masks or encryption.
    """

    facts: RuleFacts
    Settings: ClassVar[type[RuleSettings]] = RuleSettings
    settings: RuleSettings
    site_weight: SiteWeight = SiteWeight()

    def __init__(self, **settings: Any) -> None:
        """Take the job's `rule_settings`.

        Raises:
            ValueError: a setting does not exist or its value cannot be used.
        """
        try:
            self.settings = self.Settings(**settings)
        except ValidationError as error:
            raise ValueError(explain(error, self.Settings)) from None

    @abstractmethod
    def begin(self, global_state: State) -> None:
        """Start a round from the state that was broadcast; an unfinished round is forgotten.

        Raises:
            ConfigError: the rule cannot work on these tensors.
        """

    @abstractmethod
    def add(self, site: str, update: Update) -> None:
        """Take one accepted update; called in order of the sites' names.

        Raises:
            UpdateError: the rule cannot use this update, which costs the site its round and nothing else.
        """

    @abstractmethod
    def finish(self) -> State:
        """Return the new global state, in the dtypes of the old one.

        Raises:
            ValueError: nothing was added.
        """

    def report(self) -> dict[str, Any]:
        """Return what happened in the last finished round, for run.json: JSON types.

        Numbers under `checks` stand beside the norms of the global update.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a server optimiser must keep between rounds."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027 - most rules keep nothing
        """Put back what `state_dict` returned."""

    def disabled_capabilities(self) -> tuple[type, ...]:
        """Return the mixins among the rule's bases that its settings switch off."""
        return ()

    @classmethod
    def class_capability(cls, mixin: type[C]) -> type[C] | None:
        """Return the rule's class as one of a mixin, whatever its settings; None if it does not have it."""
        return cls if issubclass(cls, mixin) else None

    def capability(self, mixin: type[C]) -> C | None:
        """Return the rule as an instance of a mixin of `aggregation.capabilities`, or None if it is none."""
        return self if isinstance(self, mixin) and mixin not in self.disabled_capabilities() else None


def explain(error: ValidationError, settings: type[RuleSettings]) -> str:
    """Return one sentence for each setting that cannot be used: its value and what was expected."""
    properties = settings.model_json_schema()["properties"] if settings.model_fields else {}
    sentences = []
    for item in error.errors():
        name = str(item["loc"][0])
        if name in properties:
            value = item["input"]
            shown = repr(value) if isinstance(value, str) else value
            sentences.append(f"{name} is {shown}; expected {_expected(properties[name])}.")
        else:
            known = ", ".join(properties) or "none"
            sentences.append(f"{name} is no setting of this rule. Settings: {known}.")
    return " ".join(sentences)


_TYPES = {
    "boolean": "true or false",
    "integer": "whole number",
    "number": "number",
    "string": "name",
    "null": "null",
}
_BOUNDS = {
    "minimum": "{} or more",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
}


def _expected(schema: Mapping[str, Any]) -> str:
    """Return the values of a field for an error message: words in quotes, else as listings show them."""
    if "enum" not in schema:
        return allowed(schema)
    *others, last = (f"'{word}'" for word in schema["enum"])
    return f"{', '.join(others)} or {last}" if others else last


def allowed(schema: Mapping[str, Any]) -> str:
    """Return the values that a field of a JSON schema lets through, in words."""
    if "anyOf" in schema:
        return " or ".join(allowed(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    bounds = [words.format(schema[key]) for key, words in _BOUNDS.items() if key in schema]
    return ", ".join([_TYPES[schema["type"]], *([" and ".join(bounds)] if bounds else [])])
