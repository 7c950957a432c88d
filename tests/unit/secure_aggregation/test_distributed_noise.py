# SPDX-License-Identifier: Apache-2.0
"""Distributed differential privacy: the sampler against its law, norm, ring, and the noise of a sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from medflare.core.errors import ConfigError, UpdateError
from medflare.core.patient_privacy import Mechanism
from medflare.core.secure_random import SecureRandom
from medflare.core.tensors import SharedSpec
from medflare.differential_privacy.accounting import epsilon
from medflare.protections.masked_server import privacy_of_sites
from medflare.protections.noise_numbers import noise_numbers
from medflare.protections.opened_sums import SumOrigin
from medflare.protections.settings import SumPrivacySettings
from medflare.secure_aggregation.discrete_gaussian import discrete_gaussian
from medflare.secure_aggregation.distributed_noise import SumNoise
from medflare.secure_aggregation.fixed_point import Ring
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import encode
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters

SIZE = 4096
LAYOUT = Layout.of({"adapter.lora_B": ((64, 64), torch.float32)}, {})
COUNTED: SharedSpec = {"sum:count": ((5,), torch.float32)}


def random(number: int = 0) -> SecureRandom:
    return SecureRandom(bytes([number]) * 32)


def terms(**changes: Any) -> RoundParameters:
    words: dict[str, Any] = {
        "run_id": "r",
        "round": 0,
        "sites": ["site-1", "site-2", "site-3"],
        "most_weight": 1.0,
        "weighing": "uniform",
        "clip": 1.0,
        "noise": 1.0,
        "colluding": 1,
    }
    return RoundParameters.of(LAYOUT, **{**words, **changes})


@pytest.mark.parametrize("sigma", [1, 2, 5])
def test_small_discrete_gaussians_have_their_probabilities(sigma: int) -> None:
    drawn = discrete_gaussian(sigma, 100_000, random(sigma))
    values = np.arange(-4 * sigma, 4 * sigma + 1)
    weights = np.exp(-(np.arange(-60, 61) ** 2) / (2 * sigma**2))
    expected = np.exp(-(values**2) / (2 * sigma**2)) / weights.sum()
    counts = np.array([(drawn == value).sum() for value in values])
    kept = expected * len(drawn) >= 5
    rest = len(drawn) - counts[kept].sum()
    chi = stats.chisquare(
        [*counts[kept], rest], [*(expected[kept] * len(drawn)), (1 - expected[kept].sum()) * len(drawn)]
    )
    assert chi.pvalue > 1e-3


@pytest.mark.parametrize("sigma", [1000, 12_000_003, 1 << 30])
def test_large_ones_are_like_normal_numbers_of_that_deviation(sigma: int) -> None:
    drawn = discrete_gaussian(sigma, 50_000, random(9)) / sigma
    assert stats.kstest(drawn, "norm").pvalue > 1e-3


def test_sigma_is_a_whole_number_in_its_range() -> None:
    for sigma in (0, -1, (1 << 30) + 1):
        with pytest.raises(ValueError, match="expected 1 to"):
            discrete_gaussian(sigma, 1, random())


def test_a_noised_update_is_clipped_and_its_rounding_is_unbiased() -> None:
    ring = Ring(16, 16.0, 3)  # coarse, so that rounding shows
    noise = SumNoise.of(ring, SIZE, 4.0, 0.05, 1)
    update = torch.full((SIZE,), 0.5)  # norm 32, clipped to 4
    rounded = [noise._rounded(update.double().numpy() / 8 * 2**ring.fraction, random(n)) for n in range(20)]
    assert all(np.sqrt(np.square(one.astype(float)).sum()) <= noise.most for one in rounded)
    assert np.mean(rounded) == pytest.approx(2**ring.fraction / 16, rel=0.01)
    assert noise.most >= noise.clip == 4.0 * 2**ring.fraction


def test_the_sum_of_the_honest_sites_carries_the_noise_and_one_site_alone_less() -> None:
    plan, ring = terms(), terms().narrow_ring
    noise = plan.sum_noise
    assert noise is not None
    assert noise.sigma == math.ceil(noise.most / math.sqrt(2 - 1))  # a threshold of 2 of 3, one of them tells
    zeros = torch.zeros(SIZE)
    two = sum(noise.add_to(zeros, ring, random(n)) for n in (1, 2))
    assert np.std(two) == pytest.approx(math.sqrt(2) * noise.sigma, rel=0.05)
    assert np.ldexp(noise.most, -ring.fraction) == pytest.approx(1.0, rel=1e-3), (
        "rounding costs next to nothing"
    )


def test_the_norm_of_what_a_site_adds_is_the_clip_whatever_its_update() -> None:
    plan = terms(noise=1e-5)  # so small that the update shows
    noise, ring = plan.sum_noise, plan.narrow_ring
    assert noise is not None
    sent = noise.add_to(torch.full((SIZE,), 3.0), ring, random(3)).astype(float)
    assert np.sqrt(np.square(sent).sum()) * 2.0**-ring.fraction == pytest.approx(1.0, rel=1e-3)


def test_parameters_are_part_of_what_every_site_signs() -> None:
    digests = {terms(**change).digest for change in ({}, {"noise": 1.2}, {"clip": 0.5}, {"colluding": 0})}
    assert len(digests) == 4
    assert RoundParameters.from_json(terms().to_json()) == terms()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weighing": "examples"}, "a weight that depends on data has no noise"),
        ({"most_weight": 10.0}, "a weight that depends on data has no noise"),
        ({"colluding": 2}, "2 sites may tell their noise, of a threshold of 2"),
        ({"clip": 0.0}, "expected positive numbers"),
        ({"noise": 40.0}, "the sum could wrap around"),
        ({"clip": 1.0, "noise": 1e-8}, "steps of the ring; expected 16"),
    ],
    ids=["weights", "large weights", "collusion", "no clip", "modulus", "coarse"],
)
def test_noise_that_would_hide_nothing_or_not_fit_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        terms(**changes)


def test_sums_without_noise_beside_noisy_updates_are_refused() -> None:
    words = {
        name: getattr(terms(), name) for name in ("run_id", "round", "sites", "clip", "noise", "weighing")
    }
    with pytest.raises(ConfigError, match="5 counters or sums would travel without noise"):
        RoundParameters.of(Layout.of(SHARED, COUNTED), most_weight=1.0, **words)


SHARED: SharedSpec = {"adapter.lora_B": ((64, 64), torch.float32)}


def test_an_update_has_the_same_noise_in_the_same_sum_and_other_noise_in_others(
    tmp_path: Path,
) -> None:
    values, origin = torch.ones(8), SumOrigin(state="s", weights="w")

    def words(folder: str = "kit", origin: SumOrigin = origin, values: Any = values, **changes: Any) -> str:
        numbers = noise_numbers(tmp_path / folder, origin, terms(**changes), values)
        return str(numbers.words(2))

    assert words() == words(attempt=3, round=2, run_id="other")
    others = [
        words(values=torch.full((8,), 1 + 2**-23)),
        words(origin=SumOrigin(state="t", weights="w")),
        words(origin=SumOrigin(state="s", weights="x")),
        words(threshold=3),
        words(sites=["site-1", "site-2", "site-4"]),
        words(folder="another kit"),
    ]
    assert len({words(), *others}) == 7
    secret = tmp_path / "kit" / "noise.key"
    assert secret.stat().st_mode & 0o077 == 0
    secret.write_bytes(b"short")
    with pytest.raises(UpdateError, match="cannot give an update the noise it had before"):
        words()


def test_each_round_and_each_server_that_died_counts_as_one_noisy_sum() -> None:
    settings = SumPrivacySettings(noise_multiplier=2.0, delta=1e-4)
    told = privacy_of_sites(settings, number=3, attempt=2)
    expected = epsilon([Mechanism(noise=2.0, rate=1.0, steps=6)], 1e-4)
    assert told == {"unit": "site", "epsilon": pytest.approx(expected, abs=1e-5), "delta": 1e-4}


def test_a_site_refuses_less_noise_than_its_policy_asks_for() -> None:
    limits = Limits(min_noise=1.2)
    assert "noise of 1 times a site's norm, this site's policy asks for 1.2" in str(
        limits.problem(terms(), "site-1")
    )
    assert "noise of 0 times" in str(limits.problem(terms(clip=0.0, noise=0.0, colluding=0), "site-1"))
    assert limits.problem(terms(noise=1.2), "site-1") is None


def test_without_the_setting_nothing_is_noised() -> None:
    plain = terms(clip=0.0, noise=0.0, colluding=0)
    assert plain.sum_noise is None
    out = encode(plain, LAYOUT, torch.full((SIZE,), 0.25), torch.zeros(0, dtype=torch.float64), 1.0)
    assert (out.narrow == 0.25 * 2**plain.narrow_ring.fraction).all()
