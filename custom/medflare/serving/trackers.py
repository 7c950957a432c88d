# SPDX-License-Identifier: Apache-2.0
"""Copies the numbers of a run into MLflow or Weights & Biases, while it goes on or afterwards.

It reads `run.json` as `medflare serve` does, so that neither server nor sites know of it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord, read_record
from medflare.reporting.exports import round_numbers

POLL_SECONDS = 5.0


class Tracker(ABC):
    """Takes the numbers of one run."""

    @abstractmethod
    def begin(self, name: str, facts: Mapping[str, str]) -> None:
        """Open a run of this name; `facts` are its job, method, rule and the like."""

    @abstractmethod
    def log(self, number: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a round, counted from 1."""

    @abstractmethod
    def end(self, scores: Mapping[str, float]) -> None:
        """Take the scores of the final tests and close the run."""


class MlflowTracker(Tracker):
    """MLflow; `uri` is a folder, a database or a server, as MLflow writes them."""

    def __init__(self, project: str, uri: str | None = None) -> None:
        self._mlflow = _package("mlflow")
        if uri:
            self._mlflow.set_tracking_uri(uri)
        self._mlflow.set_experiment(project)

    def begin(self, name: str, facts: Mapping[str, str]) -> None:
        self._mlflow.start_run(run_name=name)
        self._mlflow.log_params(dict(facts))

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(values), step=number)

    def end(self, scores: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(scores))
        self._mlflow.end_run()


class WandbTracker(Tracker):
    """Weights & Biases; without `online` it writes a folder that `wandb sync` can send later."""

    def __init__(self, project: str, online: bool = False) -> None:
        self._wandb, self._project = _package("wandb"), project
        self._mode = "online" if online else "offline"

    def begin(self, name: str, facts: Mapping[str, str]) -> None:
        self._run = self._wandb.init(
            project=self._project, name=name, config=dict(facts), mode=self._mode, reinit=True
        )

    def log(self, number: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=number)

    def end(self, scores: Mapping[str, float]) -> None:
        self._run.summary.update(dict(scores))
        self._run.finish()


def track(
    record_path: Path,
    tracker: Tracker,
    goes_on: Callable[[], bool] = lambda: False,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Give a run's numbers to a tracker and return how many rounds it got.

    A round is given once, when it is over: while it goes on, its record has no validation yet.

    Args:
        goes_on: whether further rounds are to be waited for; asked before each look.
        wait: sleeps so many seconds between two looks.
    """
    record = read_record(record_path)
    tracker.begin(record.run_id, {"job": record.job, "method": record.method, "task": record.task})
    done = 0
    while True:
        last_look = not goes_on()
        record = read_record(record_path)
        over = len(record.rounds) if last_look else rounds_over(record)
        for number, values in sorted(values_by_round(record, over).items()):
            if number > done:
                tracker.log(number, values)
                done = number
        if last_look:
            tracker.end(final_scores(record))
            return done
        wait(POLL_SECONDS)


def rounds_over(record: RunRecord) -> int:
    """Return how many rounds of a running run's record are over.

    A round's seconds are written at its end; where it has several exchanges, after each of them, so that it
    is over when the next one has begun.
    """
    last = record.rounds[-1] if record.rounds else None
    goes_on = last is not None and (not last.seconds or bool(last.exchanges))
    return len(record.rounds) - goes_on


def values_by_round(record: RunRecord, rounds_taken: int) -> dict[int, dict[str, float]]:
    """Return round -> `site/metric` -> value of the first rounds; what belongs to no site stands alone."""
    record = record.model_copy(update={"rounds": record.rounds[:rounds_taken]})
    rounds: dict[int, dict[str, float]] = {}
    for number, site, metric, value in round_numbers(record):
        rounds.setdefault(number, {})[f"{site}/{metric}" if site else metric] = float(value)
    return rounds


def final_scores(record: RunRecord) -> dict[str, float]:
    """Return `test/site/adapter/metric` -> score of the final tests."""
    return {
        f"{item.split}/{item.site}/{item.adapter}/{name}": float(score.value)
        for item in record.evaluations
        for name, score in item.metrics.items()
    }


def _package(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"the package {name} is not installed: pip install {name}") from None
