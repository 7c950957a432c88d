# SPDX-License-Identifier: Apache-2.0
"""Annotations of every test note, by annotators and by a model.

Files that sites write hold the notes' texts too, as those of report generation do, so that a page can show
them; they stay where the notes are, and a run record names them by a relative path. Scoring needs no text:
leave it out (`text: null`) of a file that is to be passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from medflare.core.run_record import RecordModel

KIND: Literal["extraction"] = "extraction"
SCHEMA_VERSION: Literal[1] = 1
PARSE_FAILURE = "parse_failure"
"""The fault of an output that is malformed as a whole (`parse_failure_rate`); others concern single spans."""
FAULT = re.compile(r"[a-z][a-z0-9_ -]{0,47}")


def normalised(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return spans in order, overlapping and adjacent ones merged; ValueError for none or an empty one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((int(start), int(end)) for start, end in spans):
        if not 0 <= start < end:
            raise ValueError(f"span [{start}, {end}) is empty or negative; offsets are 0 <= start < end")
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    if not merged:
        raise ValueError("a mention has no span; at least one is needed")
    return tuple(merged)


@dataclass(frozen=True, slots=True)
class EntityMention:
    """A typed place in a note: code points, end-exclusive, possibly discontinuous; kept normalised."""

    label: str
    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", normalised(self.spans))

    @property
    def mentions(self) -> tuple[EntityMention]:
        """The mentions that it consists of: itself."""
        return (self,)


@dataclass(frozen=True, slots=True)
class Link:
    """A modifier and the head entity it belongs to."""

    head: EntityMention
    modifier: EntityMention

    @property
    def mentions(self) -> tuple[EntityMention, EntityMention]:
        """The mentions that it consists of; under the type of the last one, the modifier, it is counted."""
        return (self.head, self.modifier)


class ScoredDocument(RecordModel):
    """One note: gold annotation and what one adapter made of it.

    `gold_entities` and `predicted_entities` hold what named entity recognition looks for; modifiers occur
    in links only. Links come twice: predicted for gold heads, and for predicted heads. None instead of a
    tuple says that the model was not asked; such a note does not count, while an empty tuple counts as
    nothing found.
    """

    kind: Literal["extraction"] = KIND
    schema_version: Literal[1] = SCHEMA_VERSION
    note_id: str
    patient_id: str = Field("", description="empty where the corpus does not say")
    site: str
    adapter: Literal["generic", "personalised", "none"]
    tasks: tuple[Literal["ner", "re"], ...] = Field(("ner", "re"), description="what the annotation covers")
    annotated: tuple[str, ...] | None = Field(None, description="types looked for; None for all")
    gold_entities: tuple[EntityMention, ...] = ()
    gold_links: tuple[Link, ...] = ()
    predicted_entities: tuple[EntityMention, ...] | None = None
    links_gold_heads: tuple[Link, ...] | None = None
    links_end_to_end: tuple[Link, ...] | None = None
    outputs: int = Field(0, ge=0, description="texts that the model wrote for this note")
    faults: dict[str, int] = Field(default_factory=dict, description="kind -> outputs with that fault")
    text: str | None = Field(default=None, description="about a patient: not in a file that is passed on")

    @model_validator(mode="before")
    @classmethod
    def _is_known(cls, row: Any) -> Any:
        if not isinstance(row, dict) or row.get("kind", KIND) != KIND:
            raise ValueError(f'expected an object with "kind": "{KIND}"')
        if (version := row.get("schema_version", SCHEMA_VERSION)) != SCHEMA_VERSION:
            raise ValueError(
                f"schema version {version}; this medflare reads version {SCHEMA_VERSION}. Write the file "
                "again with this version, or use the one that wrote it"
            )
        return row

    @model_serializer(mode="wrap")
    def _without_missing_fields(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in plain(self).items() if value is not None}

    @field_validator("faults")
    @classmethod
    def _kinds(cls, faults: dict[str, int]) -> dict[str, int]:
        for fault in faults:
            if not FAULT.fullmatch(fault):
                raise ValueError(f"'{fault}' is not the name of a fault; expected words such as unclosed_tag")
        return faults

    @model_validator(mode="after")
    def _no_more_faults_than_outputs(self) -> ScoredDocument:
        for fault, count in self.faults.items():
            if not 0 <= count <= self.outputs:
                raise ValueError(f"fault '{fault}' in {count} of {self.outputs} outputs")
        return self

    @property
    def key(self) -> tuple[str, str]:
        """Unique key of the note: site and note."""
        return self.site, self.note_id

    @property
    def unit(self) -> tuple[str, str, str]:
        """Unit of resampling: the patient with all notes, or the note where the patient is not known."""
        return (
            (self.site, "patient", self.patient_id) if self.patient_id else (self.site, "note", self.note_id)
        )
