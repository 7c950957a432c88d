# SPDX-License-Identifier: Apache-2.0
"""The variance of one round's step for each choice of hospitals, from the updates of all of them (DD-14).

A model trains with uniform draws to each checkpoint, and there every hospital trains once from the same
state. With the Gram matrix of the twenty updates the variance of every choice is known: nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from medflare.core.timing import Timing
from medflare.selection.objective import Matrix, Vector
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.client_selection import SelectionMethod, make_choice
from method_comparison.tasks.question_hospitals import (
    OUTLIERS,
    QuestionSettings,
    has_wrong_answers,
    make_learners,
    read_hospitals,
    write_hospitals,
)

DRAWS = 5


class VarianceSettings(QuestionSettings):
    """checkpoints: rounds of uniform draws before each measurement."""

    checkpoints: tuple[int, ...] = Field(default=(0, 10, 20), min_length=1)


class VarianceMethod(SelectionMethod):
    """oracle: strata are clusters of the updates themselves, which nobody knows before they are made: what
    the best knowledge of the hospitals could do for `stratified_sampling`.
    """

    # Left out where it changes nothing, so that results from before it are those of the same settings.
    oracle: bool = Field(default=False, exclude_if=lambda value: not value)


class StepVariance(ComparisonTask[VarianceSettings, VarianceMethod]):
    """Var(Σ w_i Δ_i) / ‖Σ d_i Δ_i‖², mean over the checkpoints.

    Where some hospitals have wrong answers, also E‖Σ w_i Δ_i − Δ‖² / ‖Δ‖² against the step Δ of the others:
    what a choice that knew them would lower.
    """

    name = "step_variance"
    settings, method_settings = VarianceSettings, VarianceMethod
    partitions = ("iid", "class", "dirichlet", OUTLIERS)
    columns: ClassVar[Mapping[str, Column]] = {
        "variance": Column(title="variance of a step, of its square", scale=1.0, digits=2),
        "error": Column(title="error against hospitals with right answers", scale=1.0, digits=2),
    }
    curve_axes: ClassVar[Mapping[str, str]] = {"variance": "rounds before"}

    def prepare(self, settings: VarianceSettings, partition: str, seed: int, shared: Path) -> None:
        write_hospitals(settings, partition, seed, shared)
        path = gram_file(shared, partition, seed)
        if not path.is_file():
            path.parent.mkdir(exist_ok=True)
            np.savez(path, **measure_updates(settings, partition, seed, shared))

    def train(self, unit: Unit[VarianceSettings, VarianceMethod]) -> Measured:
        with np.load(gram_file(unit.shared, unit.partition, unit.seed)) as data:
            grams, names, sizes = data["grams"], data["names"].tolist(), data["sizes"]
        shares = sizes / sizes.sum()
        right = np.array([not has_wrong_answers(name) for name in names]) * shares
        curve, errors = [], []
        for rounds, gram in zip(unit.settings.checkpoints, grams, strict=True):
            odds = odds_of(unit, names, sizes, gram)
            curve.append((float(rounds), relative_variance(gram, shares, odds)))
            errors.append(relative_error(gram, shares, odds, right / right.sum()))
        values = {"variance": float(np.mean([value for _, value in curve]))}
        if unit.partition == OUTLIERS:
            values["error"] = float(np.mean(errors))
        return Measured(values=values, curves={"variance": curve})


def gram_file(shared: Path, partition: str, seed: int) -> Path:
    """Return where ⟨Δ_i, Δ_j⟩ of a partition and seed stand."""
    return shared / "updates" / f"{partition}-{seed}.npz"


def measure_updates(settings: VarianceSettings, partition: str, seed: int, shared: Path) -> dict[str, Any]:
    """Return `grams` (checkpoints, N, N), `names` and `sizes` (N,) of hospitals with training questions."""
    import torch

    from medflare.aggregation import make_rule
    from medflare.core.plan import RoundPlan
    from medflare.in_process.loop import FederationLoop

    learners, _ = make_learners(settings, read_hospitals(shared, partition, seed), seed)
    rounds = max(settings.checkpoints) + 1
    rule = make_rule("uniform_selection", {"draws": DRAWS})
    loop = FederationLoop(learners, rule, lambda r: RoundPlan(round=r, rounds=rounds, seed=seed))
    grams, names = [], sorted(learners)
    for number in range(rounds):
        if number in settings.checkpoints:
            deltas = [loop.fit(name, number).delta for name in names]
            rows = torch.stack([torch.cat([v.reshape(-1).double() for v in own.values()]) for own in deltas])
            grams.append((rows @ rows.T).numpy())
        loop.round(number)
    return {"grams": np.stack(grams), "names": names, "sizes": np.array([loop.train[name] for name in names])}


def odds_of(unit: Unit[VarianceSettings, Any], names: list[str], sizes: Vector, gram: Matrix) -> Matrix:
    """Return the odds of each draw, (S, N): the same q in every row, or those of the urns (DD-15)."""
    from medflare.selection.clock import SimulatedClock, drawn_profiles
    from medflare.selection.strata import clusters_of, fill_urns

    norms = np.sqrt(np.diag(gram))
    distances = np.sqrt(np.maximum(norms[:, None] ** 2 + norms**2 - 2 * gram, 0.0))  # ‖Δ_i − Δ_j‖
    settings, seed, message = unit.settings, unit.seed, unit.settings.message
    profiles = drawn_profiles(names, seed, settings.spread, seconds_per_example=settings.seconds_an_example)
    clock = SimulatedClock(profiles, seed)
    learners = {name: _Sized(int(size)) for name, size in zip(names, sizes, strict=True)}
    rule = make_choice(unit, read_hospitals(unit.shared, unit.partition, seed), clock, learners)
    for name, norm in zip(names, norms, strict=True):
        timing = clock.timing(name, 0, len(learners[name].train_rows), message, message)
        rule.observe_latency(name, timing or Timing(0.0, 0.0))
        rule.known.norms[name] = float(norm)
    examples = {name: int(size) for name, size in zip(names, sizes, strict=True)}
    rule.sample_clients(0, seed, examples, names)
    report = rule.report()
    if "strata" in report:
        strata = clusters_of(names, distances, DRAWS) if unit.own.oracle else report["strata"]
        shares = {name: size / sizes.sum() for name, size in examples.items()}
        urns = fill_urns(shares, strata, DRAWS)
        return np.array([[urn.get(name, 0.0) for name in names] for urn in urns])
    return np.tile([report["odds"][name] for name in names], (DRAWS, 1))


class _Sized:
    """A hospital as far as a choice asks for its learner."""

    def __init__(self, size: int) -> None:
        self.train_rows = range(size)


def relative_variance(gram: Matrix, shares: Vector, odds: Matrix) -> float:
    """Return E‖Σ w_i Δ_i − Σ d_i Δ_i‖² / ‖Σ d_i Δ_i‖² of independent draws.

    A draw s takes i with probability odds[s, i]. Rows that are all alike weigh it d_i / (S q_i), and rows of
    urns, whose mean is d, 1/S; both are d_i / Σ_s odds[s, i].

    Args:
        gram: ⟨Δ_i, Δ_j⟩. shares: d. odds: (S, N).
    """
    variance, _ = moments(gram, shares, odds)
    return variance / float(shares @ gram @ shares)


def relative_error(gram: Matrix, shares: Vector, odds: Matrix, aim: Vector) -> float:
    """Return E‖Σ w_i Δ_i − Σ a_i Δ_i‖² / ‖Σ a_i Δ_i‖², arguments as in `relative_variance`; aim: a."""
    variance, mean = moments(gram, shares, odds)
    gap = mean - aim
    return (variance + float(gap @ gram @ gap)) / float(aim @ gram @ aim)


def moments(gram: Matrix, shares: Vector, odds: Matrix) -> tuple[float, Vector]:
    """Return the variance of Σ w_i Δ_i and the weights E[w_i] (N,) of its mean."""
    total = odds.sum(0)
    weight = np.divide(shares, total, out=np.zeros_like(total), where=total > 0)
    second = float((odds @ (weight**2 * np.diag(gram))).sum())
    means = odds * weight
    first = float(np.einsum("si,ij,sj->", means, gram, means))
    return second - first, means.sum(0)
