# SPDX-License-Identifier: Apache-2.0
"""An exchange of FedTAR at one site: whose visits it trains on, how long, in which order, what it tells."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fedtar_sites import SPLIT, VISITS, at_visit, plan

from medflare.core.errors import UpdateError
from medflare.learners.fedtar.settings import METHOD
from medflare.models.longitudinal_generator import VisitBatch


def test_an_exchange_is_of_one_visit_and_without_hint_of_all(fedtar: Any) -> None:
    learner = fedtar()
    updates = {t: learner.fit(at_visit(t)) for t in range(1, VISITS + 1)}
    counts = learner.samples.counts("train", VISITS)
    assert [updates[t].examples for t in updates] == counts
    assert [updates[t].metrics["visit"] for t in updates] == [1, 2, 3]
    pooled = learner.fit(plan())
    assert (pooled.examples, pooled.metrics["visit"]) == (sum(counts), 0.0)
    assert learner.describe().examples["train"] == sum(counts)
    assert learner.describe().heterogeneity["visits"]["train"] == counts
    assert learner.fit(plan()).examples == sum(counts)


def test_only_the_visits_own_rows_are_seen(fedtar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = fedtar()
    seen: list[int] = []
    batch = learner.reports.batch

    def noted(rows: list[int], turned: torch.Generator | None = None) -> VisitBatch:
        seen.extend(rows)
        return batch(rows, turned)

    monkeypatch.setattr(learner.reports, "batch", noted)
    learner.fit(at_visit(2))
    assert set(seen) == set(learner.rows("train", 2)) | set(learner.rows("val", 2))
    assert {learner.samples.visits[row].number for row in seen} == {2}


@pytest.mark.parametrize(("more", "steps"), [({}, 2.0), ({"fraction": 0.5}, 0.5), ({"steps": 5}, 5)])
def test_an_exchange_is_as_long_as_asked(fedtar: Any, more: dict[str, Any], steps: float) -> None:
    learner = fedtar(local_epochs=2)
    rows = len(learner.rows("train", 1))
    expected = steps if "steps" in more else -(-steps * rows // 4)
    assert learner.fit(at_visit(1, **more)).metrics["steps"] == pytest.approx(expected, abs=1)


def test_a_loss_that_is_not_finite_ends_the_exchange_of_one_visit(fedtar: Any) -> None:
    learner = fedtar()
    with torch.no_grad():
        learner.model.backbone.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UpdateError, match=r"site 'site-1': the loss is nan.*settings\.lr"):
        learner.fit(at_visit(1))


def test_a_visit_that_a_site_has_not_is_answered_with_nothing(fedtar: Any) -> None:
    learner = fedtar(visits=5)
    update = learner.fit(at_visit(5, visits=5))
    assert (update.examples, update.metrics["steps"], update.metrics["visit"]) == (0, 0.0, 5.0)
    assert "loss" not in update.metrics
    assert not any(delta.any() for delta in update.delta.values())
    assert set(update.delta) == set(learner.shared_spec())
    assert set(update.sums) == set(learner.sums_spec(2))


def test_an_update_holds_the_numbers_the_method_declares(fedtar: Any) -> None:
    learner = fedtar()
    metrics = learner.fit(at_visit(1)).metrics
    assert set(metrics) == {"loss", "steps", "val_loss", "visit", "seconds"}
    assert metrics["val_loss"] == learner.rows_loss(learner.rows("val", 1))
    assert fedtar(split=SPLIT | {"val": 0, "train": 0.8}).fit(at_visit(1)).metrics.keys() == {
        "loss",
        "steps",
        "visit",
        "seconds",
    }


def test_rates_follow_one_cosine_or_none(fedtar: Any) -> None:
    assert [round(fedtar()._rate(x), 3) for x in (0.0, 0.5, 1.0)] == [1.0, 0.5, 0.0]
    paper = fedtar(preset="paper")
    assert [paper._rate(x) for x in (0.0, 0.5, 1.0)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("preset", "said"), [("recommended", True), ("instruct", True), ("paper", False)])
def test_all_presets_but_the_papers_say_which_visit_is_a_first(preset: str, said: bool) -> None:
    """TAR-14: otherwise drafts of first visits compare with a study that is not there."""
    settings = METHOD.resolve({"preset": preset})
    assert (settings.visit_context, settings.generator.visit_context) == (said, said)
    assert not METHOD.resolve({"preset": preset, "visit_context": False}).visit_context


@pytest.mark.parametrize(("keep", "steps"), [(True, 5.0), (False, 3.0)])
def test_moments_outlive_an_exchange_unless_told_otherwise(fedtar: Any, keep: bool, steps: float) -> None:
    """TAR-19: two or three steps of an exchange alone would never leave Adam's bias correction."""
    learner = fedtar(keep_moments=keep)
    learner.load_shared(learner.initial_shared())
    learner.fit(at_visit(1, steps=2))
    learner.fit(at_visit(2, steps=3))
    assert {float(slot["step"]) for slot in learner._optimiser.state.values()} == {steps}
    kept = [name for name in learner.local_state()[0] if name.startswith("optimiser.")]
    assert bool(kept) is keep


def test_without_a_mixture_nobody_is_trained_on(fedtar: Any) -> None:
    with pytest.raises(UpdateError, match="no mixture of profiles yet"):
        fedtar(mixture={"source": "federated"}).fit(at_visit(1))


# ---- what a hostile reading found --------------------------------------------------------------------------


def test_a_canary_leaves_the_order_of_patients_as_it_was(fedtar: Any) -> None:
    site_learner, other = fedtar(), fedtar()
    tensors, values = site_learner.local_state()
    kept = {name: value.clone() for name, value in tensors.items()}
    site_learner.load_shared(site_learner.initial_shared())
    site_learner.fit(at_visit(1, steps=2))
    site_learner.load_local_state(kept, values)
    assert site_learner.local_state()[1] == values
    rows = site_learner.training_rows(1)
    assert site_learner._cut(plan(0, steps=2), 1, rows) == other._cut(plan(0, steps=2), 1, rows)


def test_the_same_number_of_patients_comes_in_another_order_at_another_visit(fedtar: Any) -> None:
    learner = fedtar()
    assert learner._order(2, 12).take(12) != learner._order(3, 12).take(12)
    assert learner._order(1, 12).take(12) == learner._order(0, 12).take(12)


def test_a_visit_of_fewer_than_the_sites_policy_lets_out_is_not_there(fedtar: Any) -> None:
    learner = fedtar()
    count = len(learner.rows("train", 2))
    learner.fewest = count + 1
    learner.load_shared(learner.initial_shared())
    update = learner.fit(at_visit(2))
    assert update.examples == 0
    assert all(not delta.any() for delta in update.delta.values())
    learner.fewest = count
    assert learner.fit(at_visit(2, steps=1)).examples == count


def test_numbers_of_a_few_people_are_not_told(fedtar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from medflare.learners.fedtar import learner as module

    learner = fedtar()
    most = max(len(learner.rows(split, visit)) for split in ("train", "val", "test") for visit in (1, 2, 3))
    monkeypatch.setattr(module, "FEWEST", most + 1)
    assert all(set(counts) == {0} for counts in learner.describe().heterogeneity["visits"].values())
    assert "val_loss" not in learner.fit(at_visit(1, steps=1)).metrics
    monkeypatch.setattr(module, "FEWEST", 1)
    assert "val_loss" in learner.fit(at_visit(1, steps=1)).metrics


def test_a_policy_may_ask_for_more_people_behind_a_number_of_one_visit(
    fedtar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`min_examples` held for whole updates and splits alone: losses, counts and times of a visit left."""
    from medflare.learners.fedtar import learner as module

    monkeypatch.setattr(module, "FEWEST", 1)
    learner = fedtar()
    held_out = len(learner.rows("val", 1))
    learner.fewest = held_out
    assert "val_loss" in learner.fit(at_visit(1, steps=1)).metrics
    learner.fewest = held_out + 1
    assert len(learner.rows("train", 1)) > held_out, "the update itself is of enough"
    assert "val_loss" not in learner.fit(at_visit(1, steps=1)).metrics
    assert learner.describe().heterogeneity["visits"]["val"][0] == 0
    assert learner._validation_gradient()[1] == len(learner.rows("val"))
    learner.fewest = len(learner.rows("val")) + 1
    assert learner._validation_gradient() == ({}, 0)
