# SPDX-License-Identifier: Apache-2.0
"""Attacks of a lying server on patients' profiles (FedTAR): it picks the mixture whose sums sites send."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from fed_harness import ToyExecutor
from fed_toy import ToyLearner
from lying_server import Answer, LyingServer
from torch import Tensor

from medflare.learners.fedtar.mixture import MixtureSettings
from medflare.learners.fedtar.patient_assignments import PatientAssignments
from medflare.learners.fedtar.profile import Profiles

Make = Callable[..., LyingServer]
BINS, PATIENTS, FEWEST = 128, 30, 5
"""Components a server asks for: one for each year of age and each sex."""


def profiles() -> Profiles:
    """30 patients of a hospital: age in centuries, sex, and a covariate that is known of one of them."""
    draw = torch.Generator().manual_seed(3)
    ages = torch.randperm(90, generator=draw)[:PATIENTS].double() / 100 + 0.05
    sexes = (torch.rand(PATIENTS, generator=draw) < 0.5).double()
    rare = torch.full((PATIENTS,), math.nan, dtype=torch.float64)
    rare[7] = 0.8125
    return Profiles(tuple(f"p{k:02d}" for k in range(PATIENTS)), torch.stack([ages, sexes, rare], 1))


class Hospital(ToyLearner):
    """A toy site that has patients' profiles."""

    def __init__(self, settings: dict[str, Any], site: str, seed: int) -> None:
        super().__init__(settings, site, seed)
        chosen, everybody = MixtureSettings(components=2 * BINS), profiles()
        self.people = PatientAssignments(everybody, everybody.patients, chosen, seed)

    @property
    def patient_profiles(self) -> PatientAssignments:
        return self.people


@pytest.fixture
def server(lying_server: Make, monkeypatch: pytest.MonkeyPatch) -> LyingServer:
    monkeypatch.setattr(ToyExecutor, "learner", Hospital)
    server = lying_server()
    for answer in server.prepare(options={"mixture": {"components": 2 * BINS}}).values():
        assert not answer.refused, answer.text
    return server


def sums_of(server: LyingServer, number: int, **hints: Any) -> Answer:
    plan = {"round": number, "rounds": 5, "hints": hints}
    return server.send("site-1", "fit", plan=plan, round=number)


def statistics(server: LyingServer, mixture: Mapping[str, Any], number: int = -3) -> dict[str, Tensor]:
    answer = sums_of(server, number, profiles="statistics", mixture=mixture)
    assert not answer.refused, answer.text
    return {name.rsplit(".", 1)[1]: value.double() for name, value in answer.tensors.items()}


def narrow(width: float, covariate: float = 0.5) -> dict[str, Any]:
    """A component of every year of age and each sex."""
    places = [[age / 100, float(sex), covariate] for age, sex in itertools.product(range(BINS), (0, 1))]
    spread = [[width**2, width**2, 0.25]] * len(places)
    return {"weights": [1 / len(places)] * len(places), "means": places, "variances": spread}


def read(found: Mapping[str, Tensor]) -> int:
    """How many patients' age and sex stand among the components' means."""
    means = (found["f"] / found["n"].clamp(min=1e-12)[:, None])[found["n"] > 0.5][:, :2]
    known = profiles().values[:, :2]
    return int(((means[None] - known[:, None]).abs().amax(2) < 1e-6).any(1).sum()) if len(means) else 0


@pytest.mark.parametrize("width", [3e-3, 1e-9])
def test_narrow_components_do_not_read_profiles(server: LyingServer, width: float) -> None:
    result = statistics(server, narrow(width))
    assert read(result) == 0
    assert float(result["n"].sum()) == pytest.approx(PATIENTS)
    left = result["n"][result["n"] > 0]
    assert float(left.min()) >= FEWEST - 1e-6


def test_a_component_on_one_patient_does_not_tell_the_covariate_that_is_known_of_nobody_else(
    server: LyingServer,
) -> None:
    first, second = (
        statistics(server, narrow(0.2, value), number) for value, number in ((0.0, -4), (1.0, -3))
    )
    expected = (second["f"] - first["f"])[:, 2]
    assert torch.allclose(expected, first["n"], atol=1e-9)  # all of it is what the server's mixture expects


def test_moments_do_not_tell_an_entry_that_is_known_of_one_patient(server: LyingServer) -> None:
    answer = sums_of(server, -5, profiles="moments")
    assert not answer.refused, answer.text
    found = {name.rsplit(".", 1)[1]: value for name, value in answer.tensors.items()}
    assert found["observed"].tolist() == [30, 30, 0]
    assert float(found["first"][2]) == 0


def test_the_likelihood_does_not_tell_how_far_one_patient_is_from_a_place(server: LyingServer) -> None:
    """All components lie on one place, and every other patient is beyond what the likelihood counts."""
    age, sex, _ = profiles().values[7].tolist()
    result = set()
    for number, step in enumerate((0.001, 0.002, 0.003)):
        mixture = narrow(1e-3)
        mixture["means"] = [[age + step, sex, 0.5]] * (2 * BINS)
        mixture["variances"] = [[2e-6, 2e-6, 0.25]] * (2 * BINS)
        result.add(float(statistics(server, mixture, number - 20)["likelihood"]))
    assert len(result) == 1


def test_more_sums_than_em_has_iterations_are_refused(server: LyingServer) -> None:
    answer = sums_of(server, -203, profiles="statistics", mixture=narrow(0.1))
    assert "expected -202 to -2" in answer.text


def test_other_numbers_of_components_than_declared_are_refused(server: LyingServer) -> None:
    fewer = {part: values[:16] for part, values in narrow(0.1).items()}
    answer = sums_of(server, -3, profiles="statistics", mixture={**fewer, "weights": [1 / 16] * 16})
    assert "the mixture has 16 components" in answer.text
