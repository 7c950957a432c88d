# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA at one site: what it declares, what a round leaves, what survives, what is lost and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from extraction_sites import PLAN, SMALL, make, site

from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.egress.failures import FailureCode, failure_of
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskRequest
from medflare.worker import memory_check
from medflare.worker.config import WorkerConfig
from medflare.worker.memory_check import TooLittleMemoryError
from medflare.worker.session import WorkerSession


@pytest.fixture
def learner(notes: Path) -> ExtractionLearner:
    return make(site(notes))


@pytest.mark.parametrize(
    ("plan", "accumulate", "steps"), [(PLAN, 2, 2), (RoundPlan(round=0, rounds=1), 1, None)]
)
def test_steps_are_the_optimisers_and_without_them_epochs_are_whole(
    learner: ExtractionLearner, plan: RoundPlan, accumulate: int, steps: int | None
) -> None:
    optimiser = learner.settings.optimiser.model_copy(update={"accumulate": accumulate})
    learner.settings = learner.settings.model_copy(update={"optimiser": optimiser})
    rows = learner._round_rows(plan)
    if steps is None:
        assert sorted(rows) == sorted([*range(len(learner.train_rows))] * 2)
    else:
        assert len(rows) == steps * accumulate * optimiser.batch


# ---- what is refused --------------------------------------------------------------------------------------


def test_merged_factors_are_refused_where_the_sites_average_theirs(learner: ExtractionLearner) -> None:
    before = learner.initial_shared()
    with pytest.raises(UpdateError, match=r"settings\.sharing is 'factors'\. Set it to 'stack'"):
        learner.load_shared(before | {"merged.x": torch.zeros(1)})
    assert all(torch.equal(t, before[n]) for n, t in learner.initial_shared().items())


def worker_config(
    notes: Path, folder: Path, settings: dict[str, Any], backbone: dict[str, Any] | None = None
) -> WorkerConfig:
    """Write a site's file for a worker; return the worker's configuration."""
    document = site(notes).model_dump(mode="json", include={"backbone", "device"})
    document |= {"backbone": backbone} if backbone else {}
    cohort = {"format": "notes_jsonl", "root": str(notes / "site-1")}
    (folder / "site.yaml").write_text(yaml.safe_dump(document | {"cohort": cohort}))
    return WorkerConfig(
        method="fed_medlora",
        settings=settings,
        seed=0,
        site="site-1",
        site_file=str(folder / "site.yaml"),
        state_folder=str(folder / "state"),
        cache_folder=str(folder / "cache"),
        run_id="r",
    )


def test_a_round_that_burst_leaves_nothing_at_the_site(notes: Path, tmp_path: Path) -> None:
    settings = SMALL | {"sharing": "fedsa", "optimiser": {"batch": 2, "lr": 1e37}}
    config = worker_config(notes, tmp_path, settings)
    session = WorkerSession(config)
    tensors, values = session.learner.local_state()
    fit = TaskRequest(task="fit", plan=plan_to_json(PLAN), tensors=session.learner.initial_shared())
    with pytest.raises(UpdateError, match="the loss is"):
        session.run_task(fit)
    after, values_after = session.learner.local_state()
    assert values_after == values == {"position": 0}
    assert all(torch.equal(t, after[n]) for n, t in tensors.items())
    assert not session.state_file.exists()


def test_a_pretrained_model_that_cannot_fit_is_named_before_it_is_loaded(
    notes: Path, tiny_backbone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = worker_config(notes, tmp_path, SMALL, {"folder": str(tiny_backbone)})

    def built(*_: Any) -> Any:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(memory_check, "free_bytes", lambda: 1000)
    with pytest.raises(TooLittleMemoryError, match="GB are free on the CPU") as error:
        WorkerSession(config, built)
    assert failure_of(error.value).code is FailureCode.OUT_OF_MEMORY
    monkeypatch.setattr(memory_check, "free_bytes", lambda: 10**12)
    with pytest.raises(AssertionError, match="it was loaded"):
        WorkerSession(config, built)


def test_a_site_without_training_notes_says_so(notes: Path) -> None:
    learner = make(site(notes, split={"train": 0, "val": 0.5, "test": 0.5}))
    assert learner.describe().examples["train"] == 0
    with pytest.raises(UpdateError, match=r"site 'site-1' has no training example.*cohort inspect"):
        learner.fit(PLAN)


# ---- what is asked of notes -------------------------------------------------------------------------------


def answers(made: ExtractionLearner) -> list[str]:
    """The answers a site trains on, as text."""
    tokenizer = made.model.backbone.tokenizer
    return [tokenizer.decode(row.ids[row.start :]) for row in made.train_rows]


def test_a_site_that_marked_entities_alone_is_asked_about_no_modifier(notes: Path) -> None:
    both, alone = make(site(notes)), make(site(notes, tasks=["ner"]))
    assert 0 < len(alone.train_rows) < len(both.train_rows)
    assert set(alone.train_rows) < set(both.train_rows)
    assert any("severity" in text or "strength" in text for text in answers(both))
    assert not any("severity" in text or "strength" in text for text in answers(alone))


def test_long_sentences_are_cut_into_windows_and_what_is_lost_is_counted(notes: Path) -> None:
    full_learner = make(site(notes, split={"train": 1, "val": 0, "test": 0}))
    words = full_learner.predictor.wording
    around = max(len(row.ids) for row in full_learner.model.sequences([words.ner, words.re], ["", ""]))
    cut = make(site(notes, split={"train": 1, "val": 0, "test": 0}), max_tokens=around + 48 + 3 * 24)
    assert max(len(row.ids) for row in cut.train_rows) <= cut.settings.max_tokens
    lost = cut.describe().skipped
    assert lost["relation across windows"] > full_learner.describe().skipped.get("relation across windows", 0)
    for note in cut.records("train"):
        windows = cut.predictor.windows(note).windows
        assert "".join(w.text for w in windows).split() or not note.text.strip()
        inside = {i for w in windows for i in range(w.start, w.end)}
        assert not "".join(c for i, c in enumerate(note.text) if i not in inside).strip()


def test_loss_only_asks_the_model_nothing(learner: ExtractionLearner, monkeypatch: Any) -> None:
    monkeypatch.setattr(learner.predictor, "predict", lambda examples: pytest.fail("a question was asked"))
    plan = RoundPlan(round=0, rounds=1, hints=RoundHints(loss_only=True))
    loss = learner.evaluate("val", plan)
    assert learner.evaluate("val", RoundPlan(round=0, rounds=1, limit=0)) == loss


def test_an_evaluation_scores_entities_and_modifiers(learner: ExtractionLearner) -> None:
    metrics = learner.evaluate("val", RoundPlan(round=0, rounds=1, limit=1))
    assert {"loss", "ner_strict_f1", "re_gold_strict_f1", "re_e2e_strict_f1"} < set(metrics)
