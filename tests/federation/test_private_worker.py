# SPDX-License-Identifier: Apache-2.0
"""A site's worker under differential privacy: what is counted when work is asked for again, and by whom."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from test_private_rounds import DP, SETTINGS, STEPS, write_rows

from medflare.core.plan import RoundPlan
from medflare.differential_privacy.spending import ACCOUNT
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import WorkerConfig
from medflare.worker.session import WorkerSession

Start = Callable[[], WorkerSession]


@pytest.fixture
def start(tmp_path: Path, tiny_backbone: Path) -> Start:
    """Starts a process of a site with two devices; a second call is the process after a restart."""
    site = {
        "name": "site-1",
        "cohort": {"format": "summaries_jsonl", "root": str(write_rows(tmp_path / "rows"))},
        "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
        "devices": ["cpu", "cpu"],
        "policy": {"dp": {"epsilon": 50, "delta": DP["delta"], "min_patients": 2}},
    }
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(site))
    config = WorkerConfig(
        method="summarisation",
        settings=SETTINGS | {"dp": DP},
        seed=0,
        site="site-1",
        site_file=str(tmp_path / "site.yaml"),
        state_folder=str(tmp_path / "state"),
        cache_folder=str(tmp_path / "cache"),
        run_id="run",
        privacy_folder=str(tmp_path / "privacy"),
    )
    return lambda: WorkerSession(config)


def fit(session: WorkerSession, work: str, canary: bool = False) -> TaskResult:
    plan = plan_to_json(RoundPlan(round=0, rounds=4, steps=1 if canary else STEPS))
    options = {"canary": True} if canary else {}
    tensors = {name: value * 0 for name, value in session.learner.initial_shared().items()}
    return session.run_task(TaskRequest(task="fit", plan=plan, options=options, tensors=tensors, work=work))


def steps(folder: Path) -> int:
    """Steps in the book."""
    account = json.loads((folder / "privacy" / ACCOUNT).read_text())
    return sum(charge["steps"] for one in account["sets"] for charge in one["charges"])


def equal(one: TaskResult, other: TaskResult) -> bool:
    return all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_an_update_that_is_asked_for_again_is_sent_again_and_counted_once(
    start: Start, tmp_path: Path
) -> None:
    first = fit(start(), "work")
    session = start()  # as after a crash between the answer and its arrival
    assert equal(first, fit(session, "work"))
    assert steps(tmp_path) == STEPS
    other = fit(session, "other work of the same round")
    assert not equal(first, other)
    assert steps(tmp_path) == 2 * STEPS


def test_every_canary_is_counted_as_it_leaves_anew(start: Start, tmp_path: Path) -> None:
    session = start()
    one, other = (fit(session, "canary", canary=True) for _ in range(2))
    assert not equal(one, other)
    assert steps(tmp_path) == 2
    assert "epsilon" in one.facts["metrics"]


def test_a_round_that_died_after_it_was_counted_is_counted_and_made_anew(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = start()

    def dies(*inputs: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(session.learner), "train_round", dies)
        with pytest.raises(KeyboardInterrupt):
            fit(session, "work")
    assert steps(tmp_path) == STEPS
    assert fit(start(), "work").tensors
    assert steps(tmp_path) == 2 * STEPS


def test_a_private_round_of_a_site_with_two_devices_is_made_by_one_process(start: Start) -> None:
    """Two processes would draw two samples and two noises, and each would count."""
    session = start()
    assert fit(session, "work").tensors
    assert session._helpers is None
