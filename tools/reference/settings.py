# SPDX-License-Identifier: Apache-2.0
"""docs/reference/site_yaml.md, job_settings.md and run_json.md from the pydantic models behind them."""

from __future__ import annotations

from pydantic import BaseModel

from medflare.core.run_record import SCHEMA_VERSION, RunRecord
from medflare.data.settings.formats import FORMATS
from medflare.data.settings.site import SiteConfig
from medflare.federation.server.settings import RoundsSettings, TemporalSettings
from medflare.federation.site.settings import ExecutorSettings
from medflare.learners.registry import METHODS
from tools.reference.models import model_sections, table

GENERATED = "Generated from the code by `python -m tools.reference`."


def site_yaml() -> str:
    """Return the page on site.yaml."""
    rows = [(f"`{name}`", ", ".join(f"`{key}`" for key in sorted(keys))) for name, keys in FORMATS.items()]
    return _join(
        "# site.yaml",
        f"{GENERATED} A hospital's own file: `local/site.yaml` of its kit. In the simulator one file has all "
        "sites, `sites: {<name>: {...}}`. Relative paths count from the file. A key that nothing reads is an "
        "error, and all errors of a file are reported together.",
        *model_sections(SiteConfig, "site.yaml", set()),
        "## Formats",
        "Settings of a cohort that only some formats read:",
        table(("format", "settings"), rows),
    )


def job_settings() -> str:
    """Return the page on the settings of jobs."""
    done: set[type[BaseModel]] = set()
    parts = [
        "# Job settings",
        f"{GENERATED} `--set key=value` of `medflare run` and of a job's `job.py`, or the files of the job "
        "folder. A key that nothing reads is an error that lists the valid ones; `--set` also refuses what "
        "would change nothing beside the job's other settings (`gamma_mix` of one adapter, `fraction` beside "
        "`steps`), and names them. Rules have [a page of their own](rules.md).",
        table(
            ("key", "goes to", "file"),
            [
                (
                    "a key of the controller, for instance `num_rounds`",
                    "the rounds",
                    "config_fed_server.json",
                ),
                ("`protection`, `protection_settings.<key>`", "the rounds", "config_fed_server.json"),
                ("`rule`, `rule_settings.<key>`", "the aggregation rule", "config_fed_server.json"),
                ("`settings.<key>`", "the method", "config_fed_client.json"),
                ("`worker`", "the executor", "config_fed_client.json"),
                ("`workflow`", "`rounds` or `temporal`", "config_fed_server.json"),
                (
                    "`exchanges`",
                    "each round becomes so many, of as much less training: `num_rounds`, `fraction` and "
                    "`evaluate_every`",
                    "config_fed_server.json",
                ),
                ("`preset`", "the whole job, before all other keys; its rule stays", "both"),
            ],
        ),
        *model_sections(RoundsSettings, "Controller", done),
        *model_sections(TemporalSettings, "Controller of temporal rounds", done),
        *model_sections(ExecutorSettings, "Executor", done),
    ]
    for name, method in sorted(METHODS.items()):
        parts.append(f"## Method {name}")
        parts.append(f"{method.facts.summary} Task: `{method.task}`. Presets: {_names(method.presets)}.")
        variants = [(f"`{key}`", _changes(value)) for key, value in method.variants.items()]
        parts.append(table(("`settings.variant`", "sets"), variants))
        parts += model_sections(method.settings, f"settings of {name}", done, level=3)
    return _join(*parts)


def run_json() -> str:
    """Return the page on the run record."""
    return _join(
        "# run.json",
        f"{GENERATED} Schema {SCHEMA_VERSION}. The server writes it after every round and adds evaluations "
        "at the end. Records of schema 1 are read too. `medflare page` and every table read this file and "
        "nothing else.",
        *model_sections(RunRecord, "run.json", set()),
    )


def _names(names: object) -> str:
    return ", ".join(f"`{name}`" for name in names)  # type: ignore[attr-defined]


def _changes(values: dict[str, object]) -> str:
    return ", ".join(f"`{key}: {value}`" for key, value in values.items()) or "nothing"


def _join(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
