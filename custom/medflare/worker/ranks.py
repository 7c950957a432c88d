# SPDX-License-Identifier: Apache-2.0
"""Several processes of one site that train together, one for each of its `devices`.

The worker that FLARE's executor knows is rank 0; it starts the others, and each round it hands them the very
request that it trains on itself. All build the same learner from the same files, so that only gradients are
exchanged. The others send nothing: what leaves the site is rank 0's. When one of them dies, the exchange of
gradients fails, the round is lost for this site, and all are started anew for the next one.
"""

from __future__ import annotations

import datetime
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from medflare.core.errors import RunError
from medflare.egress.failures import SiteSettingsError
from medflare.learners.registry import METHODS, known_method
from medflare.wire.files import save_tensors
from medflare.wire.task_messages import TaskRequest
from medflare.worker.config import WorkerConfig

MAIN = (sys.executable, "-P", "-m", "medflare.worker.rank_main")
START_SECONDS = 1800.0
"""Seconds that a process may take until all have loaded their models, and for one exchange of gradients."""


def use_devices(devices: Sequence[int | str]) -> str:
    """Let this process see these devices alone, and return what they are called here: `cuda` or `cpu`.

    It has no effect once torch has looked for GPUs, so it comes before anything is loaded.
    """
    if "cpu" in devices:
        return "cpu"
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    return "cuda"


def require_several_devices(method: str, devices: Sequence[int | str]) -> None:
    """Raise SiteSettingsError where several devices are named for a method that trains on one."""
    known = known_method(method)
    if len(devices) > 1 and known is not None and not known.several_devices:
        able = ", ".join(sorted(name for name, entry in METHODS.items() if entry.several_devices))
        raise SiteSettingsError(
            f"devices in site.yaml names {len(devices)}, and method {method} trains on one (these can have "
            f"more: {able}). Leave `devices` out and set `device`."
        )


def join(device: str, rank: int, size: int, store: Path) -> None:
    """Wait until all processes of the group are there.

    Args:
        store: a file that all can write, new for each group.
    """
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    dist.init_process_group(
        "nccl" if device == "cuda" else "gloo",
        store=dist.FileStore(str(store), size),
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=START_SECONDS),
    )


class HelperRanks:
    """The processes of ranks 1 and above, as rank 0 starts, feeds and ends them.

    Args:
        config: of the worker; devices: of the site, rank 0's first.
        threads: of torch in each process.
    """

    def __init__(self, config: WorkerConfig, devices: Sequence[int | str], threads: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="medflare-ranks-")
        store = Path(self._folder.name) / "store"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[socket.socket] = []
        self._number = 0
        try:
            for rank in range(1, len(devices)):
                self._start(config, devices, rank, threads, store)
            join("cpu" if devices[0] == "cpu" else "cuda", 0, len(devices), store)
        except Exception:
            self.close()
            raise

    def _start(
        self, config: WorkerConfig, devices: Sequence[int | str], rank: int, threads: int, store: Path
    ) -> None:
        ours, theirs = socket.socketpair()
        visible = {} if devices[rank] == "cpu" else {"CUDA_VISIBLE_DEVICES": str(devices[rank])}
        count = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        with theirs:
            process = subprocess.Popen(
                [*MAIN, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,  # output goes where the worker's own does, worker.log
                pass_fds=(theirs.fileno(),),
                env={**os.environ, **count, **visible},
            )
        self._channels.append(ours)
        self.processes.append(process)
        group = {"rank": rank, "size": len(devices), "store": str(store), "device": str(devices[rank])}
        self._tell(ours, {"config": config.to_json(), "group": group})

    @staticmethod
    def _tell(channel: socket.socket, message: dict[str, Any]) -> None:
        channel.sendall((json.dumps(message) + "\n").encode())

    def train(self, request: TaskRequest) -> None:
        """Let the others train on a request, beside this process.

        Raises:
            RunError: one of them is gone.
        """
        self._number += 1
        file = Path(self._folder.name) / f"request-{self._number % 2}.safetensors"
        save_tensors(file, request.tensors, durable=False)
        message = {"plan": request.plan, "options": request.options, "tensors": str(file)}
        for channel in self._channels:
            with suppress(OSError):  # its process has ended, which is said next
                self._tell(channel, message)
        self.require_all()

    def require_all(self) -> None:
        """Raise RunError unless all processes run."""
        for rank, process in enumerate(self.processes, start=1):
            if process.poll() is not None:
                raise RunError(
                    f"process {rank} of this site's devices has ended; worker.log at the site says why. The "
                    "site takes part again in the next round, with new processes."
                )

    def close(self) -> None:
        """End the others and leave the group."""
        for channel in self._channels:
            channel.close()
        for process in self.processes:
            process.kill()
            process.wait()
        if dist.is_initialized():
            with suppress(RuntimeError):
                dist.destroy_process_group()
        self._folder.cleanup()
