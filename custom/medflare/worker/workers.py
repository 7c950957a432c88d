# SPDX-License-Identifier: Apache-2.0
"""The worker that runs the learner: a child process that may die without harm.

If a client process of FLARE dies, the whole job fails; if the child dies, one site loses one round. A worker
is started at its first task, stopped when it dies, exceeds a deadline or the job is aborted, and started
again at the next task, where the session restores the site's local state.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from medflare.egress.failures import OUT_OF_MEMORY, SEE_LOG, Failure, FailureCode, TaskError
from medflare.wire.files import load_tensors, save_tensors
from medflare.wire.memory import LESS_MEMORY, oom_kills
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import WorkerConfig
from medflare.worker.fork_server import ForkedProcess, fork_worker
from medflare.worker.progress_file import TaskProgress, forget_progress, write_progress

MAIN = (sys.executable, "-P", "-m", "medflare.worker.main")
_POLL = 0.05


class Worker(ABC):
    """Runs tasks, one at a time."""

    @abstractmethod
    def run_task(self, request: TaskRequest, deadline: float, aborted: Callable[[], bool]) -> TaskResult:
        """Return the result of a task.

        Args:
            deadline: seconds after which the task is given up.
            aborted: whether the job was stopped; asked while the task runs.

        Raises:
            TaskError: the task failed, exceeded its deadline or was stopped, or the worker died.
        """

    @abstractmethod
    def close(self) -> None:
        """End the worker and free what it holds."""


class ProcessWorker(Worker):
    """A learner in its own process.

    Args:
        config: sent with the first task after each start.
        scratch: folder for tensors in transit and for `worker.log`, which holds full traces.
        threads: of torch in the worker.
        command: the program to start; the descriptor of its socket is added as last argument.
    """

    def __init__(
        self, config: WorkerConfig, scratch: Path, threads: int = 1, command: Sequence[str] = MAIN
    ) -> None:
        self.config, self.scratch, self.threads, self.command = config, scratch, threads, tuple(command)
        self.process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._channel: socket.socket | None = None
        self._buffer = b""
        self._number = self._oom_kills = 0
        scratch.mkdir(parents=True, exist_ok=True)

    def _start(self) -> None:
        self._oom_kills = oom_kills()
        self._channel, child_end = socket.socketpair()
        threads = str(self.threads)
        settings = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
        env = {
            **LESS_MEMORY,
            **os.environ,
            **settings,
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
        }
        with child_end, (self.scratch / "worker.log").open("ab") as log:
            forked = fork_worker(child_end, log.fileno(), env) if self.command == MAIN else None
            self.process = forked or self._start_program(child_end, log, env)
        self._buffer = b""

    def _start_program(
        self, child_end: socket.socket, log: IO[bytes], env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start the worker as a program, in a session of its own, so that close() ends all that it starts."""
        return subprocess.Popen(
            [*self.command, str(child_end.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(child_end.fileno(),),
            env=env,
            start_new_session=True,
        )

    def run_task(self, request: TaskRequest, deadline: float, aborted: Callable[[], bool]) -> TaskResult:
        if self.process is None or self.process.poll() is not None:
            self.close()
            self._start()
        self._number += 1
        request_file, reply_file = (
            self.scratch / f"{direction}-{self._number}.safetensors" for direction in ("to", "from")
        )
        write_progress(self.scratch, TaskProgress(task=request.task))
        try:
            if request.tensors:
                save_tensors(request_file, request.tensors, durable=False)
            message = {
                "number": self._number,
                "config": self.config.to_json(),
                "task": request.task,
                "plan": request.plan,
                "options": request.options,
                "work": request.work,
                "tensors": str(request_file) if request.tensors else None,
                "reply": str(reply_file),
            }
            answer = self._exchange(message, time.monotonic() + deadline, aborted)
            if not answer["ok"]:
                raise TaskError(Failure.from_json(answer["failure"]))
            return TaskResult(answer["facts"], load_tensors(reply_file)[0] if answer["tensors"] else {})
        finally:
            forget_progress(self.scratch)
            request_file.unlink(missing_ok=True)
            reply_file.unlink(missing_ok=True)

    def _exchange(self, message: dict[str, Any], until: float, aborted: Callable[[], bool]) -> dict[str, Any]:
        """Send a message and return its answer; on abort, deadline or a broken socket, kill the process.

        A hanging step of torch cannot be interrupted from outside; only the process can be ended.
        """
        channel, process = self._channel, self.process
        assert channel is not None
        assert process is not None
        try:
            channel.sendall((json.dumps(message) + "\n").encode())
            while True:
                line = self._read_line(channel)
                if line is not None:
                    answer: dict[str, Any] = json.loads(line)
                    if answer["number"] != message["number"]:
                        continue
                    if "progress" not in answer:
                        return answer
                    progress = TaskProgress(task=message["task"], **answer["progress"])
                    write_progress(self.scratch, progress)
                elif aborted():
                    raise TaskError(Failure(FailureCode.ABORTED, "the job was stopped."))
                elif time.monotonic() > until:
                    raise TaskError(Failure(FailureCode.DEADLINE, f"{message['task']} passed its deadline."))
        except (OSError, ValueError):  # the worker closed its end, or somebody closed ours
            ended, killed = _exit_of(process), oom_kills() > self._oom_kills
            self.close()
            if killed and ended == signal.SIGKILL.name:
                raise TaskError(Failure(FailureCode.OUT_OF_MEMORY, OUT_OF_MEMORY)) from None
            text = f"the worker process ended with {ended}. {SEE_LOG}"
            raise TaskError(Failure(FailureCode.WORKER_DIED, text)) from None
        except TaskError:
            self.close()
            raise

    def _read_line(self, channel: socket.socket) -> bytes | None:
        """Return the next line, or None if there is none yet; OSError when the worker has gone."""
        if b"\n" not in self._buffer and select.select([channel], [], [], _POLL)[0]:
            chunk = channel.recv(1 << 16)
            if not chunk:
                raise ConnectionResetError
            self._buffer += chunk
        if b"\n" not in self._buffer:
            return None
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def close(self) -> None:
        channel, process = self._channel, self.process
        self._channel = self.process = None
        if channel is not None:
            channel.close()
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _exit_of(process: subprocess.Popen[bytes] | ForkedProcess) -> str:
    """Return how a process ended: `exit code 1` or `SIGKILL`."""
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        return "no exit code"
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
