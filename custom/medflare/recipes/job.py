# SPDX-License-Identifier: Apache-2.0
"""A job as Python values, and the job folder that it writes.

The folders are static, non-BYOC and deterministic. FedJob's own export drops defaults and keyword arguments,
so the JSON is written here, and FedJob only carries it into FLARE's environments.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.controller import RoundsController, TemporalRoundsController
from medflare.federation.server.persistor import AdapterPersistor
from medflare.federation.server.progress import ProgressReporter
from medflare.federation.site.executor import LearnerExecutor
from medflare.protocol.messages import TASKS
from medflare.protocol.nested_settings import marked
from medflare.recipes.allow_list import class_path
from medflare.wire.durable import write_json

SERVER_CONFIG, CLIENT_CONFIG = "app/config/config_fed_server.json", "app/config/config_fed_client.json"
WORKFLOWS: dict[str, type[RoundsController]] = {
    "rounds": RoundsController,
    "temporal": TemporalRoundsController,
}
"""Workflow of a job -> its controller."""
AGGREGATION = ("rule", "rule_settings")
"""Keys of `Job.aggregation`."""
FOR_BOTH = ("protection", "resumes")
"""Settings of the controller that the sites' configuration has too."""
POLL_SECONDS = 0.1
"""Seconds between a site's requests for its next task; with FLARE's 2 s, short rounds mostly wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The content of a job folder.

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
        """Return the controller class of the workflow.

        Raises:
            ConfigError: there is no such workflow.
        """
        if self.workflow not in WORKFLOWS:
            raise ConfigError(f"{self.title}: workflow '{self.workflow}' is none of {', '.join(WORKFLOWS)}.")
        return WORKFLOWS[self.workflow]

    @property
    def least_sites(self) -> int:
        """Connected sites without which FLARE does not begin the job."""
        try:
            return int(self.controller.get("min_responses") or self.n_clients)
        except (TypeError, ValueError, OverflowError):  # no number, which `check_job` says
            return self.n_clients

    def files(self) -> dict[str, Any]:
        """Return the folder's files: path in the folder -> JSON."""
        return {
            "meta.json": {
                "name": self.title,
                "resource_spec": {},
                "min_clients": self.least_sites,
                "deploy_map": {"app": ["@ALL"]},
            },
            SERVER_CONFIG: {
                "format_version": 2,
                "server": {"task_request_interval": POLL_SECONDS},
                "components": [
                    _component("aggregator", ValidatingAggregator, self.aggregation),
                    _component("persistor", AdapterPersistor, {}),
                    _component("progress", ProgressReporter, {}),
                ],
                "workflows": [_component("rounds", self.flow, {"job": self.title, **self.controller})],
            },
            CLIENT_CONFIG: {
                "format_version": 2,
                "executors": [
                    {
                        "tasks": list(TASKS),
                        "executor": {
                            "path": class_path(LearnerExecutor),
                            "args": {
                                "job": self.title,
                                "method": self.method,
                                **self._for_both(),
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

    def _for_both(self) -> dict[str, Any]:
        """Return what sites must know from the job itself and not by the server's word: the protection, so
        that it cannot ask for less than was submitted, and the run that the job goes on with."""
        given = {name: self.controller.get(name) for name in FOR_BOTH}
        return {name: value for name, value in given.items() if value and value != "none"}

    def write(self, folder: Path) -> Path:
        """Write the folder and return its path."""
        for name, content in self.files().items():
            write_json(folder / name, content)
        return folder


def _component(key: str, component: type, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": key, "path": class_path(component), "args": marked(dict(args))}


def write_to_temporary(job: Job) -> tempfile.TemporaryDirectory[str]:
    """Write the job to `<temporary>/<title>`; the folder exists as long as the returned object."""
    holder = tempfile.TemporaryDirectory(prefix="medflare-job-")
    job.write(Path(holder.name) / job.title)
    return holder
