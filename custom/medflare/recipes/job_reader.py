# SPDX-License-Identifier: Apache-2.0
"""Reads a job folder back into a `Job`, or says why it cannot be carried on."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import medflare
from medflare.core.errors import ConfigError
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.protocol.nested_settings import unmarked
from medflare.recipes.allow_list import class_path
from medflare.recipes.flare_traps import class_paths, flare_traps
from medflare.recipes.job import CLIENT_CONFIG, FOR_BOTH, SERVER_CONFIG, WORKFLOWS, Job
from medflare.recipes.moved_classes import moved_class

JOBS = "jobs"
_KINDS = {str: "text", dict: "block of settings"}


def installed_jobs() -> Path:
    """Return the folder of job folders that came with the package: those of the checkout, or of the wheel."""
    checkout = Path(medflare.__file__).parents[2] / JOBS
    return checkout if checkout.is_dir() else Path(sysconfig.get_path("data")) / "share" / "medflare" / JOBS


def find_job(folder: Path) -> Path:
    """Return a job folder; a name alone, or below `jobs/`, may be one that came with the package."""
    known = folder.parts in ((folder.name,), (JOBS, folder.name)) and not folder.exists()
    return installed_jobs() / folder.name if known and (installed_jobs() / folder.name).is_dir() else folder


def read_job(folder: Path) -> Job:
    """Return the Job that a job folder holds; `fedmrg` alone is that of the package.

    Raises:
        ConfigError: it is no job folder of medflare, names classes of an earlier release, or holds parts that
            a Job cannot carry (filters, further components), which would be lost without a message.
    """
    folder = find_job(folder)
    if not (folder / "meta.json").is_file():
        known = ", ".join(sorted(path.name for path in installed_jobs().glob("*") if path.is_dir()))
        raise ConfigError(
            f"{folder}: is not a job folder of medflare, as it has no meta.json. Name one with its path, or "
            f"one that came with medflare: {known or 'none was found'}."
        )
    try:
        files = {
            name: json.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("meta.json", SERVER_CONFIG, CLIENT_CONFIG)
        }
        _check_moved(folder, files)
        job = _job_in(files)
        other = [name for name, content in job.files().items() if content != files[name]]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigError(
            f"{folder}: is not a job folder of medflare ({type(error).__name__}: {error}). "
            "Start from one of jobs/."
        ) from None
    if other:
        problems = [f"{folder / name}: {what}" for name in other for what in flare_traps(files[name])]
        problems += [f"{folder / name}: holds parts that job.py did not write." for name in other]
        raise ConfigError("\n".join([*problems, "Run such a folder with `nvflare simulator`, or mend it."]))
    return job


def _check_moved(folder: Path, files: Mapping[str, Any]) -> None:
    """Raise ConfigError that names every class of an earlier release, with its present path."""
    problems = [
        f"{folder / name}: {advice}."
        for name, content in files.items()
        for path in class_paths(content)
        if (advice := moved_class(path))
    ]
    if problems:
        raise ConfigError("\n".join(problems))


def _job_in(files: Mapping[str, Any]) -> Job:
    meta, server, client = files["meta.json"], files[SERVER_CONFIG], files[CLIENT_CONFIG]
    parts = {part["path"]: part["args"] for part in [*server["components"], *server["workflows"]]}
    paths = {class_path(flow): name for name, flow in WORKFLOWS.items()}
    path = server["workflows"][0]["path"]
    controller = unmarked(parts[path])
    controller.pop("job", None)
    executor = dict(client["executors"][0]["executor"]["args"])
    executor = {name: value for name, value in executor.items() if name not in ("job", *FOR_BOTH)}
    job = Job(
        title=meta["name"],
        method=executor.pop("method"),
        n_clients=int(meta["min_clients"]),
        settings=unmarked(executor.pop("settings", {})),
        controller=controller,
        executor=executor,
        aggregation=unmarked(parts[class_path(ValidatingAggregator)]),
        workflow=paths[path],
    )
    texts = {"name": job.title, "method": job.method}
    blocks = {"settings": job.settings, "the rule's args": job.aggregation}
    for expected, parts_of_kind in ((str, texts), (dict, blocks)):
        for name, value in parts_of_kind.items():
            if type(value) is not expected:
                raise TypeError(f"{name} is {value!r:.80}, expected a {_KINDS[expected]}")
    return job
