# SPDX-License-Identifier: Apache-2.0
"""What holds of every learner; a new method joins with one row in `method_sites.SETTINGS`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from method_sites import SETTINGS, Make

from medflare.core.errors import UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.site_description import SiteDescription
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig
from medflare.egress.declaration import MAX_METRICS, METRIC
from medflare.learners.registry import METHODS, build_learner

PLACE = RoundHints(site_index=0, sites=1, summed=(0,))
FIRST, SECOND = (RoundPlan(round=r, rounds=3, steps=2, hints=PLACE) for r in (0, 1))


def copies(tensors: State) -> State:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def equal(one: State, two: State) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def contents(tensors: State) -> set[bytes]:
    """The values of each tensor."""
    return {tensor.float().numpy().tobytes() for tensor in tensors.values()}


def is_statistic(name: str) -> bool:
    """Whether a tensor is a running statistic, which no optimiser moves."""
    return "running" in name or "tracked" in name


def training_rows(learner: Any) -> int:
    """Return how many examples the learner trains on."""
    if hasattr(learner, "train_rows"):
        return len(learner.train_rows)
    return len(learner.rows("train") if callable(learner.rows) else learner.rows["train"])


COMMUNICATED = {
    "fedmrg": {"encoder", "projection", "head", "prompts", "adapter"},
    "fed_medlora": {"adapter"},
    "fedtar": {"adapter", "projection"},
    "question_answering": {"adapter"},
    "summarisation": {"adapter"},
    "token_classification": {"encoder", "heads", "marks"},
    "fedvit_gpt2": {"encoder", "decoder"},
    "transformer": {"encoder", "transformer"},
    "r2gen": {"encoder", "transformer"},
    "wcl": {"encoder", "transformer", "compare"},
    "ct2replong": {
        *("encoder", "transformer", "former_words", "fuse"),
        *("memory_in", "memory_out", "first_visit"),
    },
    "dcl": {
        *("encoder", "bring", "graph", "text"),
        *("image_projection", "text_projection", "match", "temperature"),
    },
    "r2gengpt": {"encoder", "projection"},
    "promptmrg": {"encoder", "projection", "head", "prompts", "adapter", "query", "attention"},
}
"""Method -> the parts of its model that are communicated."""


def test_the_table_has_every_method() -> None:
    assert set(SETTINGS) == set(METHODS) == set(COMMUNICATED)


def test_every_learner_knows_of_how_few_examples_nothing_may_leave(
    site_of: Callable[[str, str], SiteConfig], any_method: str
) -> None:
    site = site_of(any_method, "site-1")
    site = site.model_copy(update={"policy": PolicyConfig(min_examples=3)})
    assert build_learner(any_method, SETTINGS[any_method], site, 0).fewest == 3


def test_what_is_declared_is_what_is_sent_as_after_minus_received(
    make_learner: Make, any_method: str
) -> None:
    learner = make_learner(any_method)
    received = {n: t + 0.01 if t.is_floating_point() else t for n, t in learner.initial_shared().items()}
    learner.load_shared(copies(received))
    update, after = learner.fit(FIRST), learner.initial_shared()
    assert {n: tuple(t.shape) for n, t in update.delta.items()} == {
        n: shape for n, (shape, _) in learner.shared_spec().items()
    }
    assert {n: (tuple(t.shape), t.dtype) for n, t in update.sums.items()} == learner.sums_spec(1)
    assert {name.split(".")[0] for name in update.delta} == COMMUNICATED[any_method]
    assert (update.metrics["steps"], update.factor) == (FIRST.steps, 1.0)
    assert bool(update.sums) == (any_method == "fedtar")
    for name, delta in update.delta.items():
        assert delta.dtype == torch.float32
        assert torch.allclose(received[name] + delta, after[name].float(), atol=1e-6), name
        assert delta.any() or is_statistic(name), name
    assert set(METHODS[any_method].facts.metrics) <= set(update.metrics)
    assert all(math.isfinite(value) for value in update.metrics.values())


def test_a_description_is_json_that_counts_what_is_sent_and_names_no_local_path(
    make_learner: Make, any_method: str
) -> None:
    learner = make_learner(any_method)
    description, update = learner.describe(), learner.fit(FIRST)
    text = json.dumps(description.to_json())
    assert SiteDescription.model_validate(json.loads(text)).to_json() == json.loads(text)
    statistics = sum(t.numel() for n, t in update.delta.items() if is_statistic(n))
    sent = sum(t.numel() for t in update.delta.values())
    assert sum(description.parameters.values()) in (sent, sent - statistics)
    assert description.examples["train"] == update.examples == training_rows(learner) > 0
    assert "/" not in description.backbone.name
    assert "/tmp" not in text


def test_two_sites_make_the_same_first_values(make_learner: Make, any_method: str) -> None:
    torch.manual_seed(1)
    first = make_learner(any_method, "site-1", seed=3).initial_shared()
    torch.manual_seed(2)
    assert equal(first, make_learner(any_method, "site-2", seed=3).initial_shared())


def broken(state: State, change: str) -> tuple[State, str]:
    """A state that does not fit, and what the refusal says."""
    name = next(n for n, t in state.items() if t.is_floating_point() and t.dim())
    if change == "unknown":
        return state | {"odd": torch.zeros(1)}, "unexpected tensor 'odd'"
    if change == "missing":
        return {n: t for n, t in state.items() if n != name}, f"missing tensor '{name}'"
    if change == "shape":
        return state | {name: torch.zeros(3, 1, 7)}, f"'{name}' has shape"
    return state | {name: torch.full_like(state[name], torch.nan)}, f"'{name}' has values that are not finite"


def test_a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing(
    make_learner: Make, any_method: str
) -> None:
    learner = make_learner(any_method)
    before = copies(learner.initial_shared())
    for change in ("unknown", "missing", "shape", "not finite"):
        state, message = broken(copies(before), change)
        with pytest.raises(UpdateError) as error:
            learner.load_shared(state)
        assert message in str(error.value)
        assert "site 'site-1'" in str(error.value)
        assert equal(learner.initial_shared(), before)


LOCAL: dict[str, dict[str, Any]] = {
    "fedmrg": {"bank": "local_queue"},
    "fed_medlora": {"sharing": "fedsa"},
    "question_answering": {"sharing": "fedsa"},
    "summarisation": {"sharing": "freeze_a"},
    **{
        method: {}
        for method in ("fedtar", "transformer", "r2gen", "wcl", "dcl", "ct2replong", "r2gengpt", "promptmrg")
    },
}
"""Settings by which a method keeps tensors of its own; FedTAR and generators keep moments (TAR-19, BL-1)."""
RESTARTED: list[tuple[str, dict[str, Any]]] = [
    *((method, {}) for method in sorted(SETTINGS)),
    *((method, settings) for method, settings in LOCAL.items() if settings),
    ("fed_medlora", {"sharing": "freeze_a"}),
    ("summarisation", {"sharing": "fedsa"}),
]


@pytest.mark.parametrize(
    ("method", "settings"), RESTARTED, ids=["-".join([m, *s.values()]) for m, s in RESTARTED]
)
def test_a_restarted_site_continues_as_if_nothing_had_happened(
    make_learner: Make, method: str, settings: dict[str, Any]
) -> None:
    """What outlives a round, moments included where a method keeps them (1.6), is all in the local state."""
    learner = make_learner(method, **settings)
    start = copies(learner.initial_shared())
    learner.fit(FIRST)
    tensors, values = learner.local_state()
    kept = copies(tensors), json.loads(json.dumps(values))
    learner.load_shared(copies(start))
    expected = learner.fit(SECOND)
    restarted = make_learner(method, **settings)
    restarted.load_local_state(*kept)
    restarted.load_shared(copies(start))
    assert equal(restarted.fit(SECOND).delta, expected.delta)


def test_one_seed_gives_one_update_whatever_was_drawn_before(make_learner: Make, any_method: str) -> None:
    deltas = []
    for seed, drawn in ((3, 1), (3, 2), (4, 1)):
        learner = make_learner(any_method, seed=seed)
        torch.manual_seed(drawn)
        deltas.append(learner.fit(FIRST).delta)
    assert equal(deltas[0], deltas[1])
    assert not equal(deltas[0], deltas[2])


def test_a_loss_that_is_not_finite_is_refused_and_leaves_local_tensors_alone(
    make_learner: Make, any_method: str
) -> None:
    learner: Any = make_learner(any_method)
    before = copies(learner.local_state()[0])
    with torch.no_grad():
        for name, tensor in learner.live().items():
            if tensor.is_floating_point() and not is_statistic(name):
                tensor.fill_(math.nan)
    setting = r"settings\.optimiser\.lr" if "optimiser" in learner.settings.model_dump() else r"settings\.lr"
    message = rf"site '{learner.site}': the loss is nan; nothing of this round was kept\. Lower {setting},"
    with pytest.raises(UpdateError, match=message):
        learner.fit(FIRST)
    after = learner.local_state()[0]
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize("method", sorted(set(SETTINGS) - {"fedmrg"}))  # which no rule asks for a loss alone
def test_where_only_the_loss_is_asked_for_no_other_metric_is_measured(
    make_learner: Make, method: str
) -> None:
    learner = make_learner(method, "site-2")
    plan = RoundPlan(round=0, rounds=1, hints=RoundHints(loss_only=True))
    measured = {split: learner.evaluate(split, plan) for split in ("train", "val", "test")}
    assert {tuple(metrics) for metrics in measured.values()} == {("loss",)}
    assert measured["val"]["loss"] != measured["test"]["loss"] > 0


OF_THE_SITES_OWN = ("accuracy/", "fault/")
"""Metrics whose names depend on a site's data: groups of its questions, and what is wrong with outputs."""


def test_what_is_measured_has_a_declared_name(make_learner: Make, any_method: str, tmp_path: Path) -> None:
    learner = make_learner(any_method, "site-2")
    names = learner.metric_names()
    measured = learner.evaluate("val", FIRST)
    assert set(measured) <= set(names.validation)
    assert "loss" in measured
    records = learner.finish(replace(FIRST, limit=1), tmp_path)
    assert {record.adapter for record in records} == set(names.tested)
    for record in records:
        site_metrics = {name for name in record.metrics if name.startswith(OF_THE_SITES_OWN)}
        assert record.metrics
        assert set(record.metrics) - site_metrics <= set(names.tested[record.adapter])
    for declared in (names.validation, *names.tested.values()):
        assert len(set(declared)) == len(declared) <= MAX_METRICS
        assert all(METRIC.fullmatch(name) for name in declared)
    other = make_learner(any_method, "site-1").metric_names()
    assert (list(other.validation), dict(other.tested)) == (list(names.validation), dict(names.tested))


WRITERS = sorted(
    name for name, method in METHODS.items() if method.task in ("reports", "visits", "summaries")
)


@pytest.mark.parametrize("method", WRITERS)
def test_the_final_test_of_texts_has_the_scorers_of_the_site(
    make_learner: Make, site_of: Any, method: str, tiny_encoder: Path, tmp_path: Path
) -> None:
    """They count among the declared names, so that a server can expect them."""
    site = site_of(method, "site-1").model_copy(update={"scorers": {"bertscore": tiny_encoder}})
    learner = build_learner(method, SETTINGS[method], site, 0)
    learner.load_shared(learner.initial_shared())
    names = learner.metric_names()
    for record in learner.finish(replace(FIRST, limit=1), tmp_path):
        assert "bertscore_f1" in set(record.metrics) & set(names.tested[record.adapter])
        assert "bertscore" not in record.skipped_metrics


def test_what_is_local_stays_local(make_learner: Make, any_method: str) -> None:
    learner = make_learner(any_method, **LOCAL.get(any_method, {}))
    update = learner.fit(FIRST)
    tensors, _ = learner.local_state()
    sent = {**update.delta, **update.sums}
    assert not set(tensors) & set(sent)
    assert bool(tensors) == (any_method in LOCAL)
    after = contents(learner.initial_shared())
    nonzero = {n: t for n, t in tensors.items() if t.numel() > 4 and t.float().any()}
    assert not after & contents(nonzero)
