# SPDX-License-Identifier: Apache-2.0
"""The worker process that the executor starts: `python -m medflare.worker.main <descriptor>`.

Control messages are JSON lines over the socket whose descriptor is given; tensors are safetensors files.
When the executor goes away the socket closes and the process ends at once, even in the middle of a step.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from medflare.core.task_progress import listening
from medflare.egress.failures import failure_of
from medflare.learners.registry import build_learner
from medflare.wire.files import load_tensors, save_tensors
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import WorkerConfig
from medflare.worker.session import Builder, WorkerSession

SECONDS_BETWEEN_REPORTS = 0.5


def _listen(channel: socket.socket, inbox: queue.Queue[dict[str, Any]]) -> None:
    """Queue the executor's messages; end the process when the executor has closed the socket."""
    with channel.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            inbox.put(json.loads(line))
    os._exit(0)


def answer(session: WorkerSession, message: dict[str, Any]) -> dict[str, Any]:
    """Run the task of a message and return the answer: facts, and the file that holds the tensors."""
    tensors = load_tensors(Path(message["tensors"]))[0] if message["tensors"] else {}
    request = TaskRequest(
        task=message["task"],
        plan=message["plan"],
        options=message["options"],
        tensors=tensors,
        work=message["work"],
    )
    result: TaskResult = session.run_task(request)
    if result.tensors:
        save_tensors(Path(message["reply"]), result.tensors, durable=False)
    return {"ok": True, "facts": result.facts, "tensors": message["reply"] if result.tensors else None}


class ProgressSender:
    """Sends the executor the progress of a task, at most twice a second."""

    def __init__(self, channel: socket.socket, number: int) -> None:
        self._channel, self._number, self._last = channel, number, 0.0

    def __call__(self, counted: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._last < SECONDS_BETWEEN_REPORTS:
            return
        self._last = now
        message = {"number": self._number, "progress": {"counted": counted, "done": done, "total": total}}
        with suppress(OSError):  # the executor has gone, and with it this process
            self._channel.sendall((json.dumps(message) + "\n").encode())


def main(descriptor: int, builder: Builder = build_learner) -> None:
    """Answer messages until the executor closes the socket.

    Args:
        descriptor: of the socket, inherited from the executor.
        builder: makes the learner.
    """
    channel = socket.socket(fileno=descriptor)
    inbox: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(channel, inbox), daemon=True).start()
    session: WorkerSession | None = None
    while True:
        message = inbox.get()
        try:
            with listening(ProgressSender(channel, message["number"])):
                if session is None:
                    session = WorkerSession(WorkerConfig(**message["config"]), builder)
                reply = answer(session, message)
        except Exception as error:
            reply = {"ok": False, "failure": failure_of(error).to_json()}
            with suppress(OSError):  # worker.log lies on the disk that may be full
                traceback.print_exc()
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        channel.sendall((json.dumps({"number": message["number"], **reply}) + "\n").encode())


if __name__ == "__main__":
    main(int(sys.argv[1]))
