# SPDX-License-Identifier: Apache-2.0
"""`knowledge` of site.yaml: what a site's knowledge graph is made of and under which key it is sketched.

DDCS, algorithms.md 6.1. Texts, triples and the key stay at the site: docs/client_selection.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medflare.cohort.variables import expanded
from medflare.config import Settings


class KnowledgeConfig(Settings):
    """From texts to a sketch. `vocabulary`, `key`, `context`, `hashes`, `kind` must be alike at all sites."""

    vocabulary: tuple[Path, ...] = Field(
        default=(),
        description="OBO files, or tables of id and label (.tsv); where two share a name, the first has it",
    )
    key: Path = Field(description="file with the secret that all hospitals share and the server never sees")
    context: str = Field(
        default="medflare", min_length=1, description="what the sketches are for; part of the key"
    )
    hashes: int = Field(default=1024, ge=2, le=2040, description="k of the signature, even")
    kind: Literal["set", "weighted"] = Field(
        default="set", description="set takes every triple alike, weighted by its confidence"
    )
    extractor: Literal["rules", "model", "none"] = Field(
        default="rules",
        description="rules; the site's own language model (backbone.folder); none: only `triples`",
    )
    together: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="rules: confidence of two concepts that only share a sentence; 0 leaves them out",
    )
    triples: tuple[Path, ...] = Field(
        default=(), description="graphs made elsewhere, which are added: head, relation, tail, confidence"
    )
    align: bool = Field(
        default=True,
        description="false: names stay as they are spelled and become no concepts (ablation)",
    )
    least: float = Field(default=0.0, ge=0, le=1, description="triples of less confidence are left out")

    @field_validator("vocabulary", "triples", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return expanded([value] if isinstance(value, str | Path) else value)

    @field_validator("key", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expanded(value)

    @model_validator(mode="after")
    def _has_something_to_read(self) -> KnowledgeConfig:
        if self.extractor == "rules" and not self.vocabulary:
            raise ValueError(
                "extractor: rules finds only names that a vocabulary has; name one or more files"
            )
        if self.extractor == "none" and not self.triples:
            raise ValueError("extractor: none needs `triples`, files of a graph that was made elsewhere")
        if self.hashes % 2:
            raise ValueError(f"hashes is {self.hashes}; expected an even number")
        return self

    def resolved(self, base: Path) -> KnowledgeConfig:
        """The same with every relative path counted from `base`."""
        return self.model_copy(
            update={
                "vocabulary": tuple(base / file.expanduser() for file in self.vocabulary),
                "triples": tuple(base / file.expanduser() for file in self.triples),
                "key": base / self.key.expanduser(),
            }
        )
