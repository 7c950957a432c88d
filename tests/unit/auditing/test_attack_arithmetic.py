# SPDX-License-Identifier: Apache-2.0
"""Attack arithmetic against numbers by hand: ROC, exposure, and epsilon from guesses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, mannwhitneyu

from medflare.auditing.exposure import exposure
from medflare.auditing.likelihood_ratio import likelihood_ratios
from medflare.auditing.membership import means_of_patients, membership_attack
from medflare.auditing.one_run import (
    MOST,
    epsilon_from_guesses,
    epsilon_lower_bound,
    guess_probability,
)
from medflare.auditing.shadow_adapters import halves


def test_the_area_counts_pairs_and_equal_scores_half() -> None:
    # pairs: 3 beats 2 and 1; 2 equals 2 and beats 1; 0 beats none -> (2 + 1.5 + 0) / 6
    assert membership_attack([3, 2, 0], [2, 1], replicates=1).auc.value == pytest.approx(3.5 / 6)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=20), st.lists(st.integers(0, 9), min_size=1, max_size=20)
)
def test_the_area_is_that_of_the_rank_sum_test(members: list[int], others: list[int]) -> None:
    expected = mannwhitneyu(members, others).statistic / (len(members) * len(others))
    assert membership_attack(members, others, replicates=1).auc.value == pytest.approx(expected)


def test_true_positives_at_one_percent_stop_before_the_second_false_alarm_of_a_hundred() -> None:
    others = [50.5, 20.5] + [0.0] * 98  # 1 % is one false alarm, 0.1 % none
    found = membership_attack(range(1, 101), others, replicates=1).true_positives
    assert found[0.01].value == pytest.approx(0.80)  # 21 to 100
    assert found[0.001].value == pytest.approx(0.50)  # 51 to 100


def test_equal_scores_are_recognised_together_or_not_at_all() -> None:
    found = membership_attack([1.0] * 10, [1.0] + [0.0] * 49, replicates=1).true_positives
    assert found[0.01].value == 0.0


def test_the_interval_is_over_patients_and_wider_where_their_records_are_alike() -> None:
    rng = np.random.default_rng(0)
    members, others = rng.normal(0.7, 1, 20).repeat(10), rng.normal(0, 1, 20).repeat(10)
    owners = [str(i // 10) for i in range(200)]
    alone = membership_attack(members, others).auc
    grouped = membership_attack(members, others, member_patients=owners, other_patients=owners).auc
    assert alone.value == grouped.value
    widths = [high - low for low, high in (alone.interval or (0, 0), grouped.interval or (0, 0))]
    assert widths[1] > 2 * widths[0]
    assert grouped.low is not None
    assert grouped.low < grouped.value


def test_scores_that_say_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="1 of 3 scores are not finite"):
        membership_attack([1.0, math.nan], [0.0])
    with pytest.raises(ValueError, match="both sides need one"):
        membership_attack([], [0.0])
    with pytest.raises(ValueError, match="1 patients for 2 scores"):
        membership_attack([1.0, 2.0], [0.0], member_patients=["a"])


def test_a_patients_score_is_the_mean_of_its_records() -> None:
    assert means_of_patients([1, 5, 3], ["a", "b", "a"]) == [2, 5]


def test_exposure_is_the_log_of_the_share_that_the_rank_excludes() -> None:
    others = [float(i) for i in range(1, 256)]
    assert exposure(0.0, others) == 8  # first of 256
    assert exposure(3.5, others) == 6  # fourth
    assert exposure(999.0, others) == 0  # last
    assert exposure(1.0, [1.0] * 255) == pytest.approx(1, abs=0.01)
    with pytest.raises(ValueError, match="there is none"):
        exposure(0.0, [])


def test_epsilon_of_right_guesses_alone_is_that_of_randomised_response() -> None:
    # n of n right: (e^eps / (1 + e^eps))^n = 0.05
    chance = 0.05 ** (1 / 100)
    assert epsilon_from_guesses(100, 100, 100, 0.0) == pytest.approx(
        math.log(chance / (1 - chance)), abs=1e-4
    )
    assert epsilon_from_guesses(50, 100, 100, 0.0) == 0
    assert guess_probability(60, 100, 100, 0.0, 0.0) == pytest.approx(binom.sf(59, 100, 0.5))


def test_delta_makes_the_bound_weaker_as_the_theorem_says() -> None:
    # v = 2 of 2 at eps = 0: beta 1/4, alpha = max(P[1], P[0, 1] / 2) = max(1/2, 3/8)
    assert guess_probability(2, 2, 10, 0.0, 0.01) == pytest.approx(0.25 + 2 * 10 * 0.01 * 0.5)
    without, with_delta = (epsilon_from_guesses(95, 100, 1000, delta) for delta in (0.0, 1e-5))
    assert 0 < with_delta < without
    with pytest.raises(ValueError, match="not possible"):
        guess_probability(3, 2, 10, 0.0, 0.0)


def test_epsilon_of_scores_is_large_where_they_tell_all_and_zero_where_nothing() -> None:
    rng = np.random.default_rng(0)
    coins = rng.integers(2, size=400).astype(bool)
    known = epsilon_lower_bound(coins + rng.normal(0, 0.01, 400), coins.tolist(), 1e-5)
    assert 3.5 < known.epsilon < MOST
    assert known.right == known.guesses
    nothing = epsilon_lower_bound(rng.normal(size=400).tolist(), coins.tolist(), 1e-5)
    assert nothing.epsilon == 0


def test_the_bound_is_wrong_in_at_most_a_twentieth_of_audits_of_randomised_response() -> None:
    """An attacker who sees each coin through a mechanism of epsilon 1 must not find more than 1."""
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(200):
        coins = rng.integers(2, size=100).astype(bool)
        kept = rng.random(100) < math.e / (1 + math.e)
        wrong += epsilon_lower_bound(np.where(kept, coins, ~coins).tolist(), coins.tolist(), 0.0).epsilon > 1
    assert wrong <= 10 + 9  # three standard deviations above the 10 that are allowed


# ---- shadows -----------------------------------------------------------------------------------------------


def scores_of_models(member: np.ndarray, rng: np.random.Generator, shift: float = 0.0) -> np.ndarray:
    """Scores of records of very different difficulty, which training raises by 1 with noise of 0.5."""
    difficulty = np.linspace(-20, 20, member.shape[-1])
    return difficulty + member + rng.normal(scale=0.5, size=member.shape) + shift


def test_shadows_see_what_the_difficulty_of_records_hides() -> None:
    rng = np.random.default_rng(0)
    member, inside = np.arange(400) % 2 == 0, halves([str(n) for n in range(400)], 16, 0)
    observed = scores_of_models(member, rng, shift=-3.0)  # as by a model that others trained too
    found = likelihood_ratios(observed, scores_of_models(inside, rng), inside)
    assert membership_attack(observed[member], observed[~member]).auc.value < 0.55
    best = 0.92  # two normal laws 1 apart of deviation 0.5
    for scores in (found.online, found.offline):
        assert membership_attack(scores[member], scores[~member]).auc.value == pytest.approx(best, abs=0.05)
    ratio = found.online[member].mean() - found.online[~member].mean()
    assert ratio == pytest.approx((1 / 0.5) ** 2, rel=0.25)


def test_shadows_find_nothing_in_a_model_that_saw_nobody() -> None:
    rng = np.random.default_rng(1)
    member, inside = np.arange(400) % 2 == 0, halves([str(n) for n in range(400)], 16, 1)
    found = likelihood_ratios(scores_of_models(np.zeros(400), rng), scores_of_models(inside, rng), inside)
    ends = membership_attack(found.online[member], found.online[~member]).auc.interval
    assert ends is not None
    assert ends[0] < 0.5 < ends[1]


def test_every_patient_is_whole_and_inside_half_of_the_shadows() -> None:
    patients = ["a", "a", "b", "c", "c", "d", "e"]
    inside = halves(patients, 6, 3)
    assert (inside.sum(axis=0) == 3).all()
    assert (inside[:, 0] == inside[:, 1]).all()
    assert (inside[0] != inside[1]).all()
    with pytest.raises(ValueError, match="fewer than two shadows"):
        likelihood_ratios(np.zeros(7), np.zeros((2, 7)), inside[:2])
