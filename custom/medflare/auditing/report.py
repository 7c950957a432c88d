# SPDX-License-Identifier: Apache-2.0
"""audit.json: what an audit found. Numbers over many patients; no text, no id and no score of one patient."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medflare.core.errors import DataError
from medflare.core.run_record import Estimate, write_record

FILE, PERSONALISED = "audit.json", "audit_personalised.json"
"""Beside the record: of the run's adapter, and of those that sites keep for themselves."""


class AuditModel(BaseModel):
    """Exact types, finite numbers, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Counted(AuditModel):
    """Counts of what was scored."""

    patients: int = Field(ge=1)
    records: int = Field(ge=1)
    examples: int = Field(ge=1, description="prompts with their answers")


class AttackScores(AuditModel):
    """An attack over records or patients, with 95 % intervals over patients."""

    auc: Estimate
    tpr_at_1_percent: Estimate = Field(description="share recognised at 1 % false alarms")
    tpr_at_01_percent: Estimate = Field(description="share recognised at 0.1 % false alarms")


class Membership(AuditModel):
    """Membership inference: the site's training patients against its test patients."""

    members: Counted
    others: Counted
    mean_gain_members: float = Field(
        description="mean fall of the loss per answer token, from the frozen model to that with the adapter"
    )
    mean_gain_others: float
    records: AttackScores
    patients: AttackScores = Field(description="each patient scored by the mean of its records")
    without_adapter: Estimate = Field(
        description="AUC of the frozen model's own loss: away from 0.5, the two sides differ by themselves"
    )


class ShadowAttack(AuditModel):
    """The likelihood-ratio attack with shadow adapters (`likelihood_ratio`)."""

    shadows: int = Field(ge=4, description="adapters trained on halves of the site's own patients")
    records: AttackScores
    patients: AttackScores = Field(description="each patient scored by the mean of its records")
    offline_records: AttackScores = Field(
        description="by shadows without the record alone: an attacker who trained none with it"
    )
    offline_patients: AttackScores


class RepetitionScores(AuditModel):
    """Canaries of one number of repetitions."""

    repeat: int = Field(ge=1)
    inserted: int = Field(ge=0)
    left_out: int = Field(ge=0)
    exposure: float | None = Field(description="mean bits of inserted ones; about 1.4 without memory")
    exposure_left_out: float | None
    extracted: float | None = Field(description="share of inserted secrets that the model writes out")
    extracted_left_out: float | None


class Canaries(AuditModel):
    """Secrets of chance that were put into the training data, and what is found of them."""

    count: int = Field(ge=2)
    candidates: int = Field(ge=1, description="other secrets with which each is compared")
    repetitions: list[RepetitionScores]
    epsilon_lower_bound: float = Field(ge=0, description="with 95 % confidence, of this one run")
    delta: float = Field(gt=0, lt=1)
    guesses: int = Field(ge=1)
    right: int = Field(ge=0)


class SiteAudit(AuditModel):
    """Result of an audit at one site."""

    adapter: Literal["generic", "personalised"]
    epsilon: float | None = Field(
        description="of the run's record: what the accountant promises, if anything"
    )
    membership: Membership
    shadow_attack: ShadowAttack | None = None
    canaries: Canaries | None = None
    warnings: list[str] = Field(default_factory=list)


class AuditReport(AuditModel):
    """The audit of a run, site by site."""

    schema_version: Literal[1] = 1
    run_id: str
    method: str
    task: str
    version: str = Field(description="of medflare")
    sites: dict[str, SiteAudit]

    def write(self, path: Path) -> Path:
        """Write the report atomically."""
        write_record(path, self.model_dump_json(indent=1) + "\n")
        return path


def audits_in(path: Path, run_id: str) -> dict[str, SiteAudit]:
    """Return the audits of sites that a file has, which another one joins; none where there is no file.

    Raises:
        DataError: it is no audit, or that of another run.
    """
    if not path.exists():
        return {}
    report = read_audit(path)
    if report.run_id != run_id:
        raise DataError(f"{path}: is an audit of run '{report.run_id}', not of '{run_id}'. Move it away.")
    return report.sites


def read_audit(path: Path) -> AuditReport:
    """Return the report in a file.

    Raises:
        DataError: there is none, or it is not one of this schema.
    """
    try:
        return AuditReport.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path}: there is no audit. Make one with `medflare audit <run> -f site.yaml`."
        ) from None
    except (ValidationError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: is not an audit of schema 1: {error}") from None
