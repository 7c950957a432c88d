# SPDX-License-Identifier: Apache-2.0
"""Federated EM: sites send sums, the server maximises; the result is that of EM on all patients together.

A site never sends anything but these sums: first D-vectors for the start, then for every iteration
K (1 + 2 D) + 1 numbers. They are additive, so that masks can cover them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medflare.core.errors import RunError
from medflare.core.tensors import SharedSpec, State, add_sums
from medflare.learners.fedtar.mixture import HIGHEST_ENTRY, Mixture, MixtureSettings, spread_out
from medflare.learners.fedtar.patient_floors import (
    effective_number,
    merge_concentrated,
    without_rare_entries,
)

PROFILES, STATISTICS = "profiles.", "statistics."
OBSERVED, FIRST, SECOND = f"{PROFILES}observed", f"{PROFILES}first", f"{PROFILES}second"
PATIENTS = f"{PROFILES}patients"
N, F, Q, LIKELIHOOD = (f"{STATISTICS}{part}" for part in ("n", "f", "q", "likelihood"))
EMPTY = 1e-9
"""Patients Σ q up to which a component is nobody's."""
MOST_EXPECTED = 10.0
"""Largest entry that a component may expect of a profile where it is not known."""
LEAST_LOG = -1e3
"""A patient's log-likelihood counts for no less: the sum keeps a bound, and it only decides when to stop."""


# ---- at a site ---------------------------------------------------------------------------------------------


def moments_spec(entries: int) -> SharedSpec:
    """Return the spec of the sums before the first iteration, for D entries: 3 D + 1 numbers."""
    vector = ((entries,), torch.float64)
    return {PATIENTS: ((), torch.float64), OBSERVED: vector, FIRST: vector, SECOND: vector}


def profile_moments(values: Tensor, fewest: int = 1) -> State:
    """Return the number of patients, and of each entry how often it is known, Σ v and Σ v².

    Args:
        values: (P, D), NaN where not known.
        fewest: an entry known of fewer patients counts as known of none; of fewer patients in all, nothing
            is said.
    """
    values = without_rare_entries(values, fewest)
    known = ~values.isnan()
    filled = torch.where(known, values, torch.zeros_like(values))
    patients = torch.tensor(float(len(values)), dtype=torch.float64)
    return {
        PATIENTS: patients,
        OBSERVED: known.double().sum(0),
        FIRST: filled.sum(0),
        SECOND: filled.square().sum(0),
    }


def statistics_spec(components: int, entries: int) -> SharedSpec:
    """Return names, shapes and dtypes of the sums of an iteration."""
    double, matrix = torch.float64, ((components, entries), torch.float64)
    return {N: ((components,), double), F: matrix, Q: matrix, LIKELIHOOD: ((), double)}


def em_statistics(mixture: Mixture, values: Tensor, fewest: int = 1) -> State:
    """Return the sums of the E-step: N_j = Σ q_pj, F_j = Σ q_pj v_p, Q_j = Σ q_pj v_p², Σ log-likelihood.

    An entry that is not known counts with what component j expects of it, μ_jc and μ_jc² + σ²_jc, which is
    exact EM for entries missing at random.

    Args:
        values: (P, D); P may be 0.
        fewest: effective number of patients, (Σ q)² / Σ q², below which a component joins its nearest one,
            and below which its values of an entry are sent as if nobody's were known: sums that rest on fewer
            would be a patient's own values, as the server picks the mixture. 1 changes nothing.
    """
    values = without_rare_entries(values, fewest)
    joint = mixture.log_joint(values)
    q = merge_concentrated(mixture, torch.softmax(joint, 1), fewest)
    known = (~values.isnan()).double()
    filled = torch.where(values.isnan(), torch.zeros_like(values), values)
    count, absent = q.sum(0), q.T @ (1 - known)
    expected = mixture.means, mixture.means.square() + mixture.variances
    first, second = (
        q.T @ power + absent * mean for power, mean in zip((filled, filled.square()), expected, strict=True)
    )
    if fewest > 1:
        many = effective_number(q, known) >= fewest  # (K, D)
        first, second = (
            torch.where(many, exact, count[:, None] * mean)
            for exact, mean in zip((first, second), expected, strict=True)
        )
    likelihood = torch.logsumexp(joint, 1).clamp(min=LEAST_LOG)
    if int((likelihood > LEAST_LOG).sum()) < fewest:
        likelihood = torch.full_like(likelihood, LEAST_LOG)
    return {N: count, F: first, Q: second, LIKELIHOOD: likelihood.sum()}


# ---- at the server -----------------------------------------------------------------------------------------


def impossible(sums: Mapping[str, Tensor], patients: int) -> str:
    """Return why sums cannot be those of so many patients' profiles, '' where they can.

    One site's invented sums would make the mixture of all sites that site's, or no mixture at all.

    Args:
        sums: of one stage, of one site or of several.
        patients: that these sites have at most.
    """
    slack = 1e-3 * (1 + patients)  # masked sums come back rounded
    if PATIENTS in sums:
        count, first, second = (sums[name] for name in (OBSERVED, FIRST, SECOND))
        total, most, beside = sums[PATIENTS], HIGHEST_ENTRY, bool((count > sums[PATIENTS] + slack).any())
    else:
        count, first, second = sums[N][:, None], sums[F], sums[Q]
        total, most, reach = sums[N].sum(), MOST_EXPECTED, -LEAST_LOG * (patients + 1)
        beside = abs(float(sums[LIKELIHOOD])) > reach
    wrong = [
        not -slack <= float(total) <= patients + slack,
        bool((count < -slack).any()),
        bool((first.abs() > most * count + slack * most).any()),
        bool((second < -slack).any() or (second > most**2 * count + slack * most**2).any()),
        beside,
    ]
    if not any(wrong):
        return ""
    return (
        f"numbers that no profiles of up to {patients} patients have, {float(total):.4g} patients among them"
    )


def maximise(totals: Mapping[str, Tensor], regularisation: float, least: float) -> Mixture:
    """Take the M-step: π_j = N_j / Σ N, μ_j = F_j / N_j, σ²_j = Q_j / N_j − μ_j² + regularisation.

    Components of fewer than `least` patients are merged before anything is divided by their N_j; with 0 only
    those of nobody are.
    """
    n, f, q = (totals[name].double().clone() for name in (N, F, Q))
    into = _merged(n, f, q, max(least, EMPTY), regularisation)
    means, variances = _shape(n, f, q, regularisation)
    n = torch.where(into == torch.arange(len(n)), n, torch.zeros_like(n))
    return Mixture(n / n.sum(), means[into], variances[into])


def _shape(n: Tensor, f: Tensor, q: Tensor, regularisation: float) -> tuple[Tensor, Tensor]:
    """Return means and variances; those of a component without patients have no meaning."""
    count = n.clamp(min=1e-300)[:, None]
    means = f / count
    return means, (q / count - means.square()).clamp(min=0.0) + regularisation


def _merged(n: Tensor, f: Tensor, q: Tensor, least: float, regularisation: float) -> Tensor:
    """Add small components to their nearest ones, smallest first, in place.

    A component of few patients would point at them. Distance is in units of both spreads together; an empty
    component goes to the largest. The last component is never merged.

    Returns:
        (K,): the component that each one became part of; its own number where it was kept.
    """
    into = torch.arange(len(n))
    while True:
        alive = [j for j in range(len(n)) if into[j] == j]
        small = min(alive, key=lambda j: (float(n[j]), j))
        if len(alive) == 1 or n[small] >= least:
            break
        others = [j for j in alive if j != small]
        means, variances = _shape(n, f, q, regularisation)
        apart = (means[others] - means[small]).square() / (variances[others] + variances[small])
        empty = n[small] <= EMPTY
        nearest = others[int(n[others].argmax() if empty else apart.sum(1).argmin())]
        for part in (n, f, q):
            part[nearest] += part[small]
        into[into == small] = nearest
    return into


class FederatedMixture:
    """The server's side: `begin` with the totals of `profile_moments`, then `step` with those of
    `em_statistics` until `done`.

    Components of few patients are merged once, in the last M-step (TAR-20): in the first ones they are still
    on their way to patients of their own, and merging them there loses most of what the data can tell apart.

    Attributes:
        merged: patients Σ q of each component that the last M-step merged, without those of nobody.

    Args:
        entries: D. seed: of the low-discrepancy set of first means, which all sites start from.
    """

    def __init__(self, settings: MixtureSettings, entries: int, seed: int) -> None:
        self.settings, self.entries, self.seed = settings, entries, seed
        self.mixture: Mixture | None = None
        self.likelihoods: list[float] = []
        self.informative = True
        self.merged: list[float] = []

    @property
    def done(self) -> bool:
        """Return whether the mean log-likelihood stands still, or the iterations are used up."""
        last = self.likelihoods[-2:]
        still = len(last) == 2 and abs(last[1] - last[0]) < self.settings.tolerance
        return still or len(self.likelihoods) >= self.settings.iterations

    def begin(self, totals: Mapping[str, Tensor]) -> Mixture:
        """Return the first mixture: π_j = 1/K, means spread over the range, variances of all patients.

        `informative` turns false where no entry differs between patients: personalisation is then off
        (TAR-13).

        Raises:
            RunError: the sites have too few patients to hide one.
        """
        patients, least = float(totals[PATIENTS]), self.settings.least_patients
        if not patients >= max(least, 1.0):
            raise RunError(
                f"the sites have {patients:g} patients with a profile together, and a component of the "
                f"mixture needs {max(least, 1.0):g}. Let more sites take part, or switch personalisation off."
            )
        known = totals[OBSERVED].double().clamp(min=1.0)
        centre = totals[FIRST].double() / known
        variance = (totals[SECOND].double() / known - centre.square()).clamp(min=0.0)
        self.informative = bool((variance > self.settings.regularisation).any())
        count = self.settings.components
        means = spread_out(centre, variance, count, self.seed)
        weights = torch.full((count,), 1 / count, dtype=torch.float64)
        variances = (variance + self.settings.regularisation).expand(count, -1).clone()
        self.mixture, self.likelihoods = Mixture(weights, means, variances), []
        return self.mixture

    def resume(self, mixture: Mixture) -> Mixture:
        """Start from an agreed mixture instead, when a site joins.

        Components keep their places, and with them the columns of W_proj their meaning; merged ones stay
        merged.
        """
        self.mixture, self.likelihoods = mixture, []
        return mixture

    def step(self, totals: Mapping[str, Tensor]) -> Mixture:
        """Take one M-step; return the mixture to send for the next E-step, or to keep.

        The one to keep has no component of fewer than `least_patients`.
        """
        assert self.mixture is not None
        self.likelihoods.append(float(totals[LIKELIHOOD]) / float(totals[N].sum()))
        settings, least = self.settings, self.settings.least_patients if self.done else 0.0
        self.mixture = maximise(totals, settings.regularisation, least)
        lost = (self.mixture.weights == 0) & (totals[N] > EMPTY)
        self.merged = sorted(totals[N][lost].tolist())
        return self.mixture

    def report(self) -> dict[str, Any]:
        """Return facts for run.json (TAR-20).

        `components` counts those that were not merged; `merged` those of too few patients, and `empty` those
        of nobody, out of `settings.components`. `explained`: R² of each entry of a profile from q_p.
        """
        assert self.mixture is not None
        alive, asked = self.mixture.alive, self.settings.components
        return {
            "iterations": len(self.likelihoods),
            "likelihoods": list(self.likelihoods),
            "components": alive,
            "weights": self.mixture.weights.tolist(),
            "merged": len(self.merged),
            "empty": asked - alive - len(self.merged),
            "explained": self.mixture.explained().tolist(),
            "informative": self.informative,
        }


def fit_mixture(sites: Sequence[Tensor], settings: MixtureSettings, seed: int) -> FederatedMixture:
    """Fit a mixture by federated EM in one process.

    Args:
        sites: profiles (P, D) of each site; a single one is `per_client`, or pooled EM.
    """
    server = FederatedMixture(settings, sites[0].shape[1], seed)
    mixture = server.begin(add_sums([profile_moments(values) for values in sites]))
    while not server.done:
        mixture = server.step(add_sums([em_statistics(mixture, values) for values in sites]))
    return server
