# SPDX-License-Identifier: Apache-2.0
"""A round by transformers' Trainer is a plain AdamW loop, and the process is afterwards as it was before."""

from __future__ import annotations

import math
import os
import random
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from extraction_sites import PLAN, SMALL, make, site

from medflare.core.errors import UpdateError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.learners.optim import CosinePart
from medflare.learners.text_task.settings import OptimiserSettings
from medflare.learners.text_task.training import RoundTrainer, train_round
from medflare.models.adapters.base import GENERIC

EVEN = {**SMALL["lora"], "dropout": 0.0}
SETTINGS = {"batch": 2, "lr": 2e-3, "weight_decay": 0.1, "warmup": 0.4, "clip_norm": 0.5}


@pytest.fixture
def learner(notes: Path) -> ExtractionLearner:
    learner = make(site(notes), lora=EVEN)
    learner.adapter.use(train=True)
    return learner


def cut(learner: ExtractionLearner, count: int) -> list[list[Any]]:
    """`count` batches of the shortest questions."""
    rows = sorted(learner.train_rows, key=lambda row: len(row.ids))
    return [rows[2 * i : 2 * i + 2] for i in range(count)]


def of_round(step: int, steps: int, warmup: float) -> float:
    """The rate's factor in a cosine of the round's own, as transformers has it."""
    warm = round(warmup * steps)
    return step / warm if step < warm else 0.5 + 0.5 * math.cos(math.pi * (step - warm) / (steps - warm))


def of_run(step: int, steps: int, warmup: float) -> float:
    """The rate's factor in the second of three rounds of one cosine."""
    along = (1 + step / steps) / 3
    if along < warmup:
        return along / warmup
    return 0.5 + 0.5 * math.cos(math.pi * (along - warmup) / (1 - warmup))


def by_hand(
    learner: ExtractionLearner, batches: list[list[Any]], settings: OptimiserSettings, rate: Any = of_round
) -> State:
    """AdamW, linear warm-up, cosine to zero, clipping, and the mean over the batches of a step."""
    parts = [batches[i : i + settings.accumulate] for i in range(0, len(batches), settings.accumulate)]
    learning = learner.model.adapters.parameters(GENERIC)
    optimiser = torch.optim.AdamW(learning, settings.lr, weight_decay=settings.weight_decay)
    for step, part in enumerate(parts):
        optimiser.param_groups[0]["lr"] = settings.lr * rate(step, len(parts), settings.warmup)
        optimiser.zero_grad()
        for batch in part:
            total, count = learner.model.loss(batch)
            (total / count / len(part)).backward()
        torch.nn.utils.clip_grad_norm_(learning, settings.clip_norm)
        optimiser.step()
    return learner.model.adapters.state(GENERIC)


@pytest.mark.parametrize(("cosine_over", "rate"), [("round", of_round), ("run", of_run)])
@pytest.mark.parametrize(("count", "accumulate"), [(3, 1), (4, 2), (3, 2)])
def test_a_round_is_a_plain_adamw_loop(
    learner: ExtractionLearner, count: int, accumulate: int, cosine_over: Any, rate: Any
) -> None:
    settings = OptimiserSettings(**SETTINGS, accumulate=accumulate, cosine_over=cosine_over)
    before, batches = learner.model.adapters.state(GENERIC), cut(learner, count)
    part = settings.cosine_part(RoundPlan(round=1, rounds=3))
    metrics = train_round(learner.model, batches, settings, 0, "site-1", part)
    result = learner.model.adapters.state(GENERIC)
    learner.model.adapters.load(GENERIC, before)
    expected = by_hand(learner, batches, settings, rate)
    for name in expected:
        moved = (expected[name] - before[name]).abs().max()
        assert (result[name] - expected[name]).abs().max() <= 1e-3 * moved + 1e-7, name
    assert metrics["steps"] == math.ceil(count / accumulate)
    assert metrics["tokens"] == sum(len(row.ids) - row.start for batch in batches for row in batch)


def test_gradient_checkpointing_changes_memory_and_not_the_update(learner: ExtractionLearner) -> None:
    before, batches, states = learner.model.adapters.state(GENERIC), cut(learner, 4), []
    for checkpointing in (False, True, True):
        learner.model.adapters.load(GENERIC, before)
        settings = OptimiserSettings(**SETTINGS, accumulate=2, gradient_checkpointing=checkpointing)
        train_round(learner.model, batches, settings, 0, "site-1", CosinePart(warmup=settings.warmup))
        states.append(learner.model.adapters.state(GENERIC))
    assert learner.model.backbone.model.is_gradient_checkpointing
    for name in before:
        moved = (states[0][name] - before[name]).abs().max()
        assert (states[0][name] - states[1][name]).abs().max() <= 1e-3 * moved
        assert torch.equal(states[1][name], states[2][name]), "no moments of the round before"


def test_training_without_a_batch_is_refused(learner: ExtractionLearner) -> None:
    with pytest.raises(UpdateError, match="no training example"):
        train_round(learner.model, [], OptimiserSettings(), 0, "site-1", CosinePart())


def test_a_last_step_that_bursts_is_said(learner: ExtractionLearner, monkeypatch: Any) -> None:
    def burst(trainer: RoundTrainer) -> None:
        torch.nn.init.constant_(trainer.text.adapters.parameters(GENERIC)[0], math.inf)

    monkeypatch.setattr(RoundTrainer, "train", burst)
    with pytest.raises(UpdateError, match=r"not finite; nothing of this round was kept.*which is 0\.0002"):
        train_round(learner.model, cut(learner, 1), OptimiserSettings(), 0, "site-1", CosinePart())


def test_a_round_leaves_files_streams_network_environment_and_random_numbers_alone(
    learner: ExtractionLearner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something called out"))
    environment, stream = dict(os.environ), sys.stdout
    numbers = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
    learner.fit(PLAN)
    assert {path.name for path in tmp_path.rglob("*")} == {"here", "temporary"}
    assert capfd.readouterr().out == ""
    assert sys.stdout is stream
    assert dict(os.environ) == environment
    assert random.getstate() == numbers[0]
    assert np.random.get_state()[1].tolist() == numbers[1]
    assert torch.equal(torch.get_rng_state(), numbers[2])


def test_sites_that_are_threads_of_one_process_do_not_disturb_each_other(notes: Path) -> None:
    names = ("site-1", "site-2")
    alone = {name: make(site(notes, name)).fit(PLAN).delta for name in names}
    together = {name: make(site(notes, name)) for name in names}
    found: dict[str, State] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: together[n].fit(PLAN).delta})) for n in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert all(torch.equal(alone[name][key], found[name][key]) for key in alone[name])
