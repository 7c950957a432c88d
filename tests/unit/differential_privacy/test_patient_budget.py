# SPDX-License-Identifier: Apache-2.0
"""The hospital's budget at work: rounds are counted before they train, over jobs, until it is spent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.core.patient_privacy import Mechanism, PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.data.settings.policy import PolicyConfig
from medflare.differential_privacy.accounting import epsilon
from medflare.differential_privacy.spending import ACCOUNT
from medflare.egress.policy import Policy, PolicyError, in_words
from medflare.worker.patient_budget import PatientBudget

DELTA, STEPS = 1e-3, 5
PRIVACY = PatientPrivacy(
    patients=tuple(f"p{n}" for n in range(50)), unnamed=0, noise=1.0, rate=0.2, passes=1, delta=DELTA
)


def after(rounds: int) -> float:
    return epsilon([Mechanism(noise=1.0, rate=0.2, steps=STEPS * rounds)], DELTA)


def policy(limit: float, **more: Any) -> Policy:
    return Policy(rules=PolicyConfig.model_validate({"dp": {"epsilon": limit, "delta": DELTA, **more}}))


def plan(number: int = 0, rounds: int = 1) -> RoundPlan:
    return RoundPlan(round=number, rounds=rounds, steps=STEPS)


def test_rounds_are_counted_until_the_budget_is_spent_and_no_further(tmp_path: Path) -> None:
    budget = PatientBudget(policy((after(3) + after(4)) / 2), tmp_path, "run-1")
    for number in range(3):
        spent = budget.charge(PRIVACY, plan(number))
        assert spent["total"] == pytest.approx(after(number + 1), rel=1e-4)
    with pytest.raises(PolicyError, match="this round would bring the epsilon of this site's patients to"):
        budget.charge(PRIVACY, plan(3))
    assert budget.book.spent(PRIVACY.patients) == [Mechanism(noise=1.0, rate=0.2, steps=3 * STEPS)]


def test_another_job_begins_where_the_one_before_ended(tmp_path: Path) -> None:
    rules = policy((after(3) + after(4)) / 2)
    PatientBudget(rules, tmp_path, "run-1").charge(PRIVACY, plan())
    second = PatientBudget(rules, tmp_path, "run-2")
    with pytest.raises(PolicyError, match="the 3 rounds of this run would bring"):
        second.charge(PRIVACY, plan(rounds=3))
    spent = second.charge(PRIVACY, plan(rounds=2))
    assert (spent["run"], spent["total"]) == (
        pytest.approx(after(1), rel=1e-4),
        pytest.approx(after(2), rel=1e-4),
    )


def test_a_run_that_begins_must_fit_whole_and_one_that_goes_on_round_by_round(tmp_path: Path) -> None:
    budget = PatientBudget(policy((after(2) + after(3)) / 2), tmp_path, "run-1")
    budget.charge(PRIVACY, plan(rounds=3), alone=True)  # a canary
    with pytest.raises(PolicyError, match="the 3 rounds of this run would bring"):
        budget.charge(PRIVACY, plan(rounds=3))
    budget.charge(PRIVACY, plan(number=1, rounds=3), alone=True)
    with pytest.raises(PolicyError, match="this round would bring"):
        budget.charge(PRIVACY, plan(number=2, rounds=3), alone=True)


def test_a_budget_is_of_persons_and_not_of_a_data_set(tmp_path: Path) -> None:
    rules = policy((after(1) + after(2)) / 2)
    PatientBudget(rules, tmp_path, "run-1").charge(PRIVACY, plan())
    others = tuple(f"q{n}" for n in range(49))
    one_in_common = replace(PRIVACY, patients=("p7", *others))
    with pytest.raises(PolicyError, match="would bring the epsilon"):
        PatientBudget(rules, tmp_path, "run-2").charge(one_in_common, plan())
    nobody_in_common = replace(PRIVACY, patients=("q-1", *others))
    assert (
        PatientBudget(rules, tmp_path, "run-3").charge(nobody_in_common, plan())["total"]
        < rules.rules.dp.epsilon
    )


def test_a_budget_that_was_lowered_below_what_is_spent_admits_nothing(tmp_path: Path) -> None:
    PatientBudget(policy(100), tmp_path, "run-1").charge(PRIVACY, plan())
    with pytest.raises(PolicyError, match=r"the budget of epsilon 0\.1 is spent"):
        PatientBudget(policy(0.1), tmp_path, "run-2").check(PRIVACY)


def test_an_edited_book_is_a_refusal_that_may_leave_the_site(tmp_path: Path) -> None:
    budget = PatientBudget(policy(100), tmp_path, "run-1")
    budget.charge(PRIVACY, plan())
    file = tmp_path / ACCOUNT
    file.write_text(file.read_text().replace(f'"steps": {STEPS}', '"steps": 1'))
    for ask in (lambda: budget.check(PRIVACY), lambda: budget.charge(PRIVACY, plan(1))):
        with pytest.raises(PolicyError, match="everything counts as spent") as found:
            ask()
        assert str(tmp_path) not in str(found.value)


def test_a_job_without_noise_to_speak_of_has_no_epsilon_even_without_a_policy(tmp_path: Path) -> None:
    bare = PatientPrivacy(patients=("a", "b"), unnamed=0, noise=1e-9, rate=0.5, passes=1, delta=0.1)
    with pytest.raises(PolicyError, match="above 1000, which hides nobody"):
        PatientBudget(Policy(), tmp_path, "run").charge(bare, plan())


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": -1, "delta": DELTA},
        {"epsilon": 0, "delta": DELTA},
        {"epsilon": 1, "delta": 1.5},
        {"epsilon": 1},
    ],
    ids=["negative", "zero", "delta", "no delta"],
)
def test_a_budget_that_is_none_is_an_error_of_site_yaml(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dp\.(epsilon|delta)"):
        parse(PolicyConfig, {"dp": wrong}, "site.yaml")


def test_the_budget_is_told_in_words() -> None:
    words = " ".join(in_words(policy(8.0, outside=["test"])))
    assert "up to an epsilon of 8 at delta 0.001 over all jobs; outside it: test" in words
