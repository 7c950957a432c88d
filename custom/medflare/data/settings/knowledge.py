# SPDX-License-Identifier: Apache-2.0
"""`knowledge` of site.yaml: what a site's knowledge graph is made of and under which key it is sketched.

DDCS. Texts, triples and the key stay at the site: docs/methods/ddcs.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from medflare.core.config import Settings
from medflare.core.variables import ExpandedPath


class ImportConfig(Settings):
    """A graph that another program made."""

    shorthand: ClassVar[str] = "path"

    path: ExpandedPath = Field(description="of its file, in the folder of site.yaml")
    form: Literal["columns", "edc", "numbered"] = Field(
        default="columns",
        description="head, relation, tail, confidence with tabs; EDC's lists; numbers with entities.dict and "
        "relations.dict beside the file, as GreenKGC has them",
    )


class CompletionConfig(Settings):
    """Triples that the graph itself suggests, by an embedding of it (PyKEEN, extra `knowledge`)."""

    model: Literal["RotatE", "TransE", "ComplEx"] = Field(default="RotatE", description="the embedding")
    width: int = Field(default=64, ge=2, description="numbers of an entity's embedding")
    epochs: int = Field(default=100, ge=1, description="passes over the triples")
    top: int = Field(default=3, ge=1, description="tails proposed for each head and relation")
    least_score: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="proposals are added whose score had this share of facts, measured on hidden triples",
    )
    support: int = Field(default=10, ge=2, description="relations with fewer triples are left alone")
    seed: NonNegativeInt = Field(default=0, description="of hidden triples and of training")


class KnowledgeConfig(Settings):
    """From texts to a sketch. `vocabulary`, `key`, `context`, `hashes`, `kind` must be alike at all sites.

    So should `nearest`, `nearest_by` and the encoder be: another one gives the same name another concept.
    """

    vocabulary: tuple[ExpandedPath, ...] = Field(
        default=(),
        description="OBO files, or tables of id and label (.tsv); where two share a name, the first has it",
    )
    key: ExpandedPath = Field(
        description="file with the secret that all hospitals share and the server never sees"
    )
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
    answer_tokens: int = Field(default=256, ge=16, description="model: the longest answer about a chunk")
    triples: tuple[ImportConfig, ...] = Field(
        default=(), description="graphs made elsewhere, which are added: paths, or path and form"
    )
    same: tuple[ExpandedPath, ...] = Field(
        default=(), description="pairs of names for one thing: two columns, or N-Triples of owl:sameAs"
    )
    nearest: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="model and triples: a name without a concept gets the nearest one from this cosine on",
    )
    nearest_by: Literal["characters", "backbone", "encoder"] = Field(
        default="characters",
        description="near by spelling, by hidden states of the site's own model, or by an encoder of texts",
    )
    encoder: ExpandedPath | None = Field(
        default=None,
        description="nearest_by: encoder: local folder of SapBERT, PubMedBERT, MiniLM or the like",
    )
    pooling: Literal["mean", "cls"] | None = Field(
        default=None,
        description="encoder: a name's vector is the mean over its tokens, or the first token's; null: as "
        "1_Pooling/config.json in the folder says. SapBERT has no such file and was trained with cls",
    )
    align: bool = Field(
        default=True,
        description="false: names and relations stay as spelled: no vocabulary, same, nearest (ablation)",
    )
    completion: CompletionConfig | None = Field(
        default=None, description="add triples that the graph suggests; null is the ablation without"
    )
    least: float = Field(default=0.0, ge=0, le=1, description="triples of less confidence are left out")
    least_growth: float = Field(
        default=0.1,
        ge=0,
        description="in a run no other sketch leaves until the texts are more or fewer by more than this "
        "share, whatever the server asks",
    )

    @field_validator("vocabulary", "same", mode="before")
    @classmethod
    def _paths(cls, value: Any) -> Any:
        return [value] if isinstance(value, str | Path) else value

    @field_validator("triples", mode="before")
    @classmethod
    def _imports(cls, value: Any) -> Any:
        given = value if isinstance(value, list | tuple) else [value]
        return [{ImportConfig.shorthand: item} if isinstance(item, str | Path) else item for item in given]

    @model_validator(mode="after")
    def _has_something_to_read(self) -> KnowledgeConfig:
        if self.extractor == "rules" and not self.vocabulary:
            raise ValueError(
                "extractor: rules finds only names that a vocabulary has; name one or more files"
            )
        if self.extractor == "none" and not self.triples:
            raise ValueError("extractor: none needs `triples`, files of a graph that was made elsewhere")
        if self.nearest is not None and not self.vocabulary:
            raise ValueError("nearest finds the nearest concept of a vocabulary; name one or more files")
        if self.nearest is not None and self.extractor == "rules" and not self.triples:
            raise ValueError(
                "nearest is for names of `triples` or of extractor: model; rules find known names"
            )
        if self.hashes % 2:
            raise ValueError(f"hashes is {self.hashes}; expected an even number")
        return self

    @model_validator(mode="after")
    def _encoder_is_used(self) -> KnowledgeConfig:
        if self.nearest_by == "encoder":
            if self.encoder is None:
                raise ValueError("nearest_by: encoder needs `encoder`, the folder of a local model")
            if self.nearest is None:
                raise ValueError(
                    "nearest_by: encoder needs `nearest`, the cosine from which on a name is near"
                )
        elif self.encoder is not None or self.pooling is not None:
            given = "encoder" if self.encoder is not None else "pooling"
            raise ValueError(f"{given} is for nearest_by: encoder; here nearest_by is {self.nearest_by}")
        return self
