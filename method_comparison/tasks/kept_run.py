# SPDX-License-Identifier: Apache-2.0
"""Keeps what a unit trained as a run, which `medflare evaluate`, `extract`, `generate` and `serve` take."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from medflare.core.learner import Learner
from medflare.core.run_record import RunRecord, SiteRecord
from medflare.core.tensors import State
from medflare.learners.registry import task_of
from medflare.models.peft_folder import FINAL, Card, PeftFolder
from method_comparison.tasks.base import Unit


def keep_run(unit: Unit[Any, Any], method: str, learners: Mapping[str, Learner], state: State) -> None:
    """Write run.json and result/adapter into a unit's folder.

    Args:
        method: of medflare. learners: of the sites that trained, or of one that holds all their records.
        state: the last shared one.
    """
    descriptions = {site: learner.describe() for site, learner in sorted(learners.items())}
    first = descriptions[min(descriptions)]
    record = RunRecord(
        job=f"comparison-{unit.method}",
        method=method,
        task=task_of(method).name,
        run_id=f"{unit.partition}-{unit.method}-{unit.seed}",
        status="completed",
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seed=unit.seed,
        sites={site: SiteRecord.of(described) for site, described in descriptions.items()},
        parameters=first.parameters,
        best_round=None,
        artefacts={"final": f"result/{FINAL}"},
    )
    card = Card(
        job=record.job,
        method=method,
        run_id=record.run_id,
        base_model=first.backbone.name,
        fingerprint=first.backbone.fingerprint,
        sites=len(descriptions),
        rounds=unit.settings.rounds,
        metrics={},
    )
    writer = PeftFolder()
    writer.expect(first)
    writer.write(unit.folder / record.artefacts["final"], state, card)
    record.write(unit.folder / "run.json")
