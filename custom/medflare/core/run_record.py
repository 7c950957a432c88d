# SPDX-License-Identifier: Apache-2.0
"""run.json: what a run was, what happened in it and what it made. Tables and pages read only this.

Schema 2 names the task of the run (`task`). `read_record` also reads schema 1, which did not.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from medflare.core.errors import DataError
from medflare.core.site_description import SiteDescription

SCHEMA_VERSION = 2
ALL_SITES = "all sites"
"""In the place of a site's name: the sum over sites, where no single one can be read."""


AdapterKind = Literal["generic", "personalised", "none"]
"""Adapter that is tested: the shared one, a site's own, or none."""


class RecordModel(BaseModel):
    """Base of everything written to disk: unknown keys are refused, so the schema is written down."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


class Traffic(RecordModel):
    """Bytes that one site sent and received in one round, counted from the messages' tensors.

    Attributes:
        sent, received: bytes, by the site.
    """

    sent: int = 0
    received: int = 0


class RoundRecord(RecordModel):
    """One round as the server saw it.

    Attributes:
        seconds: that it took.
        traffic: site -> bytes.
    """

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
    late: dict[str, int] = Field(
        default_factory=dict, description="site -> rounds by which its accepted update was late"
    )
    metrics: dict[str, dict[str, float]] = Field(default_factory=dict, description="site -> name -> value")
    mean: dict[str, float] = Field(default_factory=dict, description="example-weighted mean over sites")
    traffic: dict[str, Traffic] = Field(default_factory=dict)
    checks: dict[str, float] = Field(default_factory=dict, description="norms of the global update")
    rule: dict[str, Any] = Field(default_factory=dict, description="what the aggregation rule reports")
    protection: dict[str, Any] = Field(default_factory=dict, description="what a secure sum reports")
    exchanges: list[RoundRecord] = Field(
        default_factory=list, description="of a temporal round: one for each visit, counted through the run"
    )


class SiteRecord(RecordModel):
    """Declaration of a site before round 1.

    Attributes:
        backbone: name of its model.
        fingerprint: SHA-256 of the model's files.
    """

    backbone: str
    fingerprint: str
    precision: str = Field("", description="of the frozen weights: what `auto` in site.yaml chose")
    examples: dict[str, int] = Field(default_factory=dict, description="split -> count")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> count")
    heterogeneity: dict[str, Any] = Field(
        default_factory=dict, description="what data.heterogeneity reports of the site"
    )

    @classmethod
    def of(cls, description: SiteDescription) -> SiteRecord:
        """Return the part of a site's description that the record keeps."""
        return cls(
            backbone=description.backbone.name,
            fingerprint=description.backbone.fingerprint,
            precision=description.backbone.precision,
            examples=description.examples,
            skipped=description.skipped,
            heterogeneity=description.heterogeneity,
        )


class Estimate(RecordModel):
    """A metric with its 95 % bootstrap interval over studies.

    A mean that was opened of a secure sum has none: only the sites could compute one of it. Nor has the score
    of one study, or of one patient's.

    Attributes:
        value: from 0 to 1 where the metric is a share.
        low, high: ends of the interval.
    """

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both ends of the interval; None where there is none."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class EvaluationRecord(RecordModel):
    """Final quality of one adapter on one site's split, or its mean over sites where only a sum is known.

    Attributes:
        role: whether the site took part in the training.
        adapter: the shared one, the site's own, or none (zero-shot).
        split: of the site's records, or `all`.
        studies: records that were tested.
        metrics: name -> value.
    """

    site: str = Field(description="or 'all sites', of a mean over `sites` weighted by their studies")
    role: Literal["participant", "unseen"]
    adapter: AdapterKind
    split: str
    studies: int
    metrics: dict[str, Estimate]
    sites: list[str] = Field(default_factory=list, description="in the sum, of 'all sites'")
    skipped_metrics: dict[str, str] = Field(default_factory=dict, description="metric -> why")
    predictions: str | None = Field(None, description="path of the per-study file, relative to the record")


class ComparisonRecord(RecordModel):
    """Two systems on the same studies: `ours` minus `theirs`, 95 % interval, two-sided p-value.

    Attributes:
        metric: its name.
        theirs: the other system.
        value, low, high: the difference and its interval, which one patient's studies do not have.
        p: two-sided, of a permutation test.
    """

    metric: str
    site: str = Field(description="where both were scored; 'all' for pooled studies")
    ours: str = Field(
        description="as tables name it: '<method> <adapter>', for instance 'FedMRG personalised'"
    )
    theirs: str
    value: float
    low: float | None
    high: float | None
    p: float


class LocalBaseline(RecordModel):
    """A site that trained alone with the job and budget of the run, and what that was worth somewhere."""

    trained_at: str = Field(description="the only site of that training")
    evaluation: EvaluationRecord = Field(description="its `predictions` are relative to the run's record")
    differences: list[ComparisonRecord] = Field(
        default_factory=list, description="federated minus alone on the same records, where both are here"
    )


class Resumption(RecordModel):
    """A later job that went on with the run."""

    job: str = Field(description="FLARE's id of it")
    exchange: int = Field(description="0-based; the first exchange of updates that it did")
    at: str = Field(description="date and time, UTC")


class RunRecord(RecordModel):
    """The whole run.

    Attributes:
        schema_version: of this file.
        job: name of the job.
        method: its name; `medflare methods` lists them.
        run_id: FLARE's id of the run's first job.
        status: running until the end is written; stopped by a person, paused by `medflare pause`.
        reason: why it failed, stopped or paused.
        started: date and time, UTC.
        seconds: from the start to the last entry.
        configuration: settings of the controller, and later of the method, as they were in force.
        versions: package -> version, at the server.
        seed: of the run.
        sites: name -> what it declared.
        protections: what sealed the sites' updates.
        rounds: in order.
        best_metric: by which the best round was chosen.
        evaluations: final tests.
        comparisons: paired differences of systems.
    """

    schema_version: int = SCHEMA_VERSION
    job: str
    method: str
    task: str = Field(
        default="", description="name of a Task; empty until the first site has declared its method"
    )
    run_id: str
    status: Literal["running", "completed", "failed", "stopped", "paused"] = "running"
    reason: str = ""
    started: str
    seconds: float = 0.0
    configuration: dict[str, Any] = Field(default_factory=dict)
    versions: dict[str, str] = Field(default_factory=dict)
    seed: int = 0
    sites: dict[str, SiteRecord] = Field(default_factory=dict)
    parameters: dict[str, int] = Field(default_factory=dict, description="shared parameter counts by part")
    expected_bytes_per_direction: int = Field(default=0, description="of a site's message, as compressed")
    expected_bytes_down: int = Field(default=0, description="of a message to a site; 0 if unknown")
    paper: dict[str, Any] = Field(
        default_factory=dict, description="sizes as the paper states them, for comparison"
    )
    protections: list[str] = Field(default_factory=list)
    epsilon: float | None = Field(
        default=None, description="largest that a site counted for its patients in this run; updates alone"
    )
    delta: float | None = Field(default=None, description="largest at which a site counted it")
    preparation: dict[str, Any] = Field(
        default_factory=dict, description="what the sites agreed on before round 1, and how"
    )
    resumptions: list[Resumption] = Field(
        default_factory=list, description="jobs that went on with the run after a crash or a pause"
    )
    rounds: list[RoundRecord] = Field(default_factory=list)
    best_round: int | None = Field(None, description="0-based")
    best_metric: str = ""
    evaluations: list[EvaluationRecord] = Field(default_factory=list)
    comparisons: list[ComparisonRecord] = Field(default_factory=list)
    alone: list[LocalBaseline] = Field(
        default_factory=list, description="of each participant, where a local baseline was asked for"
    )
    artefacts: dict[str, str] = Field(default_factory=dict, description="name -> path relative to the record")
    synthetic: list[str] = Field(
        default_factory=list, description="sites whose cohort medflare made, where the simulator saw that"
    )

    def write(self, path: Path) -> None:
        """Write the record atomically, so that a reader never sees half of it."""
        write_record(path, self.model_dump_json(indent=1))


def write_record(path: Path, text: str) -> None:
    """Write the JSON of a record atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


def read_record(path: Path) -> RunRecord:
    """Return the record at `path`, of this schema or the one before.

    Args:
        path: run.json, or a folder that holds it.

    Raises:
        DataError: there is no record, or it is not one of a schema that this version reads.
    """
    path = path / "run.json" if path.is_dir() else path
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return _validated(data)
    except FileNotFoundError:
        raise DataError(f"{path}: there is no run record. Name a folder that `medflare run` made.") from None
    except (OSError, ValueError, RecursionError) as error:  # of JSON, of a field, or of the schema's number
        raise DataError(f"{path}: is not a run record of schema 1 to {SCHEMA_VERSION}: {error}") from None


def _validated(data: Any) -> RunRecord:
    """Return the record that JSON holds, as this schema has it."""
    version = data.get("schema_version", 1) if isinstance(data, dict) else SCHEMA_VERSION
    if version == 1:
        record = RunRecord.model_validate({**data, "schema_version": SCHEMA_VERSION})
        return record.model_copy(update={"task": _task_of_schema_1(record)})
    if version != SCHEMA_VERSION:
        raise ValueError(f"it has schema {version}. Read it with the version of medflare that wrote it.")
    return RunRecord.model_validate(data)


def _task_of_schema_1(record: RunRecord) -> str:
    """Return the task of a record that does not name it, by the scores it holds.

    This is the only place that infers a task: a record of schema 2 names it.
    """
    evaluated = {name for item in record.evaluations for name in item.metrics}
    curves = {name.partition("_")[2] for entry in record.rounds for name in entry.mean}
    scores = evaluated or curves
    if any(name.startswith(("ner_", "re_gold_", "re_e2e_")) for name in scores):
        return "extraction"
    if "accuracy" in scores:
        return "questions"
    if "length_ratio" in scores:
        return "summaries"
    visits = any(entry.exchanges for entry in record.rounds)
    return "visits" if visits or any(name.startswith("visit_") for name in scores) else "reports"
