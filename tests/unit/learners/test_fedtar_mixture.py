# SPDX-License-Identifier: Apache-2.0
"""Federated EM is pooled EM; small components are merged; empty sites and unknown entries do no harm."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from sklearn.mixture import GaussianMixture
from torch import Tensor

from medflare.core.errors import RunError, UpdateError
from medflare.core.hints import MixtureHint
from medflare.core.tensors import add_sums
from medflare.learners.fedtar.federated_em import (
    LIKELIHOOD,
    FederatedMixture,
    N,
    em_statistics,
    fit_mixture,
    maximise,
    moments_spec,
    profile_moments,
    statistics_spec,
)
from medflare.learners.fedtar.mixture import (
    HIGHEST_ENTRY,
    Mixture,
    MixtureSettings,
    fixed_grid,
    mixture_spec,
    spread_out,
)
from medflare.secure_aggregation.fixed_point import Ring
from medflare.secure_aggregation.round_parameters import WIDE, WIDE_BOUND

FOUR = MixtureSettings(components=4, least_patients=0, iterations=12, tolerance=1e-12)
SIXTEEN = MixtureSettings()


def patients(count: int, seed: int = 0, centre: float = 0.6) -> Tensor:
    """(count, 2): age/100 of two groups, and sex."""
    draw = torch.Generator().manual_seed(seed)
    young = torch.rand(count, generator=draw, dtype=torch.float64) < 0.4
    age = torch.randn(count, generator=draw, dtype=torch.float64) * 0.1 + centre - 0.3 * young
    sex = (torch.rand(count, generator=draw) < 0.3 + 0.4 * young).double()
    return torch.stack([age.clamp(0, 1.3), sex], 1)


def sites() -> list[Tensor]:
    return [patients(90, 1), patients(40, 2, 0.8), patients(7, 3, 0.4)]


def blurred(values: Tensor, seed: int = 9) -> Tensor:
    """Without the spikes of a binary entry, so that two implementations cannot part over a tie."""
    return values + 0.05 * torch.randn(values.shape, generator=torch.Generator().manual_seed(seed)).double()


def parts(mixture: Mixture) -> tuple[Tensor, ...]:
    return mixture.weights, mixture.means, mixture.variances


def apart(one: Mixture, two: Mixture) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(parts(one), parts(two), strict=True))


def of(server: FederatedMixture) -> Mixture:
    assert server.mixture is not None
    return server.mixture


# ---- federated = pooled ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chosen", [FOUR, SIXTEEN], ids=["four components", "the default, with merging"])
def test_em_over_sites_is_em_over_all_patients(chosen: MixtureSettings) -> None:
    apart_, pooled = fit_mixture(sites(), chosen, seed=0), fit_mixture([torch.cat(sites())], chosen, seed=0)
    assert apart(of(apart_), of(pooled)) < 1e-9
    assert apart_.likelihoods == pytest.approx(pooled.likelihoods, abs=1e-9)
    assert len(apart_.likelihoods) > 3


def test_em_over_sites_is_scikit_learns_on_all_patients_from_the_same_start() -> None:
    """Another implementation: 12 iterations, the same regularisation, to 1e-9."""
    values = [blurred(site) for site in sites()]
    server = FederatedMixture(FOUR, 2, seed=3)
    start = server.begin(add_sums([profile_moments(site) for site in values]))
    reference = GaussianMixture(
        4,
        covariance_type="diag",
        tol=0.0,
        reg_covar=FOUR.regularisation,
        max_iter=FOUR.iterations,
        weights_init=start.weights.numpy(),
        means_init=start.means.numpy(),
        precisions_init=(1 / start.variances).numpy(),
    )
    with pytest.warns(match="did not converge"):
        reference.fit(torch.cat(values).numpy())
    components = of(fit_mixture(values, FOUR, seed=3))
    for mine, theirs in zip(
        parts(components), (reference.weights_, reference.means_, reference.covariances_), strict=True
    ):
        assert torch.allclose(mine, torch.from_numpy(theirs), atol=1e-9, rtol=0)
    assert torch.allclose(
        components.assign(values[0]), torch.from_numpy(reference.predict_proba(values[0].numpy())), atol=1e-9
    )


@given(cuts=st.lists(st.integers(0, 137), max_size=6), seed=st.integers(0, 5))
@settings(max_examples=10, deadline=None)
def test_how_patients_are_spread_over_sites_does_not_matter(cuts: list[int], seed: int) -> None:
    """Sites of no patient among them."""
    profiles = torch.cat(sites())
    pieces = list(torch.tensor_split(profiles, sorted(cuts)))
    chosen = FOUR.model_copy(update={"iterations": 4})
    assert apart(of(fit_mixture(pieces, chosen, seed)), of(fit_mixture([profiles], chosen, seed))) < 1e-9


def test_the_likelihood_never_falls_without_merging() -> None:
    values = [blurred(site) for site in sites()]
    likelihoods = fit_mixture(values, FOUR.model_copy(update={"iterations": 30}), seed=0).likelihoods
    assert all(b >= a - 1e-4 for a, b in itertools.pairwise(likelihoods))
    assert likelihoods[-1] > likelihoods[0] + 0.1


def test_it_stops_when_the_likelihood_stands_still_and_after_its_iterations() -> None:
    coarse = FOUR.model_copy(update={"tolerance": 0.01, "iterations": 50})
    still = fit_mixture(sites(), coarse, seed=0)
    assert still.done
    assert len(still.likelihoods) < coarse.iterations
    assert abs(still.likelihoods[-1] - still.likelihoods[-2]) < coarse.tolerance
    assert len(fit_mixture(sites(), FOUR, seed=0).likelihoods) == FOUR.iterations


# ---- what leaves a site ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 90])
def test_what_leaves_a_site_are_the_declared_sums_and_no_more(count: int) -> None:
    values = patients(count)
    mixture = fixed_grid(SIXTEEN, 2, 0)
    for found, spec in (
        (profile_moments(values), moments_spec(2)),
        (em_statistics(mixture, values), statistics_spec(16, 2)),
    ):
        assert {n: (tuple(t.shape), t.dtype) for n, t in found.items()} == spec
        assert all(torch.isfinite(value).all() for value in found.values())
    assert sum(math.prod(shape) for shape, _ in statistics_spec(16, 2).values()) == 16 * (1 + 2 * 2) + 1
    assert sum(math.prod(shape) for shape, _ in moments_spec(2).values()) == 3 * 2 + 1


def test_the_sums_pass_through_masks_and_give_the_same_mixture() -> None:
    """Written as numbers of the ring that masks work in, added there, and read back."""
    ring = Ring(WIDE, WIDE_BOUND, 3)

    def summed(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        out = {}
        for name, first in found[0].items():
            total = torch.zeros(first.numel(), dtype=ring.dtype)
            for part in found:
                coded = torch.empty_like(total)
                ring.encode_into(coded, part[name].reshape(-1))
                total += coded
            out[name] = (total.double() / 2**ring.fraction).reshape(first.shape)
        return out

    values, chosen = [blurred(site) for site in sites()], FOUR
    server = FederatedMixture(chosen, 2, 0)
    mixture = server.begin(summed([profile_moments(site) for site in values]))
    while not server.done:
        mixture = server.step(summed([em_statistics(mixture, site) for site in values]))
    assert apart(mixture, of(fit_mixture(values, chosen, 0))) < 1e-6


def test_a_patient_far_from_everything_does_not_break_the_bound_of_the_likelihood() -> None:
    tight = Mixture(torch.ones(1).double(), torch.zeros(1, 2).double(), torch.full((1, 2), 1e-9).double())
    assert float(em_statistics(tight, torch.full((3, 2), 1.3).double())[LIKELIHOOD]) == -3000.0


# ---- small components --------------------------------------------------------------------------------------


def test_no_component_of_fewer_than_ten_patients_is_sent() -> None:
    for seed in range(5):
        server = fit_mixture(sites(), SIXTEEN, seed)
        mixture, whole = of(server), torch.cat(sites())
        counts = mixture.weights * len(whole)
        assert (counts[mixture.weights > 0] >= 10 - 1e-9).all()
        assert 1 < mixture.alive < 16
        assert server.report()["components"] == mixture.alive


def test_a_lone_patient_gets_no_component_of_its_own() -> None:
    values = torch.cat([patients(60, 1, 0.3), torch.tensor([[1.2, 0.5]], dtype=torch.float64)])
    mixture = of(fit_mixture([values], SIXTEEN, seed=0))
    assert (mixture.means[mixture.weights > 0][:, 0] < 0.8).all()


@pytest.mark.parametrize("seed", range(3))
def test_q_still_says_how_old_a_patient_is(seed: int) -> None:
    """TAR-20. Merging in every M-step left R² of age at 0.00 to 0.02 here."""
    draw = torch.Generator().manual_seed(seed)
    age = torch.randn(120, generator=draw, dtype=torch.float64) * 0.15 + 0.6
    values = torch.stack([age, (torch.rand(120, generator=draw) < 0.5).double()], 1)
    server = fit_mixture([values[:60], values[60:]], SIXTEEN, seed)
    q = of(server).assign(values)
    left = age - q @ torch.linalg.lstsq(q, age[:, None], driver="gelsd").solution[:, 0]
    explained = 1 - float(left.square().mean() / age.var())
    assert explained > 0.4
    report = server.report()
    assert report["explained"][0] == pytest.approx(explained, abs=0.05), "without looking at a patient"
    assert report["explained"][1] == pytest.approx(1.0, abs=0.01)


def test_the_record_says_what_became_of_every_component() -> None:
    report = fit_mixture(sites(), SIXTEEN, seed=1).report()
    assert report["components"] + report["merged"] + report["empty"] == SIXTEEN.components
    assert report["merged"] > 0
    lone = fit_mixture([torch.full((20, 2), 0.5, dtype=torch.float64)], FOUR, seed=0).report()
    assert lone["explained"] == [0.0, 0.0], "nothing differs between patients"


def test_components_are_merged_in_the_last_step_alone() -> None:
    server = FederatedMixture(SIXTEEN.model_copy(update={"iterations": 3}), 2, 0)
    mixture, alive = server.begin(add_sums([profile_moments(site) for site in sites()])), []
    while not server.done:
        mixture = server.step(add_sums([em_statistics(mixture, site) for site in sites()]))
        alive.append(mixture.alive)
    assert alive[:2] == [16, 16]
    assert alive[2] < 16


def test_merging_keeps_the_sums() -> None:
    n = torch.tensor([40.0, 3.0, 30.0]).double()
    means = torch.tensor([[0.2], [0.3], [0.9]]).double()
    totals = {N: n, "statistics.f": n[:, None] * means, "statistics.q": n[:, None] * (means.square() + 0.01)}
    mixture = maximise(totals, 1e-6, 10)
    assert mixture.weights.tolist() == pytest.approx([43 / 73, 0, 30 / 73])
    assert float(mixture.means[0]) == pytest.approx((40 * 0.2 + 3 * 0.3) / 43)
    assert torch.equal(mixture.means[1], mixture.means[0])


def test_an_empty_component_is_gone_and_everything_stays_finite() -> None:
    totals = {
        N: torch.tensor([25.0, 0.0]).double(),
        "statistics.f": torch.tensor([[5.0], [0.0]]).double(),
        "statistics.q": torch.tensor([[1.0], [0.0]]).double(),
    }
    mixture = maximise(totals, 1e-6, 0)
    assert mixture.weights.tolist() == [1.0, 0.0]
    q = mixture.assign(torch.tensor([[0.2], [1.3]]).double())
    assert q.tolist() == [[1.0, 0.0], [1.0, 0.0]]


# ---- odd cohorts -------------------------------------------------------------------------------------------


def test_too_few_patients_to_hide_one_are_refused() -> None:
    with pytest.raises(RunError, match=r"have 9 patients .* needs 10"):
        fit_mixture([patients(4), patients(5)], SIXTEEN, 0)


def test_ten_patients_at_one_site_are_one_component() -> None:
    mixture = of(fit_mixture([patients(10)], SIXTEEN, 0))
    assert mixture.alive == 1
    assert torch.isfinite(mixture.assign(patients(3, 5))).all()


def test_constant_entries_do_no_harm() -> None:
    values = patients(60)
    values[:, 1] = 1.0
    mixture = of(fit_mixture([values], SIXTEEN, 0))
    assert mixture.variances[:, 1].tolist() == pytest.approx([1e-6] * 16, rel=1e-3)
    assert torch.allclose(mixture.assign(values).sum(1), torch.ones(60).double())


def test_profiles_that_are_all_the_same_say_that_nothing_can_be_personalised() -> None:
    server = fit_mixture([torch.full((30, 2), 0.5).double()], SIXTEEN, 0)
    assert not server.informative
    assert of(server).alive == 1
    assert fit_mixture(sites(), SIXTEEN, 0).informative


def test_entries_that_are_not_known_are_left_out_of_the_density() -> None:
    mixture = of(fit_mixture(sites(), SIXTEEN, 0))
    half = torch.tensor([[0.4, math.nan], [math.nan, math.nan]]).double()
    q = mixture.assign(half)
    alone = Mixture(mixture.weights, mixture.means[:, :1], mixture.variances[:, :1])
    assert torch.allclose(q[0], alone.assign(half[:1, :1])[0], atol=1e-12)
    assert torch.allclose(q[1], mixture.weights, atol=1e-12)


def test_unknown_entries_change_nothing_about_federated_and_pooled() -> None:
    holed = []
    for number, site in enumerate(sites()):
        holes = torch.rand(site.shape, generator=torch.Generator().manual_seed(number)) < 0.3
        holed.append(torch.where(holes, math.nan, site))
    found, pooled = fit_mixture(holed, SIXTEEN, 0), fit_mixture([torch.cat(holed)], SIXTEEN, 0)
    assert apart(of(found), of(pooled)) < 1e-9
    assert torch.isfinite(of(found).means).all()


def test_an_entry_that_no_site_knows_is_harmless() -> None:
    values = patients(60)
    values[:, 1] = math.nan
    mixture = of(fit_mixture([values], SIXTEEN, 0))
    assert all(torch.isfinite(part).all() for part in parts(mixture))


def test_missing_entries_count_with_what_a_component_expects() -> None:
    """EM with missing entries recovers the mean of those that are there (one component)."""
    values = patients(80)
    values[::3, 0] = math.nan
    chosen = MixtureSettings(components=1, iterations=200, tolerance=1e-14)
    components = of(fit_mixture([values], chosen, 0))
    assert float(components.means[0, 0]) == pytest.approx(float(values[:, 0].nanmean()), abs=1e-6)


def test_when_a_site_joins_components_keep_their_places() -> None:
    before = of(fit_mixture(sites(), SIXTEEN, 0))
    everybody = [*sites(), patients(50, 11)]
    server = FederatedMixture(SIXTEEN, 2, 0)
    server.begin(add_sums([profile_moments(site) for site in everybody]))
    mixture = server.resume(before)
    while not server.done:
        mixture = server.step(add_sums([em_statistics(mixture, site) for site in everybody]))
    assert torch.equal(mixture.weights > 0, before.weights > 0)
    probe = patients(200, 12)
    same = before.assign(probe).argmax(1) == mixture.assign(probe).argmax(1)
    assert float(same.double().mean()) > 0.9


# ---- the mixture itself ------------------------------------------------------------------------------------


def test_a_mixture_travels_with_the_model_to_a_site_that_has_not_seen_it() -> None:
    mixture = of(fit_mixture(sites(), SIXTEEN, 0))
    state = mixture.state()
    assert {n: (tuple(t.shape), t.dtype) for n, t in state.items()} == mixture_spec(16, 2)
    again = Mixture.of({name: value.clone() for name, value in state.items()})
    assert torch.equal(again.assign(patients(20, 8)), mixture.assign(patients(20, 8)))


def test_a_mixture_reaches_a_site_as_it_is_to_the_last_digit() -> None:
    mixture = of(fit_mixture(sites(), SIXTEEN, 0))
    hint = MixtureHint.model_validate_json(mixture.to_hint().model_dump_json())
    assert apart(Mixture.from_hint(hint), mixture) == 0


TWO_COMPONENTS = {
    "weights": torch.tensor([0.5, 0.5]).double(),
    "means": torch.zeros(2, 1).double(),
    "variances": torch.ones(2, 1).double(),
}
NO_MIXTURE = {
    "negative weights that sum to 1": {"weights": torch.tensor([1.5, -0.5]).double()},
    "negative weights": {"weights": -TWO_COMPONENTS["weights"]},
    "weights of 1.5": {"weights": torch.tensor([0.75, 0.75]).double()},
    "weights of 0.9999": {"weights": torch.tensor([0.5, 0.4999]).double()},
    "negative variances": {"variances": -TWO_COMPONENTS["variances"]},
    "a variance of zero": {"variances": torch.tensor([[1.0], [0.0]]).double()},
}


@pytest.mark.parametrize("case", NO_MIXTURE)
def test_a_mixture_that_is_none_is_refused(case: str) -> None:
    def state(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        return {f"mixture.{name}": value for name, value in parts.items()}

    Mixture.of(state(TWO_COMPONENTS))
    with pytest.raises(UpdateError, match=r"^the server's mixture: expected weights that sum to 1"):
        Mixture.of(state(TWO_COMPONENTS | NO_MIXTURE[case]))


@pytest.mark.parametrize("missing", ["means", "weights"])
def test_a_mixture_that_lacks_a_part_is_refused(missing: str) -> None:
    state = of(fit_mixture(sites(), SIXTEEN, 0)).state()
    with pytest.raises(UpdateError, match="the server's mixture: expected the tensors of"):
        Mixture.of({name: value for name, value in state.items() if name != f"mixture.{missing}"})


def test_a_mixture_of_other_shapes_names_who_sent_it() -> None:
    state = of(fit_mixture(sites(), SIXTEEN, 0)).state()
    with pytest.raises(UpdateError, match="the server's mixture"):
        Mixture.of(state | {"mixture.variances": state["mixture.variances"][:, :1]})


def test_the_density_is_that_of_independent_normal_entries() -> None:
    mixture = of(fit_mixture(sites(), SIXTEEN, 0))
    values = patients(5, 3)
    expected = mixture.weights.log().numpy() + norm.logpdf(
        values.numpy()[:, None], mixture.means.numpy(), mixture.variances.sqrt().numpy()
    ).sum(-1)
    assert mixture.log_joint(values).numpy() == pytest.approx(expected, rel=1e-12)


def test_what_q_explains_is_the_same_each_time_and_draws_from_nothing_else() -> None:
    mixture, before = of(fit_mixture(sites(), SIXTEEN, 0)), torch.get_rng_state()
    assert torch.equal(mixture.explained(), mixture.explained())
    assert torch.equal(torch.get_rng_state(), before)


def test_the_fixed_grid_needs_no_patient_and_tells_patients_apart() -> None:
    one, two = fixed_grid(SIXTEEN, 2, 3), fixed_grid(SIXTEEN, 2, 3)
    assert apart(one, two) == 0
    q = one.assign(torch.tensor([[0.2, 0.0], [0.8, 1.0]]).double())
    assert float((q[0] - q[1]).abs().sum()) > 1
    assert (one.means >= 0).all()
    assert (one.means <= 1).all()


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_the_fixed_grid_fills_the_cube_of_profiles(entries: int) -> None:
    """A component is as wide as its share of the cube: half the side of a cell in each direction."""
    grid = fixed_grid(MixtureSettings(source="global_fixed", components=64), entries, 0)
    side = 64 ** (-1 / entries)
    assert {part.dtype for part in (grid.weights, grid.means, grid.variances)} == {torch.float64}
    assert torch.allclose(grid.variances, torch.full((64, entries), (side / 2) ** 2).double(), rtol=1e-12)
    assert torch.allclose(grid.weights, torch.full((64,), 1 / 64).double())
    assert (grid.means.min(0).values < 0.05).all()
    assert (grid.means.max(0).values > 0.95).all()


def test_points_stay_where_a_profile_can_be() -> None:
    """Around the oldest ages the range is cut at the highest entry, however wide the patients spread."""
    points = spread_out(torch.tensor([1.25]).double(), torch.tensor([0.25]).double(), 200, 0)
    low = 1.25 - math.sqrt(0.75)
    assert (float(points.min()), float(points.max())) == (
        pytest.approx(low, abs=0.02),
        pytest.approx(HIGHEST_ENTRY, abs=0.02),
    )
    assert (points >= low).all()
    assert (points <= HIGHEST_ENTRY).all()


def test_the_report_is_json() -> None:
    report = json.loads(json.dumps(fit_mixture(sites(), SIXTEEN, 0).report(), allow_nan=False))
    assert report["iterations"] == len(report["likelihoods"])
    assert sum(report["weights"]) == pytest.approx(1)
