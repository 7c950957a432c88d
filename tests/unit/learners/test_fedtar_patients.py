# SPDX-License-Identifier: Apache-2.0
"""A site's patients: whose profiles enter sums, q_p for a batch, mixtures of one site alone, restarts."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from medflare.core.errors import RunError, UpdateError
from medflare.in_process.temporal_loop import agree_on_mixture
from medflare.learners.fedtar.federated_em import PATIENTS, N
from medflare.learners.fedtar.mixture import MixtureSettings, fixed_grid
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.profile import Profiles


def profiles(count: int = 40, seed: int = 0) -> Profiles:
    values = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values[:, 1] = values[:, 1].round()
    return Profiles(tuple(f"p{number:02d}" for number in range(count)), values)


def people(trained_on: int = 30, seed: int = 0, **given: Any) -> PatientAssignments:
    everybody = profiles(seed=seed)
    return PatientAssignments(everybody, everybody.patients[:trained_on], MixtureSettings(**given), seed=5)


def test_only_patients_of_the_training_split_enter_sums() -> None:
    site = people(30)
    assert float(site.profile_sums()[PATIENTS]) == 30
    assert float(site.mixture_sums(fixed_grid(MixtureSettings(), 2, 0).to_hint())[N].sum()) == pytest.approx(
        30
    )


def test_all_patients_have_an_assignment_in_the_order_of_a_batch() -> None:
    sites = {"a": people(), "b": people(seed=1)}
    mixture = agree_on_mixture(sites, MixtureSettings(), 2, seed=0).mixture
    assert mixture is not None
    result = sites["a"].assigned(["p39", "p00", "p39"])
    expected = mixture.assign(profiles().values[[39, 0, 39]])
    assert result.dtype == torch.float32
    assert torch.allclose(result, expected.float())
    with pytest.raises(KeyError, match="p99"):
        sites["a"].assigned(["p99"])


def test_a_batch_before_there_is_a_mixture_is_an_error_that_says_so() -> None:
    with pytest.raises(UpdateError, match="no mixture of profiles yet"):
        people().assigned(["p00"])


def test_a_published_grid_is_the_same_everywhere_without_a_sum() -> None:
    one, two = people(source="global_fixed"), people(0, seed=3, source="global_fixed")
    assert one.mixture is not None
    assert two.mixture is not None
    assert torch.equal(one.mixture.means, two.mixture.means)
    assert one.assigned(["p00"]).shape == (1, 16)


def test_a_mixture_of_ones_own_differs_from_site_to_site() -> None:
    one, two = people(source="per_client"), people(seed=3, source="per_client")
    assert one.mixture is not None
    assert two.mixture is not None
    assert not torch.allclose(one.mixture.means, two.mixture.means)
    with pytest.raises(RunError, match="have 4 patients"):
        people(4, source="per_client")


def test_a_mixture_of_other_settings_is_refused() -> None:
    for odd in (fixed_grid(MixtureSettings(components=8), 2, 0), fixed_grid(MixtureSettings(), 3, 0)):
        for task in (people().take_mixture, people().mixture_sums):
            with pytest.raises(UpdateError, match="same settings of profile and mixture"):
                task(odd.to_hint())


def test_a_restarted_site_has_its_mixture_back() -> None:
    site, again = people(), people()
    assert site.state() == {}
    again.restore({"order": torch.ones(1)})
    site.take_mixture(fixed_grid(MixtureSettings(), 2, 0).to_hint())
    again.restore(site.state() | {"order": torch.ones(1)})
    assert torch.equal(again.assigned(["p07"]), site.assigned(["p07"]))


def test_of_a_patient_of_whom_nothing_is_known_the_assignment_is_the_weights() -> None:
    everybody = Profiles(("p",), torch.full((1, 2), math.nan, dtype=torch.float64))
    site = PatientAssignments(everybody, (), MixtureSettings(source="global_fixed"), seed=0)
    assert torch.allclose(site.assigned(["p"]), torch.full((1, 16), 1 / 16))


def test_dealt_at_random_every_patient_has_the_assignment_of_another_one() -> None:
    site = people(source="global_fixed")
    patients = list(site.profiles.patients)
    before = site.assigned(patients)
    site.deal_at_random(3)
    after = site.assigned(patients)
    assert not torch.equal(before, after)
    assert torch.equal(before.sort(0).values, after.sort(0).values), "the same assignments, of others"
    again = people(source="global_fixed")
    again.deal_at_random(3)
    assert torch.equal(again.assigned(patients), after)
    with pytest.raises(UpdateError, match="no q_p to deal"):
        people().deal_at_random(3)
