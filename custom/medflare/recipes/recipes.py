# SPDX-License-Identifier: Apache-2.0
"""Makes job folders from a few lines of Python, checks them, and hands them to SimEnv.

The folders are static, non-BYOC and deterministic: FedJob's own export drops defaults and keyword arguments,
so the JSON is written here and FedJob only carries it into FLARE's environments.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from medflare.aggregation import make_rule
from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError
from medflare.federation.messages import TASKS
from medflare.federation.nested import MARK, RESERVED, marked, unmarked
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.server.rounds import RoundsController
from medflare.federation.server.settings import RoundsSettings
from medflare.federation.server.temporal import TemporalRoundsController
from medflare.federation.site.executor import ExecutorSettings, LearnerExecutor
from medflare.federation.visit_settings import visit_problems
from medflare.learners.registry import get_method
from medflare.recipes import combinations
from medflare.recipes.allow_list import allowed_classes, class_path
from medflare.wire.files import write_json

SERVER, CLIENT = "app/config/config_fed_server.json", "app/config/config_fed_client.json"
WORKFLOWS: dict[str, type[RoundsController]] = {
    "rounds": RoundsController,
    "temporal": TemporalRoundsController,
}
"""What a Job can name as its workflow."""
AGGREGATION = ("rule", "rule_settings")
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Everything a job folder says.

    Attributes:
        settings: the method's own settings.
        controller: `RoundsSettings` fields, or those of the workflow's own settings, that differ from their
            defaults.
        executor: `ExecutorSettings` fields that differ from their defaults.
        aggregation: `rule` and `rule_settings`.
        workflow: a key of WORKFLOWS.
    """

    title: str
    method: str
    n_clients: int = 3
    settings: dict[str, Any] = field(default_factory=dict)
    controller: dict[str, Any] = field(default_factory=dict)
    executor: dict[str, Any] = field(default_factory=dict)
    aggregation: dict[str, Any] = field(default_factory=lambda: {"rule": "weighted_mean"})
    workflow: str = "rounds"

    @property
    def flow(self) -> type[RoundsController]:
        """The controller; ConfigError where `workflow` names none."""
        if self.workflow not in WORKFLOWS:
            raise ConfigError(f"{self.title}: workflow '{self.workflow}' is none of {', '.join(WORKFLOWS)}.")
        return WORKFLOWS[self.workflow]

    def files(self) -> dict[str, Any]:
        """Path inside the folder -> JSON."""
        return {
            "meta.json": {
                "name": self.title,
                "resource_spec": {},
                "min_clients": self.controller.get("min_responses") or self.n_clients,
                "deploy_map": {"app": ["@ALL"]},
            },
            SERVER: {
                "format_version": 2,
                "server": {"task_request_interval": POLL_SECONDS},
                "components": [
                    _component("aggregator", ValidatingAggregator, self.aggregation),
                    _component("persistor", AdapterPersistor, {}),
                    _component("progress", ProgressReporter, {}),
                ],
                "workflows": [_component("rounds", self.flow, {"job": self.title, **self.controller})],
            },
            CLIENT: {
                "format_version": 2,
                "executors": [
                    {
                        "tasks": list(TASKS),
                        "executor": {
                            "path": class_path(LearnerExecutor),
                            "args": {
                                "method": self.method,
                                **self._guarded(),
                                **self.executor,
                                "settings": marked(self.settings),
                            },
                        },
                    }
                ],
                "task_data_filters": [],
                "task_result_filters": [],
                "components": [],
            },
        }

    def _guarded(self) -> dict[str, Any]:
        """The protection, told to sites too, so that no server can ask for less than was submitted."""
        kind = self.controller.get("protection", "none")
        return {} if kind == "none" else {"protection": kind}

    def write(self, folder: Path) -> Path:
        """Writes the folder."""
        for name, content in self.files().items():
            write_json(folder / name, content)
        return folder


def _component(key: str, kind: type, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": key, "path": class_path(kind), "args": marked(dict(args))}


def read_job(folder: Path) -> Job:
    """The Job that a folder of ours says.

    ConfigError if it is none, or holds parts that a Job cannot carry (filters, further components): they
    would be lost without a word.
    """
    try:
        found = {
            name: json.loads((folder / name).read_text(encoding="utf-8"))
            for name in ("meta.json", SERVER, CLIENT)
        }
        job = _job_in(found)
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{folder}: is not a job folder of medflare ({type(error).__name__}: {error}). "
            "Start from one of jobs/."
        ) from None
    other = [name for name, content in job.files().items() if content != found[name]]
    if other:
        problems = [f"{folder / name}: {what}" for name in other for what in traps(found[name])]
        problems += [f"{folder / name}: holds parts that job.py did not write." for name in other]
        raise ConfigError("\n".join([*problems, "Run such a folder with `nvflare simulator`, or mend it."]))
    return job


def _job_in(found: Mapping[str, Any]) -> Job:
    meta, server, client = found["meta.json"], found[SERVER], found[CLIENT]
    parts = {part["path"]: part["args"] for part in [*server["components"], *server["workflows"]]}
    paths = {class_path(kind): name for name, kind in WORKFLOWS.items()}
    path = server["workflows"][0]["path"]
    controller = unmarked(parts[path])
    controller.pop("job", None)
    executor = dict(client["executors"][0]["executor"]["args"])
    executor.pop("protection", None)
    return Job(
        title=meta["name"],
        method=executor.pop("method"),
        n_clients=int(meta["min_clients"]),
        settings=unmarked(executor.pop("settings", {})),
        controller=controller,
        executor=executor,
        aggregation=unmarked(parts[class_path(ValidatingAggregator)]),
        workflow=paths[path],
    )


def override(job: Job, changes: Mapping[str, Any]) -> Job:
    """A job with some values changed.

    Keys: `workflow`, `settings.<...>` for the method's settings, `rule`, `rule_settings.<...>`, and the
    fields of the workflow's settings and ExecutorSettings by their names. Dots go into nested settings.
    Another workflow leaves behind what it has no setting for, another rule the settings of the one before.
    """
    changes = dict(changes)
    if "workflow" in changes:
        job = _in_workflow(job, str(changes.pop("workflow")))
    if changes.get("rule", job.aggregation.get("rule")) != job.aggregation.get("rule"):
        job = replace(job, aggregation={})
    blocks: dict[str, Any] = {
        "settings": copy.deepcopy(job.settings),
        "controller": copy.deepcopy(job.controller),
        "executor": copy.deepcopy(job.executor),
        "aggregation": copy.deepcopy(job.aggregation),
    }
    unknown = []
    for key, value in changes.items():
        first, _, rest = key.partition(".")
        if first == "settings" and rest:
            _set(blocks["settings"], rest, value)
        elif first in AGGREGATION:
            _set(blocks["aggregation"], key, value)
        elif key in job.flow.settings.model_fields and key != "job":
            blocks["controller"][key] = value
        elif key in ExecutorSettings.model_fields and key not in ("method", "settings"):
            blocks["executor"][key] = value
        else:
            unknown.append(key)
    if unknown:
        raise ConfigError(
            f"no such setting: {', '.join(unknown)}. Valid: settings.<key of the method>, rule, "
            f"rule_settings.<key>, workflow, {', '.join(_known(job.flow.settings))}."
        )
    return replace(job, **blocks)


def _in_workflow(job: Job, name: str) -> Job:
    """A job with another workflow, and of its controller's settings those that this one has too."""
    other = replace(job, workflow=name)
    fields = other.flow.settings.model_fields
    return replace(other, controller={k: v for k, v in job.controller.items() if k in fields})


def _known(controller: type[RoundsSettings]) -> list[str]:
    fields = {*controller.model_fields, *ExecutorSettings.model_fields}
    return sorted(fields - {"job", "method", "settings"})


def _set(block: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        block = block.setdefault(part, {})
    block[last] = value


def check(job: Job) -> None:
    """ConfigError that lists everything wrong with a job before it is started."""
    problems: list[str] = []
    controller = {"job": job.title, **job.controller}
    executor = {"method": job.method, "settings": job.settings, **job.executor}
    checks: tuple[tuple[type[Settings], dict[str, Any], str], ...] = (
        (job.flow.settings, controller, f"{job.title}/{SERVER}"),
        (ExecutorSettings, executor, f"{job.title}/{CLIENT}"),
    )
    for kind, data, where in checks:
        _collect(problems, lambda kind=kind, data=data, where=where: parse(kind, data, where))
    _collect(
        problems, lambda: make_rule(job.aggregation.get("rule", ""), job.aggregation.get("rule_settings", {}))
    )
    _collect(problems, lambda: get_method(job.method).resolve(job.settings))
    unknown = sorted(set(job.aggregation) - set(AGGREGATION))
    if not problems:
        problems += [f"{job.title}: {what}" for what in _combination(job)]
    problems += [f"aggregator: no such setting '{key}'. Valid: {', '.join(AGGREGATION)}." for key in unknown]
    for name, content in job.files().items():
        problems += [f"{job.title}/{name}: {what}" for what in traps(content)]
    if problems:
        raise ConfigError("\n".join(problems))


def _combination(job: Job) -> list[str]:
    """Why rule, method and codec of a job, each sound by itself, cannot work together."""
    rounds = job.flow.settings.model_validate({"job": job.title, **job.controller})
    name, settings = job.aggregation.get("rule", ""), job.aggregation.get("rule_settings", {})
    found = list(
        visit_problems(rounds, make_rule(name, settings), get_method(job.method).resolve(job.settings))
    )
    return found + combinations.problems(
        name,
        job.method,
        job.settings,
        rounds.uplink,
        rounds.protection,
        rule_settings=settings,
        sites=job.n_clients,
    )


def _collect(problems: list[str], call: Any) -> None:
    try:
        call()
    except ConfigError as error:
        problems.append(str(error))


def traps(content: Any, inside_args: bool = False) -> list[str]:
    """Nested keys FLARE would build a component from, and classes a site would refuse."""
    found: list[str] = []
    if isinstance(content, Mapping):
        path = content.get("path")
        if not inside_args and isinstance(path, str) and path not in allowed_classes():
            found.append(f"class {path} is not in the allow-list")
        if inside_args and content.get(MARK[0]) != MARK[1]:
            found += [
                f"FLARE takes the key '{key}' for a component; rename it"
                for key in RESERVED
                if key in content
            ]
        for key, value in content.items():
            found += traps(value, inside_args or key == "args")
    elif isinstance(content, list):
        for item in content:
            found += traps(item, inside_args)
    return found


def write_to_temporary(job: Job) -> tempfile.TemporaryDirectory[str]:
    """A folder `<temporary>/<title>` with the job; it lives as long as the returned object."""
    holder = tempfile.TemporaryDirectory(prefix="medflare-job-")
    job.write(Path(holder.name) / job.title)
    return holder
