# SPDX-License-Identifier: Apache-2.0
"""What the tests of all methods have in common: how a result is opened, a split's records, what is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from medflare.core.errors import DataError
from medflare.core.run_record import Estimate, EvaluationRecord
from medflare.data.settings.site import SiteConfig
from medflare.models.backbone import device_of

AdapterKind = Literal["generic", "personalised", "none"]
Role = Literal["participant", "unseen"]


class OfSplit(Protocol):
    """A record that belongs to a split."""

    @property
    def split(self) -> str: ...


Made = TypeVar("Made", covariant=True)


class Opener(Protocol[Made]):
    """What opens a result folder."""

    def __call__(
        self, folder: Path, *, personalised: Path | None, backbone: Path | None, precision: str, device: str
    ) -> Made: ...


class Scored(Protocol):
    """What an evaluation found."""

    @property
    def estimates(self) -> Mapping[str, Estimate]: ...

    @property
    def skipped(self) -> Mapping[str, str]: ...


Kind = TypeVar("Kind", bound=OfSplit)


def opened(load: Opener[Made], result: Path, site: SiteConfig, adapter: Path | None) -> Made:
    """What a run made, on a site's base model and device; with its own `personalised` folder, where given."""
    return load(
        result,
        personalised=adapter,
        backbone=site.backbone.folder,
        precision=site.backbone.precision,
        device=device_of(site.device),
    )


def of_split(records: Iterable[Kind], split: str, site: str, what: str) -> list[Kind]:
    """The records of a split; DataError where a site has none. what: "note", "question"."""
    found = [record for record in records if record.split == split]
    if not found:
        raise DataError(f"site '{site}': no {what} in the split '{split}'.")
    return found


def kind_of(adapter: Path | None) -> AdapterKind:
    """What is tested: a site's own `personalised` folder, or the result's adapter."""
    return "generic" if adapter is None else "personalised"


def evaluation_record(
    scored: Scored,
    path: Path,
    studies: int,
    site: str,
    role: Role,
    adapter: AdapterKind,
    split: str = "test",
) -> EvaluationRecord:
    """The record of one adapter. path: of the predictions, which stay at the site."""
    return EvaluationRecord(
        site=site,
        role=role,
        adapter=adapter,
        split=split,
        studies=studies,
        metrics=dict(scored.estimates),
        skipped_metrics=dict(scored.skipped),
        predictions=path.name,
    )
