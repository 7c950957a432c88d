# SPDX-License-Identifier: Apache-2.0
"""What the tests of all tasks share: opening a result, the records of a split, the record of a test."""

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


class HasSplit(Protocol):
    """A record that belongs to a split."""

    @property
    def split(self) -> str: ...


Opened = TypeVar("Opened", covariant=True)


class ResultLoader(Protocol[Opened]):
    """A function that opens a result folder."""

    def __call__(
        self, folder: Path, *, personalised: Path | None, backbone: Path | None, precision: str, device: str
    ) -> Opened: ...


class Scores(Protocol):
    """The scores of an evaluation, with intervals, and why others were skipped."""

    @property
    def estimates(self) -> Mapping[str, Estimate]: ...

    @property
    def skipped(self) -> Mapping[str, str]: ...


Record = TypeVar("Record", bound=HasSplit)


def open_on_site(load: ResultLoader[Opened], result: Path, site: SiteConfig, adapter: Path | None) -> Opened:
    """Open a result folder on a site's base model and device.

    Args:
        adapter: the site's `personalised` folder instead of the result's adapter, or None.
    """
    return load(
        result,
        personalised=adapter,
        backbone=site.backbone.folder,
        precision=site.backbone.precision,
        device=device_of(site.device),
    )


def records_of_split(records: Iterable[Record], split: str, site: str, what: str) -> list[Record]:
    """Return the records of a split.

    Args:
        what: the word for one record, for the message.

    Raises:
        DataError: the site has none.
    """
    selected = [record for record in records if record.split == split]
    if not selected:
        raise DataError(f"site '{site}': no {what} in the split '{split}'.")
    return selected


def adapter_kind(adapter: Path | None) -> AdapterKind:
    """Return which adapter is tested: a site's `personalised` one, or the result's."""
    return "generic" if adapter is None else "personalised"


def evaluation_record(
    scored: Scores,
    path: Path,
    studies: int,
    site: str,
    role: Role,
    adapter: AdapterKind,
    split: str = "test",
) -> EvaluationRecord:
    """Return the record of one adapter. path: of the predictions, which stay at the site."""
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
