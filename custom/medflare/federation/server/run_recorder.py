# SPDX-License-Identifier: Apache-2.0
"""Keeps the run record while a run goes on; run.json is complete after every round, whatever happens next."""

from __future__ import annotations

import importlib.metadata
import math
import platform
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from medflare.core.metrics import as_metric
from medflare.core.run_record import RoundRecord, RunRecord, SiteRecord, Traffic, write_record
from medflare.core.site_description import description_of
from medflare.learners.registry import known_method
from medflare.version import __version__

PACKAGES = ("nvflare", "torch", "transformers", "peft", "safetensors", "numpy", "monai")


def versions() -> dict[str, str]:
    """Return the versions of what the numbers depend on."""
    versions = {"medflare": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def plausible_metrics(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the numbers among metrics that somebody can have measured, named `<prefix>_<name>`.

    JSON has no word for what is not finite. A loss below 0 is none: each is a cross entropy or a squared
    distance, and a round with a negative one would be the best for ever.
    """
    numbers = {f"{prefix}_{name}" if prefix else name: as_metric(value) for name, value in values.items()}
    return {
        name: value
        for name, value in numbers.items()
        if math.isfinite(value) and not (value < 0 and name.endswith("loss"))
    }


def weighted_means(
    metrics: Mapping[str, Mapping[str, float]], weights: Mapping[str, int]
) -> dict[str, float]:
    """Return means over sites weighted by examples, of metrics that every site with any metric has.

    A site without studies in a split, or without examples of a visit, has no say in their means.
    """
    metrics = {site: values for site, values in metrics.items() if values and weights.get(site, 0) > 0}
    if not metrics:
        return {}
    common = set.intersection(*(set(values) for values in metrics.values()))
    total = sum(weights[site] for site in metrics)
    return {
        name: sum(values[name] * weights[site] for site, values in metrics.items()) / total
        for name in sorted(common)
    }


_NO_ROUNDS, _OPEN, _CLOSE = '\n "rounds": [],\n', '\n "rounds": [\n', "\n ],\n"


def _text_in_list(entry: RoundRecord) -> str:
    """Return a round as it stands in the list of a record's JSON."""
    return textwrap.indent(entry.model_dump_json(indent=1), "  ")


EPSILON, DELTA = "train_epsilon", "train_delta"
"""Names of what sites report beside a private update, as a round's metrics have them."""


def _largest(record: RunRecord, name: str) -> float | None:
    """Return the largest number of that name over all sites and rounds; None where no site reports one."""
    entries = [part for entry in record.rounds for part in (entry, *entry.exchanges)]
    found = [site[name] for entry in entries for site in entry.metrics.values() if name in site]
    return max(found, default=None)


class RunRecorder:
    """The record of one run and the files it is written to.

    Args:
        path: in the folder of the job. copy: in that of the run, if it has one.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        run_id: str,
        seed: int,
        configuration: dict[str, Any],
        copy: Path | None = None,
    ) -> None:
        self.path, self.copy = path, copy
        self._started = time.monotonic()
        self._rounds: list[str] = []
        self.record = RunRecord(
            job=job,
            method="",
            run_id=run_id,
            started=self.now(),
            configuration=configuration,
            versions=versions(),
            seed=seed,
            best_round=None,
        )

    @staticmethod
    def now() -> str:
        """Return date and time in UTC, as records state them."""
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())

    def go_on_with(self, record: RunRecord) -> None:
        """Take the record of an earlier job of the run, and count its seconds."""
        self.record, self._rounds = record, []
        self.record.status, self.record.reason = "running", ""
        self._started = time.monotonic() - record.seconds

    def write(self) -> None:
        """Write run.json atomically, and its copy that outlives the job."""
        self.record.seconds = round(time.monotonic() - self._started, 3)
        self.record.epsilon = _largest(self.record, EPSILON)
        self.record.delta = _largest(self.record, DELTA)
        text = self.text()
        for path in filter(None, (self.path, self.copy)):
            write_record(path, text)

    def text(self) -> str:
        """Return the record as `model_dump_json(indent=1)` would.

        A round is made into text once, when the next one has begun: what a write costs does not grow with the
        rounds that are over.
        """
        rounds = self.record.rounds
        self._rounds += map(_text_in_list, rounds[len(self._rounds) : -1])
        frame = self.record.model_copy(update={"rounds": []}).model_dump_json(indent=1)
        if not rounds:
            return frame
        before, after = frame.split(
            _NO_ROUNDS
        )  # no other line begins like that: inner ones are indented more
        return "".join([before, _OPEN, ",\n".join([*self._rounds, _text_in_list(rounds[-1])]), _CLOSE, after])

    def add_sites(self, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Take the descriptions that the sites sent in `prepare`."""
        for site, declared in sorted(facts.items()):
            self.record.sites[site] = SiteRecord.of(description_of(declared, site))
        first = facts[min(facts)]
        method = known_method(self.record.method)
        self.record.task = method.task if method else ""
        description = description_of(first, min(facts))
        self.record.parameters, self.record.paper = description.parameters, description.paper
        self.write()

    def open_round(self, number: int) -> RoundRecord:
        """Return the record of a round, added at once so that a crash leaves it visible.

        A round in the middle of which a state was saved goes on in its own record.
        """
        if self.record.rounds and self.record.rounds[-1].round == number:
            return self.record.rounds[-1]
        entry = RoundRecord(round=number, seconds=0.0)
        self.record.rounds.append(entry)
        return entry

    def close(self, status: Literal["completed", "failed", "stopped", "paused"], reason: str = "") -> None:
        """Write how the run ended."""
        self.record.status, self.record.reason = status, reason
        self.write()


def add_traffic(entry: RoundRecord, traffic: Mapping[str, Traffic]) -> None:
    """Add an exchange's bytes to a round's."""
    for site, more in traffic.items():
        total = entry.traffic.setdefault(site, Traffic())
        total.sent += more.sent
        total.received += more.received
