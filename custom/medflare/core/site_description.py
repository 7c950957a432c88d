# SPDX-License-Identifier: Apache-2.0
"""Description that a site gives of itself before round 1: counts, public facts, a digest of shared notes.

It leaves the site as JSON, is checked by the site's egress against these very fields, and is parsed by the
server. Nothing in it is about a single patient.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from medflare.core.adapter_config import check_adapter_config
from medflare.core.errors import RunError

OWN = "medflare-"
"""Begins the names of models that come with medflare, or that it makes anew."""
EMBEDDED = f"{OWN}embedded"
"""Begins the names of models whose weights come with medflare."""


class _Strict(BaseModel):
    """Unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class FrozenModel(Protocol):
    """A loaded backbone, as far as it is described."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def precision(self) -> str: ...


class BackboneFacts(_Strict):
    """The frozen model of a site; all sites must have the same fingerprint."""

    name: str
    fingerprint: str
    precision: str = ""

    @classmethod
    def of(cls, model: FrozenModel) -> BackboneFacts:
        """Return the facts of a loaded backbone."""
        return cls(name=model.name, fingerprint=model.fingerprint, precision=model.precision)


class SharedRecords(_Strict):
    """Count and digest of the validation records that all sites share (D_v, ML-15)."""

    notes: int
    sha256: str


class SiteDescription(_Strict):
    """One site before round 1, as its learner describes it."""

    backbone: BackboneFacts
    parameters: dict[str, int] = Field(default_factory=dict, description="communicated parameters by part")
    adapter_config: dict[str, Any] = Field(
        default_factory=dict, description="PEFT's configuration; empty without an adapter"
    )
    export: dict[str, Any] = Field(
        default_factory=dict, description="what the server needs to write the result folder"
    )
    examples: dict[str, int] = Field(default_factory=dict, description="split -> count")
    skipped: dict[str, int] = Field(default_factory=dict, description="reason -> count")
    heterogeneity: dict[str, Any] = Field(
        default_factory=dict, description="what data.heterogeneity says about the site"
    )
    paper: dict[str, Any] = Field(default_factory=dict, description="the paper's own counts, for comparison")
    protection: dict[str, Any] = Field(
        default_factory=dict, description="facts of the site's protection; set by the executor"
    )
    validation: SharedRecords | None = None

    @field_validator("adapter_config")
    @classmethod
    def _describes_an_adapter(cls, value: dict[str, Any]) -> dict[str, Any]:
        check_adapter_config(value)
        return value

    def to_json(self) -> dict[str, Any]:
        """Return the fields that were set, as the JSON that leaves the site."""
        fields = self.model_dump(exclude_unset=True)
        if self.validation is None:
            fields.pop("validation", None)
        out: dict[str, Any] = json.loads(json.dumps(fields))  # a configuration's numbers as keys become texts
        return out


def description_of(facts: Mapping[str, Any], site: str = "a site") -> SiteDescription:
    """Parse the description among the facts that a site answered `prepare` with.

    Raises:
        RunError: naming the site, where it is not a description.
    """
    try:
        return SiteDescription.model_validate(facts["describe"])
    except (KeyError, ValidationError) as error:
        raise RunError(
            f"what {site} says about itself before round 1 cannot be read: {error}. "
            "Give every site the same version of medflare."
        ) from None
