# SPDX-License-Identifier: Apache-2.0
"""What the tests of all text tasks have in common: the records of a split, and the evaluation record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from medflare.errors import DataError
from medflare.evaluation.run_record import Estimate, EvaluationRecord

AdapterKind = Literal["generic", "personalised", "none"]
Role = Literal["participant", "unseen"]


class OfSplit(Protocol):
    """A record that belongs to a split."""

    @property
    def split(self) -> str: ...


class Scored(Protocol):
    """What an evaluation found."""

    @property
    def estimates(self) -> Mapping[str, Estimate]: ...

    @property
    def skipped(self) -> Mapping[str, str]: ...


Kind = TypeVar("Kind", bound=OfSplit)


def of_split(records: Iterable[Kind], split: str, site: str, what: str) -> list[Kind]:
    """The records of a split; DataError where a site has none. what: "note", "question"."""
    found = [record for record in records if record.split == split]
    if not found:
        raise DataError(f"site '{site}': no {what} in the split '{split}'.")
    return found


def kind_of(adapter: Path | None) -> AdapterKind:
    """What is tested: a site's own `personalised` folder, or the result's adapter."""
    return "generic" if adapter is None else "personalised"


def tested_record(
    scored: Scored, path: Path, studies: int, site: str, role: Role, adapter: AdapterKind
) -> EvaluationRecord:
    """The record of one adapter on the test split. path: of the predictions, which stay at the site."""
    return EvaluationRecord(
        site=site,
        role=role,
        adapter=adapter,
        split="test",
        studies=studies,
        metrics=dict(scored.estimates),
        skipped_metrics=dict(scored.skipped),
        predictions=path.name,
    )
