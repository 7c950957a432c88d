# SPDX-License-Identifier: Apache-2.0
"""A hospital's privacy budget at work: what a job may do to its patients, counted before it is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medflare.core.patient_privacy import Mechanism, PatientPrivacy
from medflare.core.plan import RoundPlan
from medflare.data.settings.policy import PrivacyPolicy
from medflare.differential_privacy.accounting import epsilon
from medflare.differential_privacy.spending import SpendingBook, SpendingError
from medflare.egress.policy import NOT_PRIVATE, Policy, PolicyError, Refusal

RULE = "policy.dp"
MOST_EPSILON = 1000
"""Largest that is called differential privacy at all, also at a site without a budget."""


class PatientBudget:
    """The budget of one site, and one run's part in it.

    Args:
        policy: in force now.
        folder: of the site's book.
        run: whose spending this is.
    """

    def __init__(self, policy: Policy, folder: Path, run: str) -> None:
        self.policy, self.run, self.book = policy, run, SpendingBook(folder)

    @property
    def _rules(self) -> PrivacyPolicy | None:
        return self.policy.rules.dp

    def check(self, privacy: PatientPrivacy | None) -> None:
        """Check a job against the policy before it trains.

        Args:
            privacy: what its learner declares; None where it trains without differential privacy.

        Raises:
            PolicyError: naming everything that is against it, or that the budget is spent.
        """
        self._refuse(*self._problems(privacy))
        if privacy is not None and self._rules is not None:
            try:
                spent = epsilon(self.book.spent(privacy.patients), self._rules.delta, self._rules.accountant)
            except SpendingError as error:
                self._refuse(str(error))
            if spent >= self._rules.epsilon:
                self._refuse(f"the budget of epsilon {self._rules.epsilon:g} is spent")

    def charge(self, privacy: PatientPrivacy, plan: RoundPlan, *, alone: bool = False) -> dict[str, Any]:
        """Count a round before it trains; what an unfinished round was counted for stays counted.

        Args:
            alone: whether this round alone must be within the budget, as the run has trained here before, or
                it is a canary; else all rounds from this one on must.

        Returns:
            `run` and `total`: epsilon of this run and of all, this round included; `delta`, `accountant`, and
            `budget`, None without one.

        Raises:
            PolicyError: the rounds of a run that begins would pass the budget, or this one would; or the book
                cannot be believed.
        """
        self._refuse(*self._problems(privacy))
        rules, done = self._rules, privacy.mechanism(plan)
        delta = privacy.delta if rules is None else rules.delta
        accountant = "rdp" if rules is None else rules.accountant

        def admit(before: list[Mechanism]) -> None:
            if rules is None:
                return
            ahead = 1 if alone else max(plan.rounds - plan.round, 1)
            whole = Mechanism(noise=done.noise, rate=done.rate, steps=done.steps * ahead)
            wanted = epsilon([*before, whole], delta, accountant)
            if wanted > rules.epsilon:
                what = f"the {ahead} rounds of this run" if ahead > 1 else "this round"
                self._refuse(
                    f"{what} would bring the epsilon of this site's patients to {wanted:.3g}, at most "
                    f"{rules.epsilon:g} at delta {delta:g} over all jobs; more noise, fewer steps or a "
                    "smaller sample rate need less"
                )

        try:
            total, of_run = self.book.charge(privacy.patients, done, self.run, admit)
        except SpendingError as error:
            self._refuse(str(error))
        spent: dict[str, Any] = {
            "run": round(epsilon(of_run, delta, accountant), 6),
            "total": round(epsilon(total, delta, accountant), 6),
            "delta": delta,
            "accountant": accountant,
            "budget": None if rules is None else rules.epsilon,
        }
        if not spent["total"] <= MOST_EPSILON:
            self._refuse(f"there is so little noise that epsilon is above {MOST_EPSILON}, which hides nobody")
        return spent

    def _problems(self, privacy: PatientPrivacy | None) -> Iterator[str]:
        """Yield what of a job's training is against the rules, whatever was spent."""
        rules = self._rules
        if privacy is None:
            if rules is not None:
                yield NOT_PRIVATE
            return
        count = len(privacy.patients)
        if privacy.unnamed and (rules is None or rules.without_patient == "refuse"):
            yield (
                f"{privacy.unnamed} training records name no patient, so nobody knows whose they are; name "
                "them, or where each has a patient of its own, write 'without_patient: record' in policy.dp"
            )
        delta = privacy.delta if rules is None else rules.delta
        if count and delta > 1 / count:
            yield f"delta is {delta:g}, more than 1 / {count} training patients: one could be published"
        if rules is None:
            return
        if count < rules.min_patients:
            yield f"fewer than {rules.min_patients} training patients"
        if privacy.noise < rules.min_noise:
            yield f"the noise multiplier is {privacy.noise:g}, at least {rules.min_noise:g}"
        if privacy.rate > rules.max_sample_rate:
            yield f"the sample rate is {privacy.rate:g}, at most {rules.max_sample_rate:g}"

    def _refuse(self, *reasons: str) -> None:
        """Raise PolicyError where there is a reason."""
        if reasons:
            raise PolicyError([Refusal(RULE, reason) for reason in reasons], self.policy.file)
