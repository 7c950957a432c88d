# SPDX-License-Identifier: Apache-2.0
"""Rules as listings show them, from their declared facts and the schema of their settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from medflare.aggregation import rule_class
from medflare.aggregation.base import AggregationRule, allowed

_ID = re.compile(r"\b(MRG|TAR|ML|VG|DD|BL)-(\d+)(?: to \1-(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Citation:
    """Source of a rule or method: papers, and ids of the resolutions of docs/methods."""

    paper: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingListing:
    """One of a rule's settings; allowed: its values in words; says: what it does."""

    name: str
    default: Any
    allowed: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleListing:
    """One rule of the table; the fields of `aggregation.base.RuleFacts` have the same meaning."""

    name: str
    needs: str
    sum_with: dict[str, Any]
    instead: str
    streams: bool
    summary: str
    source: Citation
    settings: tuple[SettingListing, ...]


def rule_listing(name: str) -> RuleListing:
    """Return the facts of a rule with its default settings; ConfigError that lists the rules otherwise."""
    rule = rule_class(name)
    facts = rule.facts
    return RuleListing(
        name=name,
        needs=facts.needs,
        sum_with=dict(facts.sum_with),
        instead=facts.instead,
        streams=facts.streams,
        summary=facts.summary,
        source=citation_of(facts.source),
        settings=tuple(_settings(rule)),
    )


def citation_of(text: str) -> Citation:
    """Return the parts of `paper; another paper; ML-1, VG-2 to VG-5`."""
    parts = [part.strip() for part in text.split(";")]
    papers = [part for part in parts if not _ID.match(part)]
    return Citation(paper="; ".join(papers), ids=tuple(_ids(text)))


def _ids(text: str) -> Iterator[str]:
    for letters, first, last in _ID.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"{letters}-{number}"


def _settings(rule: type[AggregationRule]) -> Iterator[SettingListing]:
    schema = rule.Settings.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        says = " ".join(field.get("description", "").split())
        yield SettingListing(name=name, default=field["default"], allowed=allowed(field), says=says)
