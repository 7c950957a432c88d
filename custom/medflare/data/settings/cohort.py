# SPDX-License-Identifier: Apache-2.0
"""`cohort` of site.yaml: where a site's files are, how they are read, split and labelled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.core.inventory import TYPES
from medflare.core.variables import ExpandedPath
from medflare.data.settings.formats import (
    FORMATS,
    OF_STUDIES,
    OPTIONAL,
    STUDY_FORMATS,
    settings_of_format,
)
from medflare.data.settings.label_maps import LABEL_MAPS, mapping_of
from medflare.data.settings.visits import VisitConfig


def _only_types(names: Iterable[str | None]) -> None:
    """ValueError where a name is no type of the inventory; None stands for no type at all."""
    unknown = sorted({name for name in names if name is not None and name not in TYPES})
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is no type of the inventory; it has: {', '.join(TYPES)}")


class SplitConfig(Settings):
    """Shares of patients in each split, for the records whose source names none.

    Attributes:
        train, val, test: shares, which sum to 1.
        seed: another one draws other patients.
    """

    train: float = Field(default=0.8, ge=0)
    val: float = Field(default=0.1, ge=0)
    test: float = Field(default=0.1, ge=0)
    seed: NonNegativeInt = 0
    ignore_source: bool = Field(
        default=False, description="the source's own split does not count, whether of a column or a folder"
    )

    @model_validator(mode="after")
    def _sum(self) -> SplitConfig:
        total = self.train + self.val + self.test
        if abs(total - 1) > 1e-5:  # 0.666667, 0.166667 and 0.166667 are two thirds and two sixths
            raise ValueError(f"train + val + test must be 1, they sum to {total:g}")
        return self


class ScannerConfig(Settings):
    """A scanner's character, applied to every image after resizing."""

    blur: float = Field(default=0.0, ge=0, description="sigma of a Gaussian in pixels of the stored image")
    contrast: float = Field(default=1.0, gt=0, description="factor around the image's mean")
    brightness: float = Field(default=1.0, gt=0, description="factor on the grey values")


class CohortConfig(Settings):
    """Location of a site's files, and settings of their reader."""

    format: str = Field(description="one of medflare.data.settings.formats.FORMATS")
    root: ExpandedPath = Field(
        description="folder or file; relative to site.yaml; ${NAME} from the environment"
    )
    file: str | None = Field(
        default=None, description="table inside root, where a reader would not find it itself"
    )
    columns: dict[str, str | int | list[str] | None] = Field(
        default_factory=dict,
        description="our field -> the source's column; a list means the first that is not empty; "
        "null means that the source's column of that name must not be used; conll counts its columns",
    )
    select: dict[str, str | int | list[str | int]] = Field(
        default_factory=dict, description="column -> value or values to keep; other rows are not this cohort"
    )
    reports: ExpandedPath | None = Field(
        default=None, description="folder of the reports where it is not root (MIMIC-CXR)"
    )
    demographics: ExpandedPath | None = Field(
        default=None,
        description="folder or file of MIMIC-IV's patients table, which tells age and sex (MIMIC-CXR)",
    )
    visits: VisitConfig | None = Field(
        default=None,
        description="read studies as the ordered visits of patients; without it each study stands alone",
    )
    sections: Literal["findings", "impression", "findings_or_impression", "findings_and_impression"] = Field(
        default="findings_or_impression", description="which part of a sectioned report is the text to learn"
    )
    label_map: str | dict[str, str | None] = Field(
        default_factory=dict,
        description="notes: a name of settings.label_maps.LABEL_MAPS, or the source's label -> a type of "
        "the inventory, null leaves the label out; a label that is neither in it nor a type is a fault",
    )
    tasks: tuple[Literal["ner", "re"], ...] = Field(
        default=("ner", "re"),
        description="notes: what this site takes part in; ner alone leaves modifiers and relations out, re "
        "alone keeps the heads it is given; [] reads texts alone, as input of an extraction",
    )
    annotated: tuple[str, ...] | None = Field(
        default=None,
        description="notes: the types that the annotators looked for, only these are scored; the default is "
        "what the named label map leads to, else all",
    )
    patients: ExpandedPath | None = Field(
        default=None,
        description="notes of formats that name no patient: a table with the columns note and patient. "
        "Splits and differential privacy go by patient then, and not by note",
    )
    first_index: Literal[0, 1] | None = Field(
        default=None, description="questions: the number of the first option, where answers are numbers"
    )
    most_masks: int | None = Field(
        default=None,
        ge=0,
        description="summaries: texts with more de-identification marks (XXXX, ___) are left out; no faults",
    )
    split: SplitConfig = SplitConfig()
    labels: Literal["auto", "source", "rules", "chexbert"] = Field(
        default="auto", description="auto: source where the format carries 14 codes, else rules"
    )
    chexbert_folder: ExpandedPath | None = Field(
        default=None, description="labels: chexbert: local folder with CheXbert's weights"
    )
    text_rules: Literal["clean", "r2gen"] = Field(
        default="clean",
        description="clean: headings, signatures, marks and layout go, words and punctuation stay. r2gen: "
        "as R2Gen's code cleans reports",
    )
    study_images: Literal["all", "first"] = Field(
        default="all", description="every image a sample, or the first only"
    )
    max_skipped: float = Field(default=0.05, ge=0, le=1, description="share of records that may be unusable")
    limit: int | None = Field(
        default=None,
        ge=1,
        description="at most this many studies, notes, questions or summaries, whole patients, for a try",
    )
    scanner: ScannerConfig | None = None
    deidentify: Literal["allow", "refuse", "replace"] = Field(
        default="allow",
        description="names, dates, numbers and addresses in texts: left as they are; a reason not to read "
        "the cohort; or replaced by surrogates, with the offsets of annotations moved",
    )
    deidentify_key: ExpandedPath | None = Field(
        default=None,
        description="replace: file of 16 secret bytes or more; the same key, the same surrogates",
    )
    identifier_model: str | None = Field(
        default=None,
        description="spaCy pipeline on this machine by which Presidio finds more; null: rules alone",
    )

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        try:
            known = settings_of_format(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        if known is None:
            raise ValueError(f"no such format; there are: {', '.join(sorted(FORMATS))}")
        return value

    @field_validator("label_map")
    @classmethod
    def _known_types(cls, value: str | dict[str, str | None]) -> str | dict[str, str | None]:
        if isinstance(value, str) and value not in LABEL_MAPS:
            raise ValueError(f"no such label map; there are: {', '.join(sorted(LABEL_MAPS))}")
        _only_types(mapping_of(value).values())
        return value

    @field_validator("annotated")
    @classmethod
    def _annotated_types(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        _only_types(value or ())
        return value

    @model_validator(mode="after")
    def _only_what_the_format_reads(self) -> CohortConfig:
        known = settings_of_format(self.format) or frozenset()
        unread = sorted((self.model_fields_set & OPTIONAL) - known)
        if self.format in FORMATS and self.format not in STUDY_FORMATS:
            unread += sorted(self.model_fields_set & OF_STUDIES)
        if unread:
            raise ValueError(
                f"format {self.format} does not read {', '.join(unread)}; "
                f"of these settings it reads: {', '.join(sorted(known)) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _surrogates_need_a_key(self) -> CohortConfig:
        if self.deidentify == "replace" and self.deidentify_key is None:
            raise ValueError(
                "deidentify: replace needs deidentify_key, a file of secret bytes; make one with "
                "`head -c 32 /dev/urandom > deidentify.key` and keep it at the hospital"
            )
        return self

    @model_validator(mode="after")
    def _chexbert_needs_weights(self) -> CohortConfig:
        if self.labels == "chexbert" and self.chexbert_folder is None:
            raise ValueError("labels: chexbert needs chexbert_folder, a local folder with CheXbert's weights")
        return self
