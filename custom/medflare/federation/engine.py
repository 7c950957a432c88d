# SPDX-License-Identifier: Apache-2.0
"""The one module in which NVIDIA FLARE's names enter; everything here is re-exported and contract-tested.

FLARE changes under integrators at each minor release, so the version is pinned and checked on import, and
tests/federation/test_engine_contract.py states what is expected of every symbol.

FLARE's long-lived processes import this module for the components of a kit, so it imports no torch.
"""

from __future__ import annotations

import nvflare
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.impl.job_def_manager import SimpleJobDefManager
from nvflare.apis.job_def import JobMetaKey, RunStatus
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.process_launcher import ProcessHandle
from nvflare.app_common.storages.filesystem_storage import FilesystemStorage
from nvflare.fuel.sec.security_content_service import LoadResult, SecurityContentManager
from nvflare.fuel.utils import fobs
from nvflare.lighter.utils import verify_folder_signature_and_get_signers
from nvflare.utils.job_launcher_utils import get_credential_env
from nvflare.utils.process_utils import spawn_process
from nvflare.widgets.info_collector import GroupInfoCollector, InfoCollector

SUPPORTED = "2.9."

__all__ = [
    "DEFAULT_CLASS_ALLOW_LIST",
    "DXO",
    "SUPPORTED",
    "AppConstants",
    "Client",
    "ClientProcessJobLauncher",
    "ClientTask",
    "Controller",
    "DataKind",
    "EventType",
    "Executor",
    "FLComponent",
    "FLContext",
    "FLContextKey",
    "FilesystemStorage",
    "GroupInfoCollector",
    "InfoCollector",
    "JobMetaKey",
    "LoadResult",
    "MetaKey",
    "ProcessHandle",
    "ReturnCode",
    "RunStatus",
    "SecurityContentManager",
    "Shareable",
    "Signal",
    "SimpleJobDefManager",
    "Task",
    "check_version",
    "from_shareable",
    "get_credential_env",
    "make_reply",
    "register_tensors",
    "spawn_process",
    "verify_folder_signature_and_get_signers",
]


def check_version(version: str) -> None:
    """ImportError unless `version` is the minor release this package was tested with."""
    if not version.startswith(SUPPORTED):
        raise ImportError(
            f"nvflare {version} is installed, but medflare works with nvflare {SUPPORTED}* only. "
            f"Run: pip install 'nvflare=={SUPPORTED}*'"
        )


def register_tensors() -> None:
    """Let torch tensors travel in FLARE messages of this process.

    Without it a job's clients loop for ever on the first tensor.
    """
    from nvflare.app_opt.pt.decomposers import TensorDecomposer

    fobs.register(TensorDecomposer)


check_version(nvflare.__version__)
