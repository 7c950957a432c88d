# SPDX-License-Identifier: Apache-2.0
"""What sites of FedTAR tell of their validation loss is the gradient by which the server learns α."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fedtar_sites import SPLIT, VISITS, at_visit, plan

from medflare.aggregation.temporal import TemporalResidual
from medflare.core.tensors import State
from medflare.in_process.temporal_loop import federate_visits
from medflare.learners.fedtar.patient_floors import FEWEST
from medflare.learners.fedtar.site_setup import visit_time_sums
from medflare.learners.fedtar.visit_sums import EXAMPLES, PATIENTS, SLOPES


def test_the_validation_gradient_is_that_of_the_mean_over_all_tokens(fedtar: Any) -> None:
    """However it is cut into batches; and it is left in nobody's `.grad`."""
    site_learner, whole = fedtar(eval_batch=3), fedtar(eval_batch=999)
    (one, n), (other, m) = site_learner._validation_gradient(), whole._validation_gradient()
    assert n == m == len(site_learner.rows("val"))
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=1e-3, atol=1e-5), name
    rows = site_learner.rows("val")
    step = 1e-2
    moved = {
        n: t + step * one[n] / one[n].norm().clamp(min=1e-12)
        for n, t in site_learner.initial_shared().items()
    }
    norm = sum(float(value.norm()) for value in one.values())
    before = site_learner.rows_loss(rows)
    site_learner.load_shared(moved)
    assert site_learner.rows_loss(rows) - before == pytest.approx(step * norm, rel=0.15)
    assert all(t.grad is None for t in site_learner.live().values())


@pytest.mark.parametrize("mode", ["softmax", "beta_softmax"])
def test_slopes_of_a_run_are_the_meta_gradient_by_autograd(fedtar: Any, mode: Any) -> None:
    """The loss at w_T(α), with every w̄ as it was, differentiated through the model and the recursion."""
    learners = {"site-1": fedtar(0), "site-2": fedtar(1)}
    rule = TemporalResidual(visits=VISITS, alpha_mode=mode, lr=1e-3)
    path = [learners["site-1"].initial_shared()]
    state = federate_visits(learners, rule, 1, lambda n: plan(n, steps=2), lambda n, s, u: path.append(s))
    alpha = rule.alpha.clone().requires_grad_()
    means = [
        {n: path[t][n] + (path[t + 1][n] - path[t][n]) / float(rule.alpha[t]) for n in state}
        for t in range(VISITS)
    ]
    total, examples = torch.zeros((), dtype=torch.float64), 0
    for site_learner in learners.values():
        site_learner.load_shared(state)
        gradient, count = site_learner._validation_gradient()
        w = {n: v.double() for n, v in path[0].items()}
        for t in range(VISITS):
            w = {n: w[n] + alpha[t] * (means[t][n].double() - w[n]) for n in w}
        total = total + count * sum((gradient[n].double() * w[n]).sum() for n in gradient)
        examples += count
    (slow,) = torch.autograd.grad(total / examples, alpha)

    rule.begin(state)
    for name, site_learner in learners.items():
        site_learner.load_shared(state)
        rule.add(name, site_learner.fit(at_visit(1, 1, slopes=True, steps=1)))
    rule.finish()
    result = torch.tensor(rule.report()["alpha_gradient"], dtype=torch.float64)
    assert float(slow.abs().max()) > 1e-4
    assert torch.allclose(result, slow, rtol=1e-3, atol=1e-3 * float(slow.abs().max()))


def test_slopes_predict_how_the_validation_loss_follows_alpha(fedtar: Any) -> None:
    """A finite difference through the real model, independent of any gradient of ours."""
    learner = fedtar()
    rule = TemporalResidual(visits=VISITS, alpha_mode="sigmoid", lr=1e-3)
    path = [learner.initial_shared()]
    state = federate_visits(
        {"site-1": learner}, rule, 1, lambda n: plan(n, steps=3), lambda n, s, u: path.append(s)
    )

    def loss(shift: float) -> float:
        """With α_T moved."""
        last = {n: path[-2][n] + (path[-1][n] - path[-2][n]) / float(rule.alpha[-1]) for n in state}
        learner.load_shared(
            {n: path[-2][n] + (float(rule.alpha[-1]) + shift) * (last[n] - path[-2][n]) for n in state}
        )
        return learner.rows_loss(learner.rows("val"))

    slope = (loss(0.05) - loss(-0.05)) / 0.1
    learner.load_shared(state)
    rule.begin(state)
    rule.add("site-1", learner.fit(at_visit(1, 1, slopes=True, steps=1)))
    rule.finish()
    assert rule.report()["alpha_gradient"][-1] == pytest.approx(slope, rel=0.05, abs=1e-5)


def test_slopes_and_losses_of_a_visit_or_two_stay_at_the_site(
    fedtar: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One threshold for both: of four validation visits either could be one person's."""
    for left, told in ((FEWEST - 1, False), (FEWEST, True)):
        learner = fedtar()
        rows = learner.rows

        def few(split: str, visit: int = 0, left: int = left, rows: Any = rows) -> list[int]:
            return rows(split, visit)[:left] if split == "val" else rows(split, visit)

        monkeypatch.setattr(learner, "rows", few)
        assert bool(learner._validation_gradient()[1]) is told
        update = learner.fit(plan(0, steps=1))
        assert ("val_loss" in update.metrics) is told


def test_times_between_visits_of_fewer_than_five_patients_stay(fedtar: Any) -> None:
    samples = fedtar().samples
    times = visit_time_sums(samples, VISITS)
    trained = [p for p in samples.patients if p.split == "train"]
    known = [visit.number for patient in trained for visit in patient.visits if visit.since is not None]
    counts = [known.count(number) for number in range(1, VISITS + 1)]
    assert times[PATIENTS].tolist() == [count if count >= FEWEST else 0 for count in counts]
    asked = visit_time_sums(samples, VISITS, max(counts))
    assert asked[PATIENTS].tolist() == [count if count == max(counts) else 0 for count in counts]
    few = [patient for patient in trained if len(patient.visits) > 1][: FEWEST - 1]
    assert not any(value.any() for value in visit_time_sums(replace(samples, patients=few), VISITS).values())


def test_a_site_without_validation_visits_tells_no_slopes(fedtar: Any) -> None:
    learner = fedtar(split=SPLIT | {"val": 0, "train": 0.8})
    sums: list[State] = []

    def keep(number: int, state: State, updates: Any) -> None:
        sums.append(updates["site-1"].sums)

    rule = TemporalResidual(visits=VISITS, lr=1e-2)
    federate_visits({"site-1": learner}, rule, 2, lambda n: plan(n, steps=1), keep)
    assert len(sums) == 2 * VISITS
    assert not any(found[SLOPES].any() or found[EXAMPLES].any() for found in sums)
