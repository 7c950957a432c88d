# SPDX-License-Identifier: Apache-2.0
"""A learner in a thread of this process, for fast tests, with all that a learner imports."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from medflare.egress.failures import Failure, FailureCode, TaskError, failure_of
from medflare.learners.registry import build_learner
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import WorkerConfig
from medflare.worker.session import Builder, WorkerSession
from medflare.worker.workers import Worker

_POLL = 0.05


class ThreadWorker(Worker):
    """A learner in a thread of this process, for fast tests: a task past its deadline is abandoned, not
    stopped."""

    def __init__(self, config: WorkerConfig, builder: Builder = build_learner) -> None:
        self.config, self.builder = config, builder
        self._session: WorkerSession | None = None

    def run_task(self, request: TaskRequest, deadline: float, aborted: Callable[[], bool]) -> TaskResult:
        outcomes: list[TaskResult | BaseException] = []

        def run() -> None:
            try:
                self._session = self._session or WorkerSession(self.config, self.builder)
                outcomes.append(self._session.run_task(request))
            except Exception as error:
                traceback.print_exc()
                outcomes.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        until = time.monotonic() + deadline
        while thread.is_alive():
            thread.join(_POLL)
            if thread.is_alive() and (aborted() or time.monotonic() > until):
                self._session = None
                code = FailureCode.ABORTED if aborted() else FailureCode.DEADLINE
                raise TaskError(Failure(code, f"{request.task} was left behind."))
        outcome = outcomes[0]
        if isinstance(outcome, BaseException):
            raise TaskError(failure_of(outcome)) from outcome
        return outcome

    def close(self) -> None:
        self._session = None
