# SPDX-License-Identifier: Apache-2.0
"""`args` of the rounds controller in config_fed_server.json."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from medflare.core.config import Settings
from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.protections.registry import ProtectionName, get_protection
from medflare.protections.settings import ProtectionSettings
from medflare.selection.clock import read_profiles
from medflare.wire.compression import Downlink, Uplink

Late = Literal["discard", "next_round", "staleness_weighted"]
"""Treatment of an update that comes after its round."""


RoundMode = Literal["sync", "async"]
"""`sync`: the sites of a round train at the same time, on the same state; `async`: at their own pace."""


class RoundsSettings(Settings):
    """Settings of a run's rounds; those of the method stand in config_fed_client.json."""

    renamed: ClassVar[dict[str, str]] = {
        "min_accepted": "min_responses",
        "grace": "straggler_timeout",
        "bench_rounds": "suspend_rounds",
        "lost_rounds": "max_lost_rounds",
    }

    job: str = "job"
    """Name of the job, for the record and the page."""
    num_rounds: int = Field(5, ge=1)
    """Exchanges of updates; `--set exchanges=4` of a job multiplies its rounds to so many."""
    seed: NonNegativeInt = 0
    """Of the run; every site derives its own from it."""
    steps: int | None = Field(None, ge=1)
    """Optimiser steps of a site in a round; without it `fraction` decides."""
    fraction: float | None = Field(None, gt=0, le=1)
    """Share of the training examples a site visits in a round; without both, one epoch."""
    limit: int | None = Field(None, ge=1)
    """At most this many studies in an evaluation of a round."""
    final_limit: int | None = Field(None, ge=1)
    """At most this many test studies at the end."""
    sites: list[str] = Field(default_factory=list)
    """The sites that must be there from the start; empty for those the job was deployed to."""
    min_responses: int | None = Field(None, ge=1)
    """Accepted updates without which a round fails; default: all of up to three sites, all but one of more;
    where the rule samples clients, one of those it sampled, or three under a protection."""
    deadline: float = Field(3600.0, gt=0)
    """Seconds a site may take for one task."""
    margin: float = Field(10.0, ge=0)
    """Seconds to wait beyond the deadline for the site to say so itself."""
    straggler_timeout: float = Field(60.0, ge=0)
    """Seconds to wait for the other sites of a round once `min_responses` updates are there, and for a site
    that passed its last deadline; preparing, validation and tests wait for all others until the deadline."""
    straggler_share: float | None = Field(None, gt=0)
    """In a training round in place of `straggler_timeout`: the share of the time that the round took until
    `min_responses` updates were there. 0.5 waits half as long again for the others."""
    mandatory_sites: list[str] = Field(default_factory=list)
    """Sites without whose update a training round fails; they are waited for until the deadline."""
    late: Late = "discard"
    """An update of a straggler that comes after its round: `discard` it, add it in the `next_round` as it is,
    or `staleness_weighted`, with (1 + s)^-1/2 of its change after s rounds. Such a site is not asked anew
    before it has answered, or its deadline has passed."""
    mode: RoundMode = "sync"
    """`async`: each site trains on at its own pace, and a round ends once `buffer` updates are there, of
    whatever state (FedBuff). An update that is s rounds old counts with (1 + s)^-1/2 of its change."""
    buffer: int = Field(2, ge=1)
    """Of mode `async`: the updates that make a new state. Fewer than half of the sites is what makes it fast;
    1 lets each update by itself make a state."""
    suspend_rounds: int = Field(2, ge=0)
    """Rounds in which a silent site is left out before it is eligible again."""
    evaluate_every: int = Field(1, ge=0)
    """Evaluate the global state on every site's validation split after every so many rounds; 0 for never."""
    best_metric: str = "val_loss"
    """Mean over sites that decides which round is the best."""
    best_mode: Literal["min", "max"] = "min"
    """The best round is that of the smallest or of the largest `best_metric`."""
    sketch_growth: float = Field(0.1, ge=0)
    """Share of its texts by which a site's data must have grown or shrunk before it sketches them again."""
    max_lost_rounds: int = Field(3, ge=0)
    """Rounds in a row in which too few of the sites that the rule sampled may answer, before the run ends."""
    max_norm_ratio: float | None = Field(100.0, gt=1)
    """An update is refused if its norm, or that of the sums beside it, is more than so many times the median
    over the sites; null: no limit. Of a sum that the server cannot look into, the protection's own bounds
    decide."""
    max_share: float = Field(0.8, gt=0, le=1)
    """Share of the weight of all sites that one site has at most, whatever it declares; 1 for no limit."""
    latency_profiles: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Site -> seconds_per_example, down, up, overhead, jitter, reliability: a simulated clock counts then."""
    simulated_deadline: float | None = Field(None, gt=0)
    """Simulated seconds a site may take in an exchange; default: `deadline`."""
    resumes: str = Field("", pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,127})?$")
    """Name of the run that this job goes on with: FLARE's id of its first job; empty to begin a run.
    `medflare resume` writes it into both configurations."""
    max_resumptions: int = Field(0, ge=0)
    """Number of times that a run whose processes died goes on by itself: in `medflare run`, and at a server
    while `medflare resume --watch` looks after it. A run that failed, or that somebody stopped, does not."""
    canary: bool = False
    """One step at every site before round 1, checked, measured and thrown away."""
    uplink: Uplink = "bfloat16"
    """Number format of sites' updates; below bf16 with error feedback at the site, and never under masks."""
    downlink: Downlink = "bfloat16"
    """Number format in which the server's state is sent; the server itself keeps it in full."""
    protection: ProtectionName = "none"
    """Protection of updates from the server: masks that cancel in the sum, or encryption."""
    protection_settings: ProtectionSettings = Field(default_factory=ProtectionSettings)
    scorer: Literal["process", "thread"] = "process"
    """Process or thread in which the server scores updates, for a rule that needs it."""
    aggregator_id: str = "aggregator"
    """Component of the job that holds the rule."""
    persistor_id: str = "persistor"
    """Component that writes the result's folders."""
    progress_id: str = "progress"
    """Component that writes the events of the run and its latest state."""

    @property
    def late_updates(self) -> Late:
        """Return what becomes of late updates: `late`, and in mode `async` always by staleness."""
        return "staleness_weighted" if self.mode == "async" else self.late

    @property
    def temporal(self) -> TemporalSettings | None:
        """Return the settings of temporal rounds; None for rounds of one exchange."""
        return None

    @field_validator("latency_profiles")
    @classmethod
    def _readable(cls, value: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        read_profiles(value)
        return value

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        """Refuse settings without effect: who asks for noise in masked sums must not run without masks."""
        protection = get_protection(self.protection)
        unread = sorted(self.protection_settings.model_fields_set - protection.settings_read)
        faults = [
            f"protection_settings.{name} has no effect with protection '{protection.name}'" for name in unread
        ]
        if "buffer" in self.model_fields_set and self.mode != "async":
            faults.append(f"buffer has no effect with mode '{self.mode}'")
        if self.simulated_deadline is not None and not self.latency_profiles:
            faults.append("simulated_deadline has no effect without latency_profiles")
        if faults:
            raise ValueError(f"{'; '.join(faults)}. Leave it out, or set what it belongs to")
        return self


class TemporalSettings(RoundsSettings):
    """Settings of a run of temporal rounds, each of `visits` exchanges."""

    visits: int = Field(1, ge=1)
    """T, exchanges of updates in a round; the same as the rule's `visits`, where it has any."""
    mixture: MixtureSettings | None = None
    """Of patients' profiles, as the method's settings have it; `federated` is fitted before round 1."""

    @property
    def temporal(self) -> TemporalSettings | None:
        return self

    @field_validator("late")
    @classmethod
    def _of_its_visit(cls, value: Late) -> Late:
        if value != "discard":
            raise ValueError("an update of one visit cannot count for the next one; expected 'discard'")
        return value

    @field_validator("mode")
    @classmethod
    def _visit_by_visit(cls, value: RoundMode) -> RoundMode:
        if value != "sync":
            raise ValueError("an update of one visit cannot count for the next one; expected 'sync'")
        return value
