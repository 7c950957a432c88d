# SPDX-License-Identifier: Apache-2.0
"""The private step: sampling, noise, division; and a round of it at a site."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from private_sites import PATIENTS, rows, write_site
from torch import nn

from medflare.core.plan import RoundPlan
from medflare.core.secure_random import SecureRandom
from medflare.data.patients import named_patient
from medflare.differential_privacy.private_step import PrivateTraining, sample_patients, train_privately
from medflare.differential_privacy.settings import PrivacySettings
from medflare.learners.private_round import train_private_round
from medflare.learners.text_task.settings import TextTaskSettings

MakeLearner = Callable[..., Any]
KEY = bytes(range(32))
PLAN = RoundPlan(round=0, rounds=2, steps=2)


def random(number: int = 0) -> SecureRandom:
    return SecureRandom(bytes([number]) * 32)


# ---- random numbers ----------------------------------------------------------------------------------------


def test_normal_numbers_have_the_moments_and_tails_of_normal_numbers() -> None:
    drawn = random().gaussian(400_000)
    assert abs(drawn.mean()) < 4 / math.sqrt(4e5)
    assert drawn.std() == pytest.approx(1, abs=0.006)
    for bound, share in ((1, 0.31731), (2, 0.04550), (3, 0.00270)):
        assert (np.abs(drawn) > bound).mean() == pytest.approx(share, rel=0.1)
    assert len(random().gaussian(7)) == 7


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 2**40 + 1])
def test_whole_numbers_below_a_limit_are_uniform(limit: int) -> None:
    drawn = random().below(limit, 30_000)
    assert drawn.min() >= 0
    assert drawn.max() < limit
    assert drawn.mean() == pytest.approx((limit - 1) / 2, rel=0.02, abs=1e-9)


def test_two_generators_without_a_key_differ_and_two_with_one_do_not() -> None:
    assert (SecureRandom().words(4) != SecureRandom().words(4)).any()
    assert (SecureRandom(KEY).words(4) == SecureRandom(KEY).words(4)).all()


# ---- sampling ----------------------------------------------------------------------------------------------


def test_every_patient_is_in_a_step_with_the_sample_rate_and_by_itself() -> None:
    settings, source = PrivacySettings(sample_rate=0.3, records_per_patient=2), random(1)
    patients = [[3 * p, 3 * p + 1, 3 * p + 2] for p in range(20)]
    counts = np.zeros((2000, 20))
    for draw in range(2000):
        for own in sample_patients(patients, settings, source):
            assert len(own) == len(set(own)) == 2
            counts[draw, own[0] // 3] += 1
    assert counts.mean(0) == pytest.approx(np.full(20, 0.3), abs=0.05)
    assert counts.sum(1).var() == pytest.approx(20 * 0.3 * 0.7, rel=0.15)  # a fixed batch size has none


@pytest.mark.parametrize(("records", "most"), [(4, 2), (3, 2), (2, 1)])
def test_the_cap_on_records_draws_each_of_a_patients_records_alike(records: int, most: int) -> None:
    settings, source = PrivacySettings(sample_rate=1, records_per_patient=most), random(2)
    patients = [list(range(records)), []]
    seen = [row for _ in range(3000) for row in sample_patients(patients, settings, source)[0]]
    assert np.bincount(seen) / 3000 == pytest.approx(np.full(records, most / records), abs=0.04)


def test_a_patient_without_records_is_sampled_and_those_after_it_as_well() -> None:
    settings, source = PrivacySettings(sample_rate=1), random(8)
    assert sample_patients([[], [0], [], [1, 2]], settings, source)[0] == [0]
    assert len(sample_patients([[], [0], [], [1, 2]], settings, source)) == 2


# ---- the step ----------------------------------------------------------------------------------------------


def linear_training(scale: float, patients: list[list[int]]) -> tuple[nn.Linear, PrivateTraining]:
    """Σ of rows' losses whose gradient is `scale` in every weight, and SGD of rate 1."""
    network = nn.Linear(5000, 1, bias=False)
    nn.init.zeros_(network.weight)

    def loss(rows: Any) -> Any:
        return network(torch.full((len(rows), 5000), scale)).sum()

    optimiser = torch.optim.SGD(network.parameters(), lr=1.0)
    return network, PrivateTraining(
        module=network, patients=patients, loss=loss, chunk=4, optimiser=optimiser
    )


def test_noise_has_the_deviation_that_is_accounted_whatever_the_gradients() -> None:
    settings = PrivacySettings(noise_multiplier=2.0, clip_norm=0.5, sample_rate=0.5)
    network, training = linear_training(0.0, [[0], [1], [2], [3]])
    train_privately(training, settings, 1, random(3))
    # deviation 2 · 0.5, divided by the 2 patients that are expected
    assert network.weight.std().item() == pytest.approx(0.5, rel=0.03)
    assert network.weight.mean().item() == pytest.approx(0, abs=0.03)


def test_a_step_without_any_patient_is_noise_alone() -> None:
    settings = PrivacySettings(noise_multiplier=1.0, sample_rate=1e-9)
    network, training = linear_training(1.0, [[0]])
    done = train_privately(training, settings, 3, random(4))
    assert (done.steps, done.sampled) == (3, 0)
    assert network.weight.std() > 0


def test_a_round_counts_the_patients_of_all_its_steps_and_those_that_were_clipped() -> None:
    """They stay at the site, where they say whether the norm is chosen well."""
    _, training = linear_training(1.0, [[0], [1], [2]])
    norm = 5000**0.5  # of the gradient of one row
    for clip, clipped in ((2 * norm, 0), (norm / 2, 9)):
        settings = PrivacySettings(noise_multiplier=1e-9, clip_norm=clip, sample_rate=1.0)
        done = train_privately(training, settings, 3, random(9))
        assert (done.steps, done.sampled, done.clipped) == (3, 9, clipped)


def weights_after_dropout() -> torch.Tensor:
    """Weights after one step whose sampling and noise are those of a key."""
    network = nn.Sequential(nn.Dropout(0.5), nn.Linear(50, 1, bias=False))
    nn.init.zeros_(network[1].weight)
    training = PrivateTraining(
        module=network,
        patients=[[0], [1]],
        loss=lambda rows: network(torch.ones(len(rows), 50)).sum(),
        chunk=4,
        optimiser=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    settings = PrivacySettings(noise_multiplier=1e-9, sample_rate=1.0)
    train_private_round(training, settings, 1, "lr", random(7))
    return network[1].weight.detach()


def test_dropout_comes_from_no_seed_that_is_known() -> None:
    """With known draws a patient who joins a step would move the others' draws, and so their gradients."""
    assert not torch.allclose(weights_after_dropout(), weights_after_dropout(), atol=1e-3)


def test_without_noise_and_clipping_a_step_is_that_of_the_whole_batch() -> None:
    settings = PrivacySettings(noise_multiplier=1e-9, clip_norm=1e6, sample_rate=1.0)
    network, training = linear_training(0.25, [[0, 1], [2], [3]])
    train_privately(training, settings, 1, random(5))
    assert network.weight.mean().item() == pytest.approx(-0.25 * 4 / 3, rel=1e-2)


def test_no_patient_moves_the_sum_by_more_than_the_norm() -> None:
    settings = PrivacySettings(noise_multiplier=1e-9, clip_norm=2.0, sample_rate=1.0)
    moved = []
    for patients in ([[0]], [[0], [1, 2, 3, 4]]):
        network, training = linear_training(30.0, patients)
        train_privately(training, settings, 1, random(6))
        moved.append(network.weight.detach().norm().item() * len(patients))
    assert moved[1] - moved[0] == pytest.approx(2.0, rel=1e-3)


# ---- at a site ---------------------------------------------------------------------------------------------


def test_a_private_update_tells_patients_and_steps_and_no_loss(summariser: MakeLearner) -> None:
    learner = summariser()
    update = learner.fit(PLAN)
    assert (update.examples, learner.describe().examples["train"]) == (PATIENTS, PATIENTS)
    assert set(update.metrics) == {"steps", "seconds"}
    assert all(torch.isfinite(value).all() and value.any() for value in update.delta.values())
    privacy = learner.patient_privacy
    assert (sorted(privacy.patients), privacy.unnamed) == ([f"patient-{n}" for n in range(PATIENTS)], 0)


def test_noise_does_not_come_from_the_runs_seed(summariser: MakeLearner) -> None:
    one, other = (summariser().fit(PLAN).delta for _ in range(2))
    assert all(not torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("plan", "steps"),
    [({"steps": 7}, 7), ({"fraction": 0.5}, 1), ({"fraction": 1.2}, 3), ({}, 4)],
    ids=["steps", "fraction", "more than a pass", "passes of the settings"],
)
def test_steps_of_a_round_follow_plan_and_sample_rate(
    summariser: MakeLearner, plan: dict[str, Any], steps: int
) -> None:
    mechanism = summariser(local_epochs=2).patient_privacy.mechanism(RoundPlan(round=0, rounds=1, **plan))
    assert (mechanism.noise, mechanism.rate, mechanism.steps) == (1.0, 0.5, steps)


def test_records_that_name_nobody_are_each_their_own(summariser: MakeLearner, tmp_path: Path) -> None:
    learner = summariser(write_site(tmp_path, rows(named=False)))
    privacy = learner.patient_privacy
    assert (len(privacy.patients), privacy.unnamed) == (2 * PATIENTS, 2 * PATIENTS)
    assert [named_patient(*pair) for pair in (("p", "n"), ("", "n"), ("n", "n"), ("0/n", "1/n"))] == [
        "p",
        None,
        None,
        None,
    ]


def test_plain_training_of_the_same_site_is_unchanged(summariser: MakeLearner) -> None:
    learner = summariser(dp=None)
    update = learner.fit(PLAN)
    assert learner.patient_privacy is None
    assert update.examples == 2 * PATIENTS
    assert "loss" in update.metrics


def test_noise_on_both_factors_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="sharing 'freeze_a' learns more"):
        TextTaskSettings(dp=PrivacySettings(), sharing="factors")
