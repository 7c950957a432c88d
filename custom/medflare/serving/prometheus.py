# SPDX-License-Identifier: Apache-2.0
"""Runs as Prometheus metrics: rounds, seconds, bytes, absences, epsilon; counted from the records alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord
from medflare.serving.live_state import LiveState

Served = tuple[str, RunRecord, LiveState]
"""Name of a run, its record, how far it is."""


def exposition(runs: Iterable[Served]) -> bytes:
    """Return the text that Prometheus reads.

    Raises:
        ConfigError: prometheus-client is not installed.
    """
    try:
        import prometheus_client as client
    except ImportError:
        raise ConfigError(
            "Metrics need the package prometheus-client: pip install 'medflare[serve]'."
        ) from None
    registry = client.CollectorRegistry()
    done = _gauge(client, registry, "rounds_done", "Rounds that are done", "run", "job")
    planned = _gauge(client, registry, "rounds_planned", "Rounds of the run; 0 if unknown", "run", "job")
    seconds = _gauge(client, registry, "last_round_seconds", "Length of the last round", "run", "job")
    quiet = _gauge(
        client, registry, "seconds_since_progress", "Since the last event of the run", "run", "job"
    )
    running = _gauge(client, registry, "running", "1 while the run goes on", "run", "job")
    failed = _gauge(client, registry, "failed", "1 for a run that failed", "run", "job")
    epsilon = _gauge(client, registry, "epsilon", "Privacy loss that was spent", "run", "job")
    sent = _gauge(client, registry, "site_sent_bytes", "Bytes of updates a site sent", "run", "job", "site")
    absent = _gauge(client, registry, "site_absent_rounds", "Rounds without a site", "run", "job", "site")
    loss = _gauge(client, registry, "mean", "Mean over sites of a metric, last round", "run", "job", "metric")
    for name, record, state in runs:
        labels = (name, record.job)
        done.labels(*labels).set(len(record.rounds))
        planned.labels(*labels).set(state.rounds)
        running.labels(*labels).set(state.running)
        failed.labels(*labels).set(state.state == "failed")
        if record.rounds:
            seconds.labels(*labels).set(record.rounds[-1].seconds)
        if state.quiet is not None:
            quiet.labels(*labels).set(state.quiet)
        if record.epsilon is not None:
            epsilon.labels(*labels).set(record.epsilon)
        for site in sorted(record.sites):
            traffic = [entry.traffic[site].sent for entry in record.rounds if site in entry.traffic]
            sent.labels(*labels, site).set(sum(traffic))
            absent.labels(*labels, site).set(sum(site in entry.absent for entry in record.rounds))
        for metric, value in (record.rounds[-1].mean if record.rounds else {}).items():
            loss.labels(*labels, metric).set(value)
    text: bytes = client.generate_latest(registry)
    return text


def _gauge(client: Any, registry: Any, name: str, what: str, *labels: str) -> Any:
    return client.Gauge(f"medflare_run_{name}", what, labels, registry=registry)
