# SPDX-License-Identifier: Apache-2.0
"""site.yaml: the settings a site owns, from the text of the file to typed, resolved values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medflare.core.config import Settings, parse, read_yaml
from medflare.core.errors import ConfigError
from medflare.core.inventory import TYPES
from medflare.core.variables import expand
from medflare.data.knowledge_settings import KnowledgeConfig
from medflare.data.notes.label_maps import LABEL_MAPS, mapping_of
from medflare.data.policy_settings import PolicyConfig
from medflare.data.readers import FORMATS, OPTIONAL, settings_of
from medflare.data.visits.settings import VisitConfig


def _only_types(names: Iterable[str | None]) -> None:
    """ValueError where a name is no type of the inventory; None stands for no type at all."""
    unknown = sorted({name for name in names if name is not None and name not in TYPES})
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is no type of the inventory; it has: {', '.join(TYPES)}")


class SplitConfig(Settings):
    """Shares of patients in each split, used only if the source brings no split of its own."""

    train: float = Field(default=0.8, ge=0)
    val: float = Field(default=0.1, ge=0)
    test: float = Field(default=0.1, ge=0)
    seed: int = 0

    @model_validator(mode="after")
    def _sum(self) -> SplitConfig:
        total = self.train + self.val + self.test
        if abs(total - 1) > 1e-6:
            raise ValueError(f"train + val + test must be 1, they sum to {total:g}")
        return self


class ScannerConfig(Settings):
    """A scanner's character, applied to every image after resizing (algorithms.md 2.5)."""

    blur: float = Field(
        default=0.0,
        ge=0,
        description="sigma of a Gaussian in pixels of the stored image",
    )
    contrast: float = Field(
        default=1.0,
        gt=0,
        description="factor around the image's mean",
    )
    brightness: float = Field(
        default=1.0,
        gt=0,
        description="factor on the grey values",
    )


class CohortConfig(Settings):
    """Where a site's files are and how they are read."""

    format: str = Field(description="one of the readers in medflare.data.readers.FORMATS")
    root: Path = Field(description="folder or file; relative to site.yaml; ${NAME} from the environment")
    file: str | None = Field(
        default=None,
        description="table inside root, where a reader would not find it itself",
    )
    columns: dict[str, str | int | list[str] | None] = Field(
        default_factory=dict,
        description="our field -> the source's column; a list means the first that is not empty; "
        "null means that the source's column of that name must not be used; conll counts its columns",
    )
    select: dict[str, str | int | list[str | int]] = Field(
        default_factory=dict, description="column -> value or values to keep; other rows are not this cohort"
    )
    reports: Path | None = Field(
        default=None,
        description="folder of the reports where it is not root (MIMIC-CXR)",
    )
    demographics: Path | None = Field(
        default=None,
        description="folder or file of MIMIC-IV's patients table, which tells age and sex (MIMIC-CXR)",
    )
    visits: VisitConfig | None = Field(
        default=None,
        description="read studies as the ordered visits of patients; without it each study stands alone",
    )
    sections: Literal["findings", "impression", "findings_or_impression", "findings_and_impression"] = Field(
        default="findings_or_impression",
        description="which part of a sectioned report is the text to learn",
    )
    label_map: str | dict[str, str | None] = Field(
        default_factory=dict,
        description="notes: a name of data.notes.label_maps.LABEL_MAPS, or the source's label -> a type of "
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
        default="auto",
        description="auto: source where the format carries 14 codes, else rules",
    )
    chexbert_folder: Path | None = None
    text_rules: Literal["clean", "r2gen"] = "clean"
    study_images: Literal["all", "first"] = Field(
        default="all",
        description="every image a sample, or the first only",
    )
    max_skipped: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="share of records that may be unusable",
    )
    limit: int | None = Field(
        default=None,
        ge=1,
        description="at most this many studies, notes, questions or summaries, whole patients, for a try",
    )
    scanner: ScannerConfig | None = None

    @field_validator("format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        if value not in FORMATS:
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

    @field_validator("root", "reports", "demographics", "chexbert_folder", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _only_what_the_format_reads(self) -> CohortConfig:
        known = settings_of(self.format)
        unread = sorted((self.model_fields_set & OPTIONAL) - known)
        if unread:
            raise ValueError(
                f"format {self.format} does not read {', '.join(unread)}; "
                f"of these settings it reads: {', '.join(sorted(known)) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _chexbert_needs_weights(self) -> CohortConfig:
        if self.labels == "chexbert" and self.chexbert_folder is None:
            raise ValueError("labels: chexbert needs chexbert_folder, a local folder with CheXbert's weights")
        return self


class BackboneConfig(Settings):
    """The frozen language model; `folder` None is the embedded one."""

    folder: Path | None = None
    precision: Literal["auto", "fp32", "bf16", "int8", "nf4"] = Field(
        default="auto", description="auto: bf16 where the machine computes in it, else fp32"
    )

    @field_validator("folder", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand(value) if isinstance(value, str) else value


class SiteConfig(Settings):
    """Everything a site decides for itself. `cohort` is always a tuple here; more than one is pooled."""

    name: str = ""
    cohort: tuple[CohortConfig, ...]
    validation: CohortConfig | None = Field(
        default=None,
        description="notes that all sites hold alike, by which a site weighs its own update (rule influence, "
        "mode client); never trained on, and licensed for sharing",
    )
    backbone: BackboneConfig = BackboneConfig()
    policy: PolicyConfig = PolicyConfig()
    knowledge: KnowledgeConfig | None = Field(
        default=None,
        description="the site's knowledge graph for rule ddcs; without it the site sends no sketch",
    )
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = Field(
        default=1,
        ge=1,
        description="torch threads of the site's worker",
    )
    state: Path | None = Field(
        default=None,
        description="folder for what must survive a restart and never leaves",
    )

    encoder_weights: Path | None = Field(
        default=None,
        description="file of the image encoder's weights, for jobs whose encoder.weights is 'site'",
    )

    scorers: dict[str, Path] = Field(
        default_factory=dict,
        description="summaries: optional scorer (bertscore) -> local folder of its weights; final test",
    )

    @field_validator("scorers", mode="before")
    @classmethod
    def _expand_each(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: expand(path) if isinstance(path, str) else path for name, path in value.items()}

    @field_validator("cohort", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and not value:
            raise ValueError("an empty list; name at least one cohort")
        return [value] if isinstance(value, Mapping | CohortConfig) else value

    @field_validator("state", "encoder_weights", mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return expand(value) if isinstance(value, str) else value


class SitesFile(Settings):
    """The simulator's one file for all its sites, keyed by site name."""

    sites: dict[str, SiteConfig] = Field(min_length=1)


def load_site_file(path: Path) -> dict[str, SiteConfig]:
    """The sites described in a YAML file, by name; relative folders count from the file's own folder.

    A document without `sites:` describes one site; its key is its `name`, or "" where it has none.
    Raises ConfigError that lists every problem of the file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "site.yaml"
    data = read_yaml(path)
    if "sites" in data:
        sites = parse(SitesFile, data, str(path)).sites
        wrong = [f"{key} says name: {site.name}" for key, site in sites.items() if site.name not in ("", key)]
        if wrong:
            raise ConfigError(f"{path}: a site's name must be its key or be left out; {'; '.join(wrong)}.")
        sites = {key: site.model_copy(update={"name": key}) for key, site in sites.items()}
    else:
        site = parse(SiteConfig, data, str(path))
        sites = {site.name: site}
    base = path.resolve().parent
    return {key: _resolve(site, base) for key, site in sites.items()}


def load_site(path: Path, name: str) -> SiteConfig:
    """The settings of site `name`; ConfigError lists the names in the file when it is not among them.

    A single-site document without a `name` serves whichever site owns the file.
    """
    sites = load_site_file(path)
    if name in sites:
        return sites[name]
    if set(sites) == {""}:
        return sites[""].model_copy(update={"name": name})
    raise ConfigError(
        f"{path}: describes no site '{name}'. It has: {', '.join(sorted(sites))}. "
        "Add an entry of that name, or start FLARE with the names of the file."
    )


def _resolve(site: SiteConfig, base: Path) -> SiteConfig:
    """`site` with every relative folder made absolute from `base`."""

    def absolute(settings: Settings, *names: str) -> dict[str, Path]:
        given = {name: getattr(settings, name) for name in names}
        return {name: base / path.expanduser() for name, path in given.items() if path is not None}

    folders = ("root", "reports", "demographics", "chexbert_folder")
    cohorts = tuple(cohort.model_copy(update=absolute(cohort, *folders)) for cohort in site.cohort)
    shared = site.validation
    if shared is not None:
        shared = shared.model_copy(update=absolute(shared, *folders))
    backbone = site.backbone.model_copy(update=absolute(site.backbone, "folder"))
    own: dict[str, Any] = absolute(site, "state", "encoder_weights")
    own["scorers"] = {name: base / path.expanduser() for name, path in site.scorers.items()}
    own["knowledge"] = site.knowledge and site.knowledge.resolved(base)
    return site.model_copy(update={"cohort": cohorts, "validation": shared, "backbone": backbone, **own})
