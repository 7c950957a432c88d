# SPDX-License-Identifier: Apache-2.0
"""site.yaml: the settings a site owns, from the text of the file to typed, resolved values."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from medflare.core.config import Settings, parse, read_yaml
from medflare.core.errors import ConfigError
from medflare.core.model_folders import stored_model
from medflare.core.plugins import admit_plugins
from medflare.core.variables import ExpandedPath, with_absolute_paths
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.policy import PolicyConfig

SCORERS = ("bertscore", "chexbert", "radgraph", "ratescore", "green")
"""Names of the optional scorers; `medflare.evaluation.scorers` measures them."""


class BackboneConfig(Settings):
    """The frozen language model: `name` or `folder`; without both the embedded one."""

    name: str | None = Field(
        default=None, description="of a model on this machine, as `medflare models list` shows them"
    )
    folder: ExpandedPath | None = Field(
        default=None, description="a Hugging Face folder with safetensors; set by `name`, where that is given"
    )
    precision: Literal["auto", "fp32", "bf16", "int8", "nf4"] = Field(
        default="auto",
        description="auto: bf16 where products are faster in it (GPUs from Ampere on, processors with AMX), "
        "else fp32, which takes twice the memory",
    )

    @model_validator(mode="before")
    @classmethod
    def _found_by_name(cls, value: Any) -> Any:
        """Put the folder of the model that `name` names; explain what is no folder."""
        if isinstance(value, str):
            raise ValueError(_advice(value) or f"write {{name: {value}}}, or {{folder: FOLDER}}")
        if not isinstance(value, Mapping):
            return value
        name, folder = value.get("name"), value.get("folder")
        if isinstance(folder, str) and folder.endswith(".gguf"):
            raise ValueError(_advice(folder))
        if isinstance(name, str) and (advice := _advice(name)):
            raise ValueError(advice)
        if not isinstance(name, str) or folder is not None:
            if name is not None and folder is not None:
                raise ValueError("name and folder both say which model; leave one out")
            return value
        try:
            return {**value, "folder": str(stored_model(name))}
        except ConfigError as error:
            raise ValueError(str(error)) from error


def _advice(text: str) -> str | None:
    """Return what to do about a file, or a hub's `owner/name`, where a name belongs; None for a name."""
    if text.endswith(".gguf"):
        return (
            f"'{text}' is a GGUF file. Type 'medflare models add {text}' once, and name the model: "
            f"{{name: {Path(text).stem.lower()}}}"
        )
    if text.count("/") == 1 and not text.startswith((".", "~", "/")):
        name = text.partition("/")[2].lower()
        return (
            f"'{text}' is no name of a model on this machine, and no site asks a model hub. Download its "
            f"folder, on a machine that may, type 'medflare models add FOLDER --name {name}' here, and name "
            f"the model: {{name: {name}}}. (A folder on this machine is {{folder: {text}}}.)"
        )
    return f"'{text}' is a path. Write {{folder: {text}}}" if "/" in text else None


class SiteConfig(Settings):
    """Everything a site decides for itself. `cohort` is always a tuple here; more than one is pooled."""

    name: str = Field(default="", description="of the site; FLARE's, or the key in a file of several sites")
    cohort: tuple[CohortConfig, ...] = Field(description="where the records are, and how they are read")
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
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="auto: a GPU where there is one that works"
    )
    devices: tuple[Annotated[int, Field(ge=0)], ...] | tuple[Literal["cpu"], ...] = Field(
        default=(),
        description="numbers of the GPUs that train together, a process each with its share of every batch; "
        "[cpu, cpu] for processes without a GPU. Takes the place of `device`",
    )
    spread_layers: bool = Field(
        default=False,
        description="true: one process lays the layers of one model over `devices`, for a model that a "
        "single card cannot hold; the cards compute in turn",
    )
    threads: int = Field(
        default=1,
        ge=1,
        description="torch threads of the site's worker, of each of its processes; auto: all processors that "
        "it may use, shared among its `devices`",
    )
    state: ExpandedPath | None = Field(
        default=None, description="folder for what must survive a restart and never leaves"
    )

    encoder_weights: ExpandedPath | None = Field(
        default=None,
        description="file of the image encoder's weights, for jobs whose encoder.weights is 'site'",
    )

    scorers: dict[str, ExpandedPath] = Field(
        default_factory=dict,
        description="reports and summaries: optional scorer -> local folder of its weights, for final tests",
    )

    @model_validator(mode="before")
    @classmethod
    def _threads_of_the_machine(cls, value: Any) -> Any:
        """Put the number of processors in the place of `threads: auto`."""
        if not isinstance(value, Mapping) or value.get("threads") != "auto":
            return value
        devices = value.get("devices")
        processes = len(devices) if isinstance(devices, list | tuple) and devices else 1
        if value.get("spread_layers"):
            processes = 1
        return {**value, "threads": max(1, len(os.sched_getaffinity(0)) // processes)}

    @field_validator("devices")
    @classmethod
    def _each_once(cls, value: tuple[int | str, ...]) -> tuple[int | str, ...]:
        if len(set(value)) < len(value) and "cpu" not in value:
            raise ValueError("a GPU is named twice; each trains in one process")
        return value

    @model_validator(mode="after")
    def _layers_over_several(self) -> Self:
        if self.spread_layers and len(self.devices) < 2:
            raise ValueError("spread_layers needs the numbers of two GPUs or more in `devices`")
        return self

    @field_validator("scorers")
    @classmethod
    def _known_scorers(cls, value: dict[str, Path]) -> dict[str, Path]:
        if unknown := sorted(set(value) - set(SCORERS)):
            raise ValueError(f"no such scorer {', '.join(unknown)}; there are: {', '.join(SCORERS)}")
        return value

    @field_validator("cohort", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and not value:
            raise ValueError("an empty list; name at least one cohort")
        return [value] if isinstance(value, Mapping | CohortConfig) else value


class SitesFile(Settings):
    """The simulator's one file for all its sites, keyed by site name."""

    sites: dict[str, SiteConfig] = Field(min_length=1)


def load_site_file(path: Path) -> dict[str, SiteConfig]:
    """Return the sites described in a YAML file, by name; relative folders count from the file's own folder.

    A document without `sites:` describes one site; its key is its `name`, or "" where it has none.

    Raises:
        ConfigError: lists every problem of the file.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "site.yaml"
    data = read_yaml(path)
    admit_plugins(_admitted_packages(data))
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
    return {key: with_absolute_paths(site, base) for key, site in sites.items()}


def _admitted_packages(data: Mapping[str, Any]) -> list[str]:
    """Return the packages of `policy: plugins`, before all else: a cohort may name a package's format."""
    sites = data.get("sites")
    documents = list(sites.values()) if isinstance(sites, Mapping) else [data]
    policies = [document.get("policy") for document in documents if isinstance(document, Mapping)]
    named = [policy.get("plugins") for policy in policies if isinstance(policy, Mapping)]
    listed = [[item] if isinstance(item, str) else item for item in named]
    return [name for item in listed if isinstance(item, list) for name in item if isinstance(name, str)]


def load_site(path: Path, name: str) -> SiteConfig:
    """Return the settings of site `name`; a single-site document without a `name` serves any site.

    Raises:
        ConfigError: the file describes no such site (its sites are listed), or has other problems.
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


def no_visits(site: SiteConfig) -> str | None:
    """Return that a cohort of the site is not read as visits, and what to do; None where all are."""
    if all(config.visits is not None for config in site.cohort):
        return None
    return (
        f"site '{site.name}': this method needs patients with visits; add 'visits: {{}}' to the cohort "
        "in site.yaml (docs/how-to/patients-with-visits.md)."
    )
