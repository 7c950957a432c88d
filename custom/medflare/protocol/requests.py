# SPDX-License-Identifier: Apache-2.0
"""Requests as a site reads them: one strict model, and one for the options of each task.

A site parses every request by these before anything else looks at it (`messages.read_request`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from medflare.core.hints import MOST_COMPONENTS, MOST_SITES, RoundHints
from medflare.egress.declaration import ANSWER, COMPARE, COUNT, OFFER
from medflare.egress.failures import MessageError
from medflare.protocol.strict_model import (
    Count,
    ProtectionWord,
    RunId,
    SiteName,
    SiteNames,
    StrictModel,
    Word,
    json_within,
    read,
)
from medflare.wire.compression import Downlink, Uplink
from medflare.wire.plan_codec import BEFORE_ROUNDS, FIRST_EXCHANGE, MOST_ROUNDS, SEED, PlanMessage

MIB = 2**20
StepPart = Annotated[dict[str, Any], AfterValidator(json_within(MIB))]
"""One site's part of a step of a secure sum; the protocol reads it."""
Parts = Annotated[dict[SiteName, StepPart], Field(max_length=MOST_SITES)]


# ---- options, task by task ---------------------------------------------------------------------------------


class MixtureOption(StrictModel):
    """The mixture of profiles whose sums are to be declared."""

    components: int = Field(ge=1, le=MOST_COMPONENTS)


class TaskOptions(StrictModel):
    """Options of a request for one task."""

    def plan_problem(self, steps: int | None) -> str:
        """Return why the task cannot have a plan of so many steps; empty if it can."""
        return ""


class PrepareOptions(TaskOptions):
    """Before round 1: the job's name, what the rule asks of local training, and a mixture to declare.

    Attributes:
        settings_sha256: of the method and settings that were submitted (`federation.submitted_job`).
    """

    job: Word = "job"
    settings_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    hints: RoundHints = Field(default_factory=RoundHints)
    mixture: MixtureOption | None = None


class SketchOptions(TaskOptions):
    """The sketches that the server has, the exchange of each, and the growth from which it wants new ones."""

    held: Annotated[dict[SiteName, int], Field(max_length=MOST_SITES)]
    exchange: int = Field(ge=-1, le=MOST_ROUNDS)
    growth: float = Field(ge=0, le=1e6)


class NoOptions(TaskOptions):
    """A task that needs none."""


class OfferOptions(TaskOptions):
    """A pair of an exact comparison."""

    partner: SiteName
    elements: Count
    asks: bool


class PartnerOptions(TaskOptions):
    """A further message of an open pair."""

    partner: SiteName


class SharesOfRound(StrictModel):
    """Shares that the sites of a masked sum sealed for each other: receiver -> sender -> sealed shares."""

    shares: Annotated[dict[SiteName, Parts], Field(max_length=MOST_SITES)]


class EncryptedState(StrictModel):
    """Facts by which a site reads an encrypted state and weighs its update."""

    weights: Annotated[list[Annotated[float, Field(gt=0)]], Field(max_length=MOST_ROUNDS)]
    terms: Annotated[dict[Word, StepPart], Field(max_length=8)]
    weighing: StepPart


class StateOptions(TaskOptions):
    """Options beside a state, under encryption."""

    encrypted: EncryptedState | None = None


class FitOptions(StateOptions):
    """Training: whether the update will be thrown away, and what its protection needs."""

    canary: bool = False
    secure_sum: SharesOfRound | None = None

    def plan_problem(self, steps: int | None) -> str:
        return f"a canary of {steps} steps, expected 1" if self.canary and steps != 1 else ""


class EvaluateOptions(StateOptions):
    """The split to measure on, and under masks what hides its numbers."""

    split: Literal["train", "val", "test"]
    secure_sum: SharesOfRound | None = None


class FinishOptions(StateOptions):
    """The final test: what hides its numbers, and where only sites can read the result, its model card."""

    secure_sum: SharesOfRound | None = None
    card: StepPart | None = None


class Terms(StrictModel):
    """Parameters that the sites of a masked sum agree on; `RoundParameters` reads them."""

    terms: StepPart


class KeysOptions(TaskOptions):
    """First step of a secure sum."""

    secure_sum: Terms


class Adverts(StrictModel):
    """The keys of all sites."""

    adverts: Parts


class SharesOptions(TaskOptions):
    """Second step of a secure sum."""

    secure_sum: Adverts


class Survivors(StrictModel):
    """Sites whose updates are in the sum."""

    survivors: SiteNames


class ConfirmOptions(TaskOptions):
    """Third step of a secure sum, after training."""

    secure_sum: Survivors


class Confirmations(StrictModel):
    """Confirmations of the survivors."""

    confirmations: Parts


class RevealOptions(TaskOptions):
    """Last step of a secure sum."""

    secure_sum: Confirmations


OPTIONS: dict[str, type[TaskOptions]] = {
    "prepare": PrepareOptions,
    "sketch": SketchOptions,
    COUNT: NoOptions,
    OFFER: OfferOptions,
    ANSWER: PartnerOptions,
    COMPARE: PartnerOptions,
    "initialise": NoOptions,
    "fit": FitOptions,
    "evaluate": EvaluateOptions,
    "finish": FinishOptions,
    "keys": KeysOptions,
    "shares": SharesOptions,
    "confirm": ConfirmOptions,
    "reveal": RevealOptions,
}
"""Task -> the options that its request may have."""
TaskName = Literal[
    "prepare",
    "sketch",
    "count",
    "offer",
    "answer",
    "compare",
    "initialise",
    "fit",
    "evaluate",
    "finish",
    "keys",
    "shares",
    "confirm",
    "reveal",
]
NEED_PLAN = frozenset({"fit", "evaluate", "finish", "keys", "shares", "confirm", "reveal"})
SUMMED = frozenset({"fit", "keys", "shares", "confirm", "reveal"})
"""Tasks of an exchange of sums alone; no other one has a round below -1."""
MAY_HAVE_PLAN = NEED_PLAN | {"sketch"}


# ---- the request -------------------------------------------------------------------------------------------


class RequestMessage(StrictModel):
    """A request without its tensors; the fields are those of `messages.Request`."""

    task: TaskName
    run_id: RunId
    round: int = Field(ge=FIRST_EXCHANGE, le=MOST_ROUNDS)
    roster: SiteNames
    deadline: float = Field(gt=0)
    uplink: Uplink
    downlink: Downlink
    protection: ProtectionWord
    seed: int = Field(ge=-SEED, lt=SEED)
    plan: dict[str, Any]
    options: dict[str, Any]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if len(set(self.roster)) < len(self.roster):
            raise ValueError("a site stands twice in the roster, expected each once")
        if self.round < BEFORE_ROUNDS and self.task not in SUMMED:
            raise ValueError(f"'{self.task}' of round {self.round}, expected -1 or more")
        if self.task in NEED_PLAN and not self.plan:
            raise ValueError(f"'{self.task}' without a plan")
        if self.plan and self.task not in MAY_HAVE_PLAN:
            raise ValueError(f"'{self.task}' with a plan, expected none")
        if self.round != (self.plan.get("round") if self.plan else BEFORE_ROUNDS):
            raise ValueError(
                f"'{self.task}' of round {self.round} with a plan of another, expected the same number"
            )
        return self


def check_request(meta: Any, task_name: str, site: str = "") -> RequestMessage:
    """Return a request's fields, after its plan and its options were read by their own models too.

    Args:
        task_name: as FLARE called the task.
        site: who was asked; it must be in the roster. Empty for anybody.

    Raises:
        MessageError: whatever is not as a request must be, with what was found and what was expected.
    """
    what = f"the request '{task_name}'"
    request = read(RequestMessage, meta, what)
    problem = ""
    if request.task != task_name:
        problem = f"it is for '{request.task}'"
    elif site and site not in request.roster:
        problem = f"'{site}' is not in its roster of {len(request.roster)} sites"
    if problem:
        raise MessageError(f"{what} cannot be read: {problem}.")
    options = read(OPTIONS[request.task], request.options, f"{what}, options")
    if request.plan:
        plan = read(PlanMessage, request.plan, f"{what}, plan")
        if problem := options.plan_problem(plan.steps):
            raise MessageError(f"{what} cannot be read: {problem}.")
    return request
