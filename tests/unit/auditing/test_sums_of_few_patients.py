# SPDX-License-Identifier: Apache-2.0
"""Attacks of a server on one patient through the sums beside updates: FedTAR's profiles, FedMRG's bank.

Arithmetic alone. Each attack succeeds without the floor, so that its failure with the floor says something;
the difference of two runs succeeds in spite of it, and is what differential privacy is for.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from medflare.core.conditions import CONDITIONS, Code
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.learners.fedmrg.memory_bank import COUNT, SUM, MemoryBank
from medflare.learners.fedtar.federated_em import (
    FIRST,
    OBSERVED,
    PATIENTS,
    SECOND,
    N,
    em_statistics,
    profile_moments,
)
from medflare.learners.fedtar.federated_em import F as WEIGHTED
from medflare.learners.fedtar.mixture import Mixture
from medflare.learners.fedtar.patient_floors import FEWEST

PLAN = RoundPlan(round=0, rounds=2, hints=RoundHints(site_index=0, sites=2, summed=(0, 1)))
WIDTH = 8


def people(count: int, seed: int = 0) -> Tensor:
    """Age in centuries and sex of `count` patients."""
    values = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values[:, 1] = values[:, 1].round()
    return values


def difference(larger: State, smaller: State, name: str) -> Tensor:
    return larger[name] - smaller[name]


# ---- FedTAR ------------------------------------------------------------------------------------------------


def test_two_ages_follow_from_their_sum_and_their_squares_sum_without_the_floor() -> None:
    values = people(2)
    sent = profile_moments(values)
    first, second = float(sent[FIRST][0]), float(sent[SECOND][0])
    apart = (2 * second - first**2) ** 0.5  # x + y and x² + y² give x - y
    assert sorted(values[:, 0].tolist()) == pytest.approx([(first - apart) / 2, (first + apart) / 2])


@pytest.mark.parametrize("count", range(1, FEWEST))
def test_the_floor_says_nothing_of_fewer_patients(count: int) -> None:
    sent = profile_moments(people(count), FEWEST)
    assert all(not sent[name].any() for name in (PATIENTS, OBSERVED, FIRST, SECOND))


def narrow(age: float) -> Mixture:
    """A component that lies on one age, beside one for everybody else."""
    means = torch.tensor([[age, 0.5], [0.5, 0.5]], dtype=torch.float64)
    variances = torch.tensor([[1e-6, 10.0], [1.0, 1.0]], dtype=torch.float64)
    return Mixture(torch.tensor([0.5, 0.5], dtype=torch.float64), means, variances)


def test_a_component_on_one_patient_returns_its_sex_unless_the_floor_merges_it() -> None:
    values = people(20)
    values[:, 0] = torch.arange(20, dtype=torch.float64) / 20  # no two of one age
    guessed, floored = [], []
    for age, sex in values.tolist():
        open_sums = em_statistics(narrow(age), values)
        guessed.append(round(float(open_sums[WEIGHTED][0, 1] / open_sums[N][0])) == sex)
        closed = em_statistics(narrow(age), values, FEWEST)
        floored.append(float(closed[N][0]))
    assert all(guessed), "the positive control"
    assert floored == [0.0] * 20


def test_two_runs_that_differ_by_a_patient_give_its_profile_in_spite_of_the_floor() -> None:
    before, after = people(30), torch.cat([people(30), people(1, seed=9)])
    sent = [profile_moments(values, FEWEST) for values in (after, before)]
    assert difference(*sent, PATIENTS) == 1
    assert torch.allclose(difference(*sent, FIRST), people(1, seed=9)[0])


# ---- FedMRG's bank -----------------------------------------------------------------------------------------


def features(count: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed)), dim=1)


def codes(count: int, positive: int) -> Tensor:
    """Codes of images of which so many have the first condition, and none another."""
    table = torch.full((count, len(CONDITIONS)), int(Code.BLANK))
    table[:positive, 0] = int(Code.POSITIVE)
    return table


def sent_by(images: Tensor, labels: Tensor, k_min: int) -> State:
    return MemoryBank("prototypes", WIDTH, 64, k_min).contribution(images, labels, PLAN)


def test_the_prototype_of_one_image_is_its_feature_unless_the_floor_stops_it() -> None:
    images = features(20)
    assert torch.allclose(sent_by(images, codes(20, 1), 1)[SUM][0], images[0])
    floored = sent_by(images, codes(20, 15), 16)
    assert not floored[SUM].any()
    assert not floored[COUNT].any()


def test_two_prototypes_that_differ_by_an_image_give_its_feature_in_spite_of_the_floor() -> None:
    images = features(21)
    after, before = (sent_by(images[:count], codes(count, count), 16) for count in (21, 20))
    assert difference(after, before, COUNT)[0] == 1
    assert torch.allclose(difference(after, before, SUM)[0], images[20], atol=1e-5)
