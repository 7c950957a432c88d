# SPDX-License-Identifier: Apache-2.0
"""The key `policy` of site.yaml: what a hospital lets a job do. `medflare.egress.policy` applies it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from medflare.core.config import Settings
from medflare.core.plugins import installed_plugins

PROTECTIONS = ("mask", "he")
"""Protections that a site can require: masks that cancel in the sum, or homomorphic encryption."""
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg]?i?b?)\s*", re.IGNORECASE)
NamePatterns = Annotated[
    tuple[str, ...], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)
]
"""Names, or shell patterns of names: `fedmrg*`."""
ANY: NamePatterns = ("*",)


def parse_size(value: str) -> int:
    """Return the bytes of a size such as `64 MB`, `1.5GiB` or `4096`.

    Raises:
        ValueError: names the units.
    """
    match = _SIZE.fullmatch(value)
    unit = match[2].lower() if match else "?"
    if match is None or unit not in _UNITS:
        raise ValueError("is no size; write a number of bytes, or one with kB, MB, GB, KiB, MiB or GiB")
    return round(float(match[1]) * _UNITS[unit])


class PrivacyPolicy(Settings):
    """The privacy budget of this site's patients, over all jobs, and what a job must keep to.

    What a training patient adds to all that leaves is (epsilon, delta)-differentially private. What has no
    noise stays here, unless `outside` names it.
    """

    epsilon: float = Field(gt=0, description="most that may be spent on a patient, over all jobs")
    delta: float = Field(gt=0, lt=1, description="at which epsilon is counted; at most 1 / training patients")
    unit: Literal["patient"] = Field(default="patient", description="whose part is hidden")
    without_patient: Literal["refuse", "record"] = Field(
        default="refuse",
        description="of records that name none: refuse the job, or take each record for a patient",
    )
    accountant: Literal["rdp", "prv"] = Field(
        default="rdp", description="rdp is a bound; prv is numeric and about a tenth tighter"
    )
    min_noise: float = Field(default=0.3, gt=0, description="smallest noise multiplier of a job")
    max_sample_rate: float = Field(default=1.0, gt=0, le=1, description="largest sample rate of a job")
    min_patients: int = Field(default=20, ge=1, description="fewest training patients")
    outside: tuple[Literal["validation", "test"], ...] = Field(
        default=(),
        description="numbers without noise that may leave all the same: of validation after a round, of the "
        "final test. They are outside epsilon",
    )


class PolicyConfig(Settings):
    """Permissions of this site. A job can ask for more protection than this, never for less."""

    jobs: NamePatterns = Field(
        default=ANY, description="names, as the job's signed files say them, that may run here; with * and ?"
    )
    methods: NamePatterns = Field(default=ANY, description="methods that may run here (medflare methods)")
    submitters: NamePatterns = Field(
        default=ANY, description="who may sign a job: names of their certificates"
    )
    organisations: NamePatterns = Field(default=ANY, description="organisations whose people may submit")
    roles: NamePatterns = Field(default=ANY, description="roles that may submit: project_admin, lead, ...")
    unsigned_jobs: bool = Field(
        default=False,
        description="in a startup kit, whether a job may run that no admin of the federation signed",
    )
    require: NamePatterns = Field(
        default=(),
        description="protections that every update must have; [mask], [he], or ['mask|he'] for either",
    )
    min_sites: int = Field(default=1, ge=1, description="fewest sites in a run, this one included")
    partners: NamePatterns | None = Field(
        default=None, description="names of the only sites this one takes part with; None for any"
    )
    min_threshold: int | None = Field(
        default=None,
        ge=2,
        description="fewest sites that must work together to open a masked sum; updates without masks stay "
        "here, unless `require` allows 'mask|he'",
    )
    min_site_noise: float | None = Field(
        default=None,
        gt=0,
        description="smallest noise_multiplier of protection_settings.dp; updates without masks stay here",
    )
    min_examples: int = Field(
        default=1, ge=1, description="an update or an evaluation over fewer examples stays here"
    )
    most_rounds: int | None = Field(
        default=None, ge=1, description="longest run, in rounds; one of T visits counts as T exchanges"
    )
    max_bytes_per_round: int | None = Field(
        default=None, ge=1, description="most that may leave in one round: bytes, or a text like '64 MB'"
    )
    tensors: NamePatterns = Field(default=ANY, description="of the declared tensors, those that may leave")
    resume: bool = Field(
        default=True, description="whether a later job may go on with a run that ended before its time"
    )
    plugins: NamePatterns = Field(
        default=(),
        description="packages whose code may run here (methods, readers, metrics, protections); that one is "
        "installed is not enough",
    )
    knowledge_sketch: Literal["allow", "deny"] = Field(
        default="allow", description="whether a sketch of the knowledge graph may leave (rule ddcs)"
    )
    knowledge_exact: Literal["allow", "deny"] = Field(
        default="deny",
        description="whether exact sizes may be told, of the knowledge graph and of what it shares with each "
        "other site's (rule ddcs, distances: exact)",
    )
    train_losses: bool = Field(
        default=False,
        description="whether a job may have losses of training examples measured (split train; rule drfa)",
    )
    features: Literal["none", "prototypes", "raw"] = Field(
        default="none",
        description="image features that may leave: means of a class over many images (prototypes), or also "
        "those of single images (raw); fedmrg's settings.bank",
    )
    min_prototype: int = Field(
        default=16, ge=2, description="fewest images behind a prototype that leaves, whatever a job's k_min"
    )
    metrics: Literal["all", "none"] | NamePatterns = Field(
        default="all", description="of the metrics, those that may leave; the others are taken out"
    )

    dp: PrivacyPolicy | None = Field(
        default=None,
        description="train with differential privacy only, within this budget; None demands none",
    )

    @field_validator("max_bytes_per_round", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        return parse_size(value) if isinstance(value, str) else value

    @field_validator("require")
    @classmethod
    def _known(cls, value: NamePatterns) -> NamePatterns:
        offered = {plugin.name for plugin in installed_plugins() if plugin.group == "protections"}
        unknown = sorted({name for item in value for name in item.split("|")} - {*PROTECTIONS, *offered})
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)}: no such protection; there are: {', '.join(PROTECTIONS)}, and "
                "'mask|he' for either of them"
            )
        if {"mask", "he"} <= set(value):
            raise ValueError("no job can both mask and encrypt; write ['mask|he'] to accept either of them")
        return value
