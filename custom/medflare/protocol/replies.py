# SPDX-License-Identifier: Apache-2.0
"""Replies as the server reads them: one strict model of the facts for each task.

A reply that is none makes its site absent, with the reason in words, and the round goes on
(`server.exchange`). What a fact means is for its reader to judge: a weight, for instance, is compared with
what the site declared by the aggregator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from medflare.core.site_description import SiteDescription
from medflare.egress.declaration import (
    ANSWER,
    COMPARE,
    COUNT,
    COUNT_STATES,
    MAX_METRICS,
    METRIC,
    OFFER,
    SECURE_SUM_BYTES,
    SKETCH_STATES,
)
from medflare.egress.failures import MessageError, clean_text
from medflare.protocol.strict_model import (
    MOST_TENSORS,
    Count,
    Seconds,
    SiteName,
    StrictModel,
    Word,
    json_problem,
    json_within,
    read,
    shown,
)

DESCRIPTION_BYTES = 4 * 2**20
"""Most bytes of what a site says about itself."""
MOST_EVALUATIONS = 200
Hex = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,128}$")]
Number = int | float
"""Of a metric: one that is not finite is left out of the record, not refused."""


# ---- before round 1 ----------------------------------------------------------------------------------------

TensorName = Annotated[str, StringConstraints(min_length=1, max_length=512)]
Dtype = Literal[
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"
]
MOST_DIMENSIONS, MOST_VALUES = 8, 10**12


def _spec_entry(entry: list[Any]) -> list[Any]:
    """Check `[shape, dtype]`."""
    shape, dtype = entry if len(entry) == 2 else (None, None)
    if not isinstance(shape, list | tuple) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"shape {shown(shape)}, expected up to {MOST_DIMENSIONS} whole numbers")
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in shape):
        raise ValueError(f"shape with {shown(shape[0])}, expected whole numbers of 0 or more")
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"a tensor of more than {MOST_VALUES:,} values")
    if dtype not in get_args(Dtype):
        raise ValueError(f"dtype {shown(dtype)}, expected one of {', '.join(get_args(Dtype))}")
    return entry


Spec = Annotated[
    dict[TensorName, Annotated[list[Any], AfterValidator(_spec_entry)]], Field(max_length=MOST_TENSORS)
]


def _description(value: SiteDescription) -> SiteDescription:
    """Check sizes and counts of a description, whose own model knows the types only."""
    problem = json_problem(value.model_dump(), DESCRIPTION_BYTES)
    counts = {**value.examples, **value.skipped, **value.parameters}
    wrong = [name for name, count in counts.items() if not 0 <= count <= MOST_VALUES]
    if wrong:
        problem = f"the count '{shown(wrong[0])}' is {counts[wrong[0]]}"
    long = [text for text in (*value.backbone.model_dump().values(), *counts) if len(text) > 512]
    long += [text for text in (*value.backbone.model_dump().values(), *counts) if not text.isprintable()]
    if long:
        problem = f"a name is {shown(long[0])}, expected printable characters, at most 512"
    if problem:
        raise ValueError(problem)
    return value


class FirstValueFacts(StrictModel):
    """Statement of a site about one shared tensor before round 1 (`wire.first_values`)."""

    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    norm: Annotated[float, Field(ge=0)]


class ReplyFacts(StrictModel):
    """Facts of a reply to one task."""

    def problem(self, site: str) -> str:
        """Return what a reply of `site` must not hold and does; empty if nothing."""
        return ""


class PrepareFacts(ReplyFacts):
    """Description and declared tensors of a site."""

    describe: Annotated[SiteDescription, AfterValidator(_description)]
    shared: Spec
    sums: Spec
    separate_sums: Annotated[dict[Word, Spec], Field(max_length=8)] = Field(default_factory=dict)
    first_values: Annotated[dict[TensorName, FirstValueFacts], Field(max_length=MOST_TENSORS)] | None = None
    method: Word | None = None
    seconds: Seconds


class InitialiseFacts(ReplyFacts):
    """First values come as tensors."""

    seconds: Seconds


# ---- knowledge graphs --------------------------------------------------------------------------------------


class SketchFacts(ReplyFacts):
    """A sketch, or why none comes; `sketch_exchange` reads it."""

    state: Literal[SKETCH_STATES]  # type: ignore[valid-type]
    sketch: Annotated[str, Field(max_length=2**24)] | None = None
    examples: Count | None = None
    vocabulary: Hex | None = None
    seconds: Seconds


class CountFacts(ReplyFacts):
    """The size of a graph, or why it is not told."""

    state: Literal[COUNT_STATES]  # type: ignore[valid-type]
    elements: Count | None = None
    examples: Count | None = None
    key: Hex | None = None
    vocabulary: Hex | None = None
    seconds: Seconds


class PairFacts(ReplyFacts):
    """A message to a partner, which comes as a tensor."""

    partner: SiteName
    examples: Count
    seconds: Seconds


class CompareFacts(PairFacts):
    """Size of what a pair shares."""

    shared: Count


# ---- rounds ------------------------------------------------------------------------------------------------


def _metrics(values: dict[str, Number]) -> dict[str, Number]:
    if len(values) > MAX_METRICS:
        raise ValueError(f"{len(values):,} metrics, expected at most {MAX_METRICS}")
    for name, value in values.items():
        if not METRIC.fullmatch(name):
            raise ValueError(f"a metric is called {shown(name)}, expected a plain name")
        if isinstance(value, int) and abs(value) > 2**63:
            raise ValueError(f"the metric {shown(name)} has {value.bit_length()} bits, expected a number")
    return values


Metric = Annotated[float, Field(allow_inf_nan=True)] | int
ReplyMetrics = Annotated[dict[str, Metric], AfterValidator(_metrics)]


class MaskedBy(StrictModel):
    """Digest of the terms under which an update was masked."""

    terms: Hex


class FitFacts(ReplyFacts):
    """An update, which comes as tensors; under masks its count is inside the sum."""

    examples: Count | None = None
    factor: Annotated[float, Field(gt=0)] | None = None
    metrics: ReplyMetrics
    secure_sum: MaskedBy | None = None
    seconds: Seconds


class EvaluateFacts(ReplyFacts):
    """Numbers on a split; none where they come as masked sums."""

    metrics: ReplyMetrics
    secure_sum: MaskedBy | None = None
    seconds: Seconds


class EstimateFacts(StrictModel):
    """A metric and its interval, which one patient's records do not have; not finite, it is left out of the
    record."""

    value: Metric
    low: Metric | None
    high: Metric | None

    @model_validator(mode="after")
    def _both_ends_or_none(self) -> Self:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has one end; expected both, or none")
        return self


class EvaluationFacts(StrictModel):
    """The final quality of one adapter, as `EvaluationRecord` keeps it."""

    site: SiteName
    role: Literal["participant", "unseen"]
    adapter: Literal["generic", "personalised", "none"]
    split: Word
    studies: Count
    metrics: dict[str, EstimateFacts]
    skipped_metrics: Annotated[dict[Word, str], Field(max_length=MAX_METRICS)] = Field(default_factory=dict)
    predictions: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,199}$")] | None = (
        None
    )

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _metrics(dict.fromkeys(self.metrics, 0))
        for name, text in self.skipped_metrics.items():
            if text != clean_text(text):
                raise ValueError(f"why {shown(name)} was skipped is {shown(text)}, expected a plain text")
        return self


class FinishFacts(ReplyFacts):
    """The final tests; none where they come as masked sums."""

    evaluations: Annotated[list[EvaluationFacts], Field(max_length=MOST_EVALUATIONS)]
    secure_sum: MaskedBy | None = None
    seconds: Seconds

    def problem(self, site: str) -> str:
        others = [item.site for item in self.evaluations if item.site != site]
        return f"it holds a test of {shown(others[0])}, expected tests of '{site}' only" if others else ""


class StepFacts(ReplyFacts):
    """A site's part of a step of a secure sum; the protocol reads it."""

    secure_sum: Annotated[dict[str, Any], AfterValidator(json_within(SECURE_SUM_BYTES))]


FACTS: dict[str, type[ReplyFacts]] = {
    "prepare": PrepareFacts,
    "sketch": SketchFacts,
    COUNT: CountFacts,
    OFFER: PairFacts,
    ANSWER: PairFacts,
    COMPARE: CompareFacts,
    "initialise": InitialiseFacts,
    "fit": FitFacts,
    "evaluate": EvaluateFacts,
    "finish": FinishFacts,
    "keys": StepFacts,
    "shares": StepFacts,
    "confirm": StepFacts,
    "reveal": StepFacts,
}
"""Task -> the facts of its reply."""


def check_facts(task: str, facts: Mapping[str, Any], site: str) -> None:
    """Check the facts of a reply.

    Args:
        site: who sent it; its final tests are of itself and of nobody else.

    Raises:
        MessageError: they are not what the task's reply holds.
    """
    checked = read(FACTS[task], facts, f"the reply to '{task}'")
    if problem := checked.problem(site):
        raise MessageError(f"the reply to '{task}' cannot be read: {problem}.")
