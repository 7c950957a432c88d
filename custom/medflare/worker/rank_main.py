# SPDX-License-Identifier: Apache-2.0
"""A further process of a site's devices: `python -m medflare.worker.rank_main <descriptor>`.

It trains beside the worker on the same requests, and ends when the worker closes the socket or any of it
fails: the worker notices by the exchange of gradients.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from medflare.learners.registry import build_learner
from medflare.wire.files import load_tensors
from medflare.wire.task_messages import TaskRequest
from medflare.worker.config import WorkerConfig
from medflare.worker.ranks import join
from medflare.worker.session import Builder, WorkerSession


def _listen(channel: socket.socket, inbox: queue.Queue[dict[str, Any]]) -> None:
    """Queue the worker's messages; end the process, even in the middle of a step, when the worker is gone."""
    with channel.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            inbox.put(json.loads(line))
    os._exit(0)


def main(descriptor: int, builder: Builder = build_learner) -> None:
    """Train on what the worker trains on, until it closes the socket."""
    channel = socket.socket(fileno=descriptor)
    inbox: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    first = inbox.get()
    group = first["group"]
    session = WorkerSession(WorkerConfig(**first["config"]), builder, rank=int(group["rank"]))
    device = "cpu" if group["device"] == "cpu" else "cuda"
    join(device, int(group["rank"]), int(group["size"]), Path(group["store"]))
    while True:
        message = inbox.get()
        tensors = load_tensors(Path(message["tensors"]))[0]
        session.fit(
            TaskRequest(task="fit", plan=message["plan"], options=message["options"], tensors=tensors)
        )


if __name__ == "__main__":
    main(int(sys.argv[1]))
