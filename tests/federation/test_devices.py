# SPDX-License-Identifier: Apache-2.0
"""A site with several devices: one process each, one update, and a killed process costs one round."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import dispatch_model
from pydantic import ValidationError

from medflare.core.errors import ConfigError, RunError
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.data.settings.site import SiteConfig
from medflare.egress.failures import SiteSettingsError
from medflare.learners.text_task.training import RoundTrainer
from medflare.models.backbone import Backbone, load_backbone
from medflare.models.layer_placement import place_layers
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskRequest, TaskResult
from medflare.worker.config import WorkerConfig
from medflare.worker.ranks import use_devices
from medflare.worker.session import WorkerSession

SETTINGS: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
    "optimiser": {"batch": 3, "lr": 2e-3, "accumulate": 2},  # 3 rows of 2 processes: the shares differ
    "max_tokens": 120,
}


def config(
    folder: Path, backbone: Path, devices: list[Any], method: str = "question_answering", **more: Any
) -> WorkerConfig:
    """A site with seven questions; the number leaves a batch of one row for two processes."""
    root = folder / "cohort"
    root.mkdir(parents=True, exist_ok=True)
    rows = [
        {"id": f"q{i}", "question": f"Which is number {i}?", "answer": "AB"[i % 2], "split": "train",
         "options": {"A": "one thing", "B": "another " * (1 + i % 3)}}
        for i in range(7)
    ]  # fmt: skip
    (root / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = folder / "site.yaml"
    site = {
        "name": "site-1",
        "cohort": {"format": "questions_jsonl", "root": str(root)},
        "backbone": {"folder": str(backbone), "precision": "fp32"},
        "devices": devices,
        **more,
    }
    file.write_text(yaml.safe_dump(site))
    return WorkerConfig(
        method=method,
        settings=SETTINGS,
        seed=0,
        site="site-1",
        site_file=str(file),
        state_folder=str(folder / "state"),
        cache_folder=str(folder / "cache"),
        run_id="run",
    )


def fit(session: WorkerSession, state: State, number: int) -> TaskResult:
    plan = RoundPlan(round=number, rounds=4, steps=2)
    return session.run_task(TaskRequest(task="fit", plan=plan_to_json(plan), tensors=dict(state)))


@pytest.fixture
def together(tmp_path: Path, tiny_backbone: Path) -> Iterator[WorkerSession]:
    session = WorkerSession(config(tmp_path / "two", tiny_backbone, ["cpu", "cpu"]))
    yield session
    session.close()


def test_two_processes_send_the_update_of_one_and_a_killed_one_costs_its_round(
    together: WorkerSession, tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = WorkerSession(config(tmp_path / "one", tiny_backbone, []))
    state = alone.learner.initial_shared()
    for number in (0, 1):
        expected, found = (fit(session, state, number) for session in (alone, together))
        assert same(found, expected)
        assert found.facts["metrics"]["tokens"] == expected.facts["metrics"]["tokens"]
        assert found.facts["metrics"]["loss"] == pytest.approx(expected.facts["metrics"]["loss"], rel=1e-6)
    killed: list[int] = []

    def loses_its_helper(trainer: RoundTrainer, *inputs: Any, **options: Any) -> Any:
        if not killed and trainer.losses:  # in the middle of a round
            process = together._helpers.processes[0]  # type: ignore[union-attr]
            process.kill()
            killed.append(process.wait())
        return whole(trainer, *inputs, **options)

    whole = RoundTrainer.compute_loss
    with monkeypatch.context() as patched:
        patched.setattr(RoundTrainer, "compute_loss", loses_its_helper)
        with pytest.raises(RunError, match="process 1 of this site's devices has ended"):
            fit(together, state, 2)
    assert killed
    again, expected = (fit(session, state, 2) for session in (together, alone))
    assert same(again, expected), "as if the lost round had not been tried"


def same(found: TaskResult, expected: TaskResult) -> bool:
    largest = max(float(value.abs().max()) for value in expected.tensors.values())
    assert largest > 1e-4, "it learned"
    return all(torch.allclose(found.tensors[n], v, atol=1e-6, rtol=0) for n, v in expected.tensors.items())


def test_a_method_of_one_device_refuses_several(tmp_path: Path, tiny_backbone: Path) -> None:
    with pytest.raises(SiteSettingsError, match="names 2, and method fedmrg trains on one"):
        WorkerSession(config(tmp_path, tiny_backbone, [0, 1], "fedmrg"))


def test_one_process_with_its_layers_spread_sends_the_same_update(
    tmp_path: Path, tiny_backbone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = WorkerSession(config(tmp_path / "one", tiny_backbone, []))

    def behind_hooks(*given: Any, spread: int) -> Backbone:
        backbone = load_backbone(*given, spread=spread)
        places = place_layers(tiny_backbone, ["cpu"] * spread, "fp32")
        backbone.model = dispatch_model(backbone.model, places, force_hooks=True)  # as two cards would have
        return backbone

    monkeypatch.setattr("medflare.learners.text_task.learner.load_backbone", behind_hooks)
    # The decoder's own steps would pass the hooks by.
    monkeypatch.setattr("medflare.models.text_model.can_fuse", lambda *_, **__: False)
    spread = WorkerSession(config(tmp_path / "two", tiny_backbone, ["cpu", "cpu"], spread_layers=True))
    state = alone.learner.initial_shared()
    for number in (0, 1):
        expected, found = (fit(session, state, number) for session in (alone, spread))
        assert same(found, expected)
    assert spread._helpers is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"peft": {"method": "adalora"}}, r"settings\.peft\.method 'adalora'"),
        ({"dp": {"noise_multiplier": 1.0, "clip_norm": 1.0}}, r"settings\.dp"),
    ],
)
def test_only_plain_lora_is_trained_with_its_layers_spread(
    change: dict[str, Any], named: str, tmp_path: Path, tiny_backbone: Path
) -> None:
    made = config(tmp_path, tiny_backbone, ["cpu", "cpu"], spread_layers=True)
    with pytest.raises(ConfigError, match=f"plain LoRA.*this job has {named}.*Leave spread_layers out"):
        WorkerSession(replace(made, settings=SETTINGS | change))


@pytest.mark.parametrize("devices", [[], [3]])
def test_layers_are_spread_over_two_devices_or_more(devices: list[int]) -> None:
    cohort = {"format": "questions_jsonl", "root": "x"}
    with pytest.raises(ValidationError, match="spread_layers needs the numbers of two GPUs or more"):
        SiteConfig.model_validate({"cohort": cohort, "devices": devices, "spread_layers": True})


def test_a_process_sees_its_own_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert (use_devices([2, 3]), os.environ["CUDA_VISIBLE_DEVICES"]) == ("cuda", "2,3")
    assert (use_devices(["cpu"]), os.environ["CUDA_VISIBLE_DEVICES"]) == ("cpu", "2,3")


@pytest.mark.parametrize("devices", [[0, 0], [0, "cpu"], [-1], ["cuda"]])
def test_devices_are_numbers_of_gpus_or_processors(devices: list[Any]) -> None:
    cohort = {"format": "questions_jsonl", "root": "x"}
    with pytest.raises(ValidationError, match="devices"):
        SiteConfig.model_validate({"cohort": cohort, "devices": devices})


def test_threads_auto_are_the_processors_of_this_process_shared_by_its_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    cohort = {"format": "questions_jsonl", "root": "x"}
    counts = {}
    for devices in ([], ["cpu"] * 2, [0, 1, 2]):
        site = SiteConfig.model_validate({"cohort": cohort, "threads": "auto", "devices": devices})
        counts[len(devices)] = site.threads
    assert counts == {0: 8, 2: 4, 3: 2}
    spread = {"cohort": cohort, "threads": "auto", "devices": [0, 1], "spread_layers": True}
    assert SiteConfig.model_validate(spread).threads == 8, "one process"
