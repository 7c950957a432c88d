# SPDX-License-Identifier: Apache-2.0
"""Contents of a hardened kit's `local/`: the one source of hardening and of `workspace_templates/`.

FLARE writes `local/*.default`; each function here takes what such a file says (or what the site made of it)
and returns what it must say, so that settings of the site's own choice survive.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from medflare.deployment.kit_components import KitJobManager, KitStorage, SecureLogging
from medflare.federation.engine import ClientProcessJobLauncher
from medflare.federation.site.job_launcher import SiteJobLauncher
from medflare.federation.site.policy import SitePolicy
from medflare.recipes.allow_list import COMPONENTS, class_path
from medflare.recipes.moved_classes import MOVED_JOB_CLASSES

HEART_BEAT_TIMEOUT = 60
"""Seconds without a heartbeat after which the server takes a site for gone; FLARE's default is 600."""
REQUEST_TIMEOUT = 60
"""Seconds without a byte of an answer after which a site's job asks for work once more; FLARE's default of
300 keeps a site out for minutes after its network was cut or its machine stood still."""
MAX_JOBS = 4
"""Most jobs that run on the server at the same time."""
PATIENCE = {"max_schedule_count": 288, "max_schedule_interval": 300.0}
"""Tries of the server to begin a job that waits for sites, and the most seconds between two: a day, every
five minutes. By itself FLARE gives up after ten tries, which take 40 minutes."""
MOVED_CLASSES: dict[str, str] = {
    **MOVED_JOB_CLASSES,
    "medflare.federation.kit_components.SecureLogging": class_path(SecureLogging),
    "medflare.federation.kit_components.KitStorage": class_path(KitStorage),
    "medflare.federation.kit_components.KitJobManager": class_path(KitJobManager),
    "medflare.federation.site_policy.SitePolicy": class_path(SitePolicy),
}
"""Class path of an earlier release in `local/resources.json` -> where it is now; hardening writes that."""
STREAMERS = ("site_log_streamer", "job_log_streamer", "log_receiver")
"""Components that send a site's logs to the server, or receive them there."""
_NEVER = {"shell_commands": "none", "byoc": "none", "server-predeployed-flwr": "none"}
PROGRESS = "app_command"
"""The right to ask a running job for its progress: FLARE's name for a job's own commands, and ours only
report."""
JOB_LOG = "get_job_log"
"""The right to read the log of a job at the server. Logs of sites are not sent there."""
_EVERYTHING = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate")


def kit_classes() -> list[str]:
    """Return the classes that a job may name at a hospital: ours, one by one.

    FLARE's own default list stays out: some of its classes read a file or send a result that the job chooses
    (`CSVDataLoader`, `NPModelLocator`), past the site's egress chain.
    """
    return [class_path(component) for component in COMPONENTS]


def authorization(given: Mapping[str, Any], with_view: Sequence[str] = (PROGRESS,)) -> dict[str, Any]:
    """Return `local/authorization.json`: who may do what. No role brings code or reads files by shell.

    A role that may do "any" thing gets the rights one by one: FLARE reads the word as these two as well.

    Args:
        with_view: rights that whoever may look at jobs has too, unless the file says otherwise.
    """
    roles = {}
    for role, rights in given["permissions"].items():
        each = dict(rights) if isinstance(rights, Mapping) else dict.fromkeys(_EVERYTHING, rights)
        for right in with_view:
            each.setdefault(right, each.get("view", "none"))
        roles[role] = each | _NEVER
    return {**given, "permissions": roles}


def privacy() -> dict[str, Any]:
    """Return `local/privacy.json`: one scope; a job that asks for another is refused. A site adds filters
    here."""
    scope = {"name": "medflare", "properties": {}, "task_result_filters": [], "task_data_filters": []}
    return {"scopes": [scope], "default_scope": "medflare"}


def log_config(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return `local/log_config.json`: FLARE's own, with medflare's lines in the short log `log_fl.txt` as
    well."""
    wanted = copy.deepcopy(dict(given))
    names = wanted["filters"]["FLFilter"]["logger_names"]
    if "medflare" not in names:
        names.insert(0, "medflare")
    return wanted


def site_resources(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hospital's `local/resources.json`.

    Nothing private may ever be added there: FLARE sends unknown top-level keys to every other site.
    """
    wanted = _common(given)
    wanted["allow_log_streaming"] = False
    client = wanted.setdefault("client", {})
    if not 30 <= client.get("communication_timeout", 300) <= 120:
        client["communication_timeout"] = REQUEST_TIMEOUT
    _component(wanted, "site_policy")["path"] = class_path(SitePolicy)
    for part in wanted["components"]:
        if part.get("path") == class_path(ClientProcessJobLauncher):  # in a cluster another one starts jobs
            part["path"] = class_path(SiteJobLauncher)
    return wanted


def server_resources(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the server's `local/resources.json`: jobs stored in the kit, dead sites noticed soon."""
    wanted = _common(given)
    for server in wanted["servers"]:
        if not 30 <= server.get("heart_beat_timeout", 600) <= 60:
            server["heart_beat_timeout"] = HEART_BEAT_TIMEOUT
    storage = wanted["snapshot_persistor"]["args"]["storage"]
    storage["path"] = class_path(KitStorage)
    storage["args"]["root_dir"] = "store/snapshots"
    manager = _component(wanted, "job_manager")
    manager["path"] = class_path(KitJobManager)
    manager["args"] = {"uri_root": "store/jobs", "job_store_id": "job_store"}
    scheduler = _component(wanted, "job_scheduler").setdefault("args", {})
    if not 1 <= scheduler.get("max_jobs", 0) <= MAX_JOBS:
        scheduler["max_jobs"] = MAX_JOBS
    for name, value in PATIENCE.items():
        scheduler.setdefault(name, value)
    return wanted


def _common(given: Mapping[str, Any]) -> dict[str, Any]:
    wanted = copy.deepcopy(dict(given))
    wanted["class_list_enforcement_mode"] = "enforce"
    wanted["class_allow_list"] = kit_classes()
    wanted["components"] = [part for part in wanted.get("components", []) if part.get("id") not in STREAMERS]
    _component(wanted, "secure_logging")["path"] = class_path(SecureLogging)
    return wanted


def _component(resources: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the component with the id `name`, added at the end if there is none."""
    for part in resources["components"]:
        if part.get("id") == name:
            return part
    resources["components"].append({"id": name, "path": "", "args": {}})
    return resources["components"][-1]
