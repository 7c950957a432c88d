# SPDX-License-Identifier: Apache-2.0
"""run.json: what a run was, what happened in it and what it made. Tables and pages read only this."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import DataError

SCHEMA_VERSION = 1


class Part(BaseModel):
    """Base of the record's parts: unknown keys are refused, so that the schema stays written down."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Traffic(Part):
    """Bytes that one site sent and received in one round, counted from the messages' tensors."""

    sent: int = 0
    received: int = 0


class RoundRecord(Part):
    """One round as the server saw it."""

    round: int = Field(description="0-based, as in RoundPlan; pages show it counted from 1")
    seconds: float
    simulated_seconds: float | None = Field(
        default=None, description="of the simulated clock at the round's end, if there is one"
    )
    timings: dict[str, dict[str, float]] = Field(
        default_factory=dict, description="site -> compute, transfer: seconds, by the clock that counts"
    )
    accepted: dict[str, int] = Field(default_factory=dict, description="site -> training examples")
    absent: dict[str, str] = Field(default_factory=dict, description="site -> reason, for all others")
    metrics: dict[str, dict[str, float]] = Field(default_factory=dict, description="site -> name -> value")
    mean: dict[str, float] = Field(default_factory=dict, description="example-weighted mean over sites")
    traffic: dict[str, Traffic] = Field(default_factory=dict)
    checks: dict[str, float] = Field(default_factory=dict, description="norms of the global update")
    rule: dict[str, Any] = Field(default_factory=dict, description="what the aggregation rule reports")
    protection: dict[str, Any] = Field(default_factory=dict, description="what a secure sum reports")
    exchanges: list[RoundRecord] = Field(
        default_factory=list, description="of a temporal round: each visit's own, counted through the run"
    )


class SiteRecord(Part):
    """What a site declared before round 1."""

    backbone: str
    fingerprint: str
    examples: dict[str, int] = Field(default_factory=dict, description="split -> count")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> count")
    heterogeneity: dict[str, Any] = Field(
        default_factory=dict, description="what cohort.partition.heterogeneity says"
    )


class Estimate(Part):
    """A metric with its 95 % bootstrap interval over studies."""

    value: float
    low: float
    high: float


class EvaluationRecord(Part):
    """Final quality of one adapter on one site's split."""

    site: str
    role: Literal["participant", "unseen"]
    adapter: Literal["generic", "personalised", "none"]
    split: str
    studies: int
    metrics: dict[str, Estimate]
    skipped_metrics: dict[str, str] = Field(default_factory=dict, description="metric -> why")
    predictions: str | None = Field(None, description="path of the per-study file, relative to the record")


class ComparisonRecord(Part):
    """Two systems on the same studies: `ours` minus `theirs`, 95 % interval, two-sided p-value."""

    metric: str
    site: str = Field(description="where both were scored; 'all' for pooled studies")
    ours: str = Field(
        description="as tables name it: '<method> <adapter>', for instance 'FedMRG personalised'"
    )
    theirs: str
    value: float
    low: float
    high: float
    p: float


class RunRecord(Part):
    """The whole run."""

    schema_version: int = SCHEMA_VERSION
    job: str
    method: str
    run_id: str
    status: Literal["running", "completed", "failed", "stopped"] = "running"
    reason: str = ""
    started: str
    seconds: float = 0.0
    configuration: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    seed: int = 0
    sites: dict[str, SiteRecord] = Field(default_factory=dict)
    parameters: dict[str, int] = Field(default_factory=dict, description="shared parameter counts by part")
    expected_bytes_per_direction: int = Field(default=0, description="of a site's message, as compressed")
    expected_bytes_down: int = Field(default=0, description="of a message to a site; 0 if not told")
    paper: dict[str, Any] = Field(
        default_factory=dict, description="the paper's own arithmetic, for comparison"
    )
    protections: list[str] = Field(default_factory=list)
    epsilon: float | None = None
    preparation: dict[str, Any] = Field(
        default_factory=dict, description="what the sites agreed on before round 1, and how"
    )
    rounds: list[RoundRecord] = Field(default_factory=list)
    best_round: int | None = Field(None, description="0-based")
    best_metric: str = ""
    evaluations: list[EvaluationRecord] = Field(default_factory=list)
    comparisons: list[ComparisonRecord] = Field(default_factory=list)
    artefacts: dict[str, str] = Field(default_factory=dict, description="name -> path relative to the record")

    def write(self, path: Path) -> None:
        """Writes atomically, so that a reader never sees half a record."""
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(self.model_dump_json(indent=1), encoding="utf-8")
        os.replace(scratch, path)


def read_record(path: Path) -> RunRecord:
    """The record at `path` (a file, or a folder that holds run.json); DataError says what is wrong."""
    path = path / "run.json" if path.is_dir() else path
    try:
        return RunRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise DataError(f"{path}: there is no run record. Name a folder that `medflare run` made.") from None
    except (json.JSONDecodeError, ValidationError) as error:
        raise DataError(f"{path}: is not a run record of schema {SCHEMA_VERSION}: {error}") from None
