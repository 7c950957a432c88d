# SPDX-License-Identifier: Apache-2.0
"""Starts a job's process at a site with an environment in which nothing of the hospital's stands.

FLARE puts environment variables where a job's configuration says `{$NAME}`, before any code of ours runs, and
gives a job's process the whole environment of the site's service: passwords of databases, tokens, proxies.
Here a variable is passed on only if it is on a list, and the address of a proxy only without a password.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from medflare.federation.engine import (
    ClientProcessJobLauncher,
    FLContext,
    FLContextKey,
    ProcessHandle,
    get_credential_env,
    spawn_process,
)

PASSED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TEMP", "TMP"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD"),
        *("JAVA_HOME", "SYSTEMROOT", "SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CACHE_HOME", "NLTK_DATA"),
        "XDG_DATA_HOME",
        *("HF_HOME", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "TORCH_HOME"),
    }
)
"""Variables that a job's process needs to find its programs, libraries and caches."""
PASSED_PREFIXES = (
    *("LC_", "CUDA_", "NVIDIA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_", "PYTORCH_", "MALLOC_"),
    *("NVFLARE_", "FL_", "MEDFLARE_"),
)
"""Beginnings of names that are passed on: threads, accelerators, and settings of FLARE and medflare."""

SENDING = {"NVFLARE_SUBMIT_TASK_RESULT_TIMEOUT": "300"}
"""Seconds in which the server must answer an update, unless the site's environment says otherwise. FLARE
would take the kit's `communication_timeout`, which is for requests; a large update takes longer on a slow
network."""

PROXIES = frozenset({"grpc_proxy", "https_proxy", "http_proxy", "all_proxy", "no_grpc_proxy", "no_proxy"})
"""Variables by which gRPC finds the proxy; a job's process has a connection of its own to the server."""


def has_password(proxy: str) -> bool:
    """Return whether the address of a proxy holds a user's name or password."""
    return "@" in proxy


def job_environment(environment: Mapping[str, str], more: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of a site's service that the process of a job gets.

    Args:
        more: names that this site passes on besides.
    """
    names = PASSED | set(more)
    return {
        name: value
        for name, value in environment.items()
        if name in names
        or name.startswith(PASSED_PREFIXES)
        or (name.lower() in PROXIES and not has_password(value))
    }


class SiteJobLauncher(ClientProcessJobLauncher):
    """FLARE's launcher of job processes at a site, with `job_environment` in place of the whole environment.

    Args:
        more: names of further variables that jobs at this site need, set in `local/resources.json`.
    """

    def __init__(self, more: Iterable[str] = ()) -> None:
        super().__init__()
        self.more = tuple(more)

    def launch_job(self, job_meta: dict[str, Any], fl_ctx: FLContext) -> ProcessHandle:
        """Start the process of a job and return its handle.

        A job's own code folder is never on its path: no site takes jobs that bring code.
        """
        environment = SENDING | job_environment(os.environ, self.more)
        environment |= get_credential_env(fl_ctx.get_prop(FLContextKey.JOB_PROCESS_ARGS) or {})
        command = shlex.split(self.get_command(job_meta, fl_ctx), True)
        return ProcessHandle(process_adapter=spawn_process(command, environment))
