# SPDX-License-Identifier: Apache-2.0
"""What rules ask of training, on an optimiser alone: gradients, control variates, snapshots, local state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from medflare.aggregation import RULES, rule_class
from medflare.aggregation.capabilities import AsksClientTerms
from medflare.core.data_order import drawn
from medflare.core.errors import ConfigError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.learners.client_terms import CLIENT_TERMS, ClientTerms, TermOutput, requested_sums

STEPS = 4


def model(seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def terms_of(net: nn.Module, only: str = "") -> ClientTerms:
    """Terms over everything that is in the state, or over what `only` names."""
    shared = {n: t for n, t in net.state_dict(keep_vars=True).items() if only in n}
    return ClientTerms("site-1", lambda: shared)


def plan(number: int = 0, totals: State | None = None, **hints: Any) -> RoundPlan:
    return RoundPlan(round=number, rounds=3, hints=RoundHints.from_json(hints), totals=totals or {})


def data(step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, generator=generator).to(dtype), torch.randn(8, 2, generator=generator).to(dtype)


def train(
    net: nn.Module,
    optimiser: torch.optim.Optimizer,
    terms: ClientTerms | None = None,
    given: RoundPlan | None = None,
    mu: float = 0.0,
    rates: tuple[float, ...] = (),
) -> TermOutput:
    """STEPS steps; with `mu` the proximal term stands in the loss itself, `rates` are a schedule."""
    start = [p.detach().clone() for p in net.parameters()]
    if terms is not None and given is not None:
        terms.begin(given)
        terms.watch(optimiser, STEPS)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = rates[step] if rates else group["lr"]
        x, y = data(step, next(net.parameters()).dtype)
        loss = (net(x) - y).square().mean()
        if mu:
            pairs = zip(net.parameters(), start, strict=True)
            loss = loss + mu / 2 * torch.stack([(p - s).square().sum() for p, s in pairs]).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
    return terms.finish() if terms is not None else TermOutput()


def optimiser_of(net: nn.Module, kind: str, lr: float = 0.05) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(net.parameters(), lr=lr)
    return torch.optim.AdamW(net.parameters(), lr=lr, weight_decay=0.01, foreach=True)


def same(one: nn.Module, two: nn.Module, tolerance: float = 0.0) -> bool:
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in pairs)


# ---- FedProx -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_the_proximal_term_is_that_of_the_loss(kind: str, mu: float) -> None:
    explicit, hooked = model(), model()
    train(explicit, optimiser_of(explicit, kind), mu=mu)
    metrics = train(hooked, optimiser_of(hooked, kind), terms_of(hooked), plan(fedprox={"mu": mu}))
    assert same(explicit, hooked, 1e-6)
    assert not same(explicit, model(), 1e-3)
    away = [p.detach() - q.detach() for p, q in zip(hooked.parameters(), model().parameters(), strict=True)]
    assert metrics.metrics["drift"] == pytest.approx(float(torch.cat([a.flatten() for a in away]).norm()))


def test_without_mu_nothing_differs_by_a_bit() -> None:
    plain, hooked = model(), model()
    train(plain, optimiser_of(plain, "adamw"))
    metrics = train(hooked, optimiser_of(hooked, "adamw"), terms_of(hooked), plan(fedprox={"mu": 0.0}))
    assert same(plain, hooked)
    assert (metrics.sums, metrics.factor) == ({}, 1.0)


def test_only_shared_parameters_are_pulled() -> None:
    plain, hooked = model(), model()
    (weight,) = [p for n, p in hooked.named_parameters() if n == "3.weight"]
    seen = []
    train(plain, optimiser_of(plain, "sgd"))
    optimiser = optimiser_of(hooked, "sgd")
    terms = terms_of(hooked, "3.weight")
    terms.begin(plan(fedprox={"mu": 5.0}))
    terms.watch(optimiser, 1)
    start = weight.detach().clone()
    weight.data.add_(1.0)
    for parameter in hooked.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for name, parameter in hooked.named_parameters():
        seen += [name] if parameter.grad is not None and parameter.grad.any() else []
    assert seen == ["3.weight"]
    assert torch.allclose(weight.grad, 5.0 * torch.ones_like(start), atol=1e-5)  # type: ignore[arg-type]


def test_what_the_loss_did_not_reach_stays_without_a_gradient() -> None:
    net = model()
    terms, optimiser = terms_of(net), optimiser_of(net, "adamw")
    before = copy.deepcopy(net[0].weight.detach())
    terms.begin(plan(fedprox={"mu": 1.0}, scaffold={"control": "gradients"}))
    terms.watch(optimiser, 1)
    net[3].weight.grad = torch.ones_like(net[3].weight)
    optimiser.step()
    output = terms.finish()
    assert net[0].weight.grad is None
    assert torch.equal(net[0].weight, before)
    assert not output.sums["control.0.weight"].any()
    assert output.sums["control.3.weight"].eq(1).all()


def test_a_bf16_gradient_is_pulled_in_fp32() -> None:
    net = model(dtype=torch.bfloat16)
    terms, optimiser = terms_of(net, "0.weight"), optimiser_of(net, "sgd")
    terms.begin(plan(fedprox={"mu": 1e-2}))
    terms.watch(optimiser, 1)
    start = net[0].weight.detach().float()
    net[0].weight.data.add_(0.25)
    moved = net[0].weight.detach().float() - start
    net[0].weight.grad = torch.ones_like(net[0].weight)
    optimiser.step()
    assert torch.equal(net[0].weight.grad, (1 + 1e-2 * moved).bfloat16())


# ---- SCAFFOLD ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(), (0.02, 0.05, 0.03, 0.0)])
def test_under_sgd_both_estimates_are_the_mean_gradient(rates: tuple[float, ...]) -> None:
    told = {}
    for control in ("gradients", "option_2"):
        net = model()
        totals = {"control.0.weight": torch.full((4, 3), 0.1)}
        given = plan(totals=totals, scaffold={"control": control})
        told[control] = train(net, optimiser_of(net, "sgd"), terms_of(net), given, rates=rates)
    for name, value in told["gradients"].sums.items():
        assert torch.allclose(value, told["option_2"].sums[name], atol=2e-5), name
    assert told["option_2"].metrics["control_lr"] == pytest.approx(sum(rates) / 4 if rates else 0.05)
    assert told["gradients"].metrics["control_shift"] == pytest.approx(0.1 * 12**0.5)


def test_under_adamw_only_the_mean_gradient_has_a_gradients_size() -> None:
    sizes = {}
    for control in ("gradients", "option_2"):
        net = model()
        metrics = train(net, optimiser_of(net, "adamw"), terms_of(net), plan(scaffold={"control": control}))
        sizes[control] = float(torch.cat([v.flatten() for v in metrics.sums.values()]).abs().mean())
    assert sizes["option_2"] > 3 * sizes["gradients"]
    assert sizes["option_2"] == pytest.approx(1, abs=0.5)


def test_a_step_goes_along_g_less_own_plus_server() -> None:
    net, plain = model(), model()
    terms, optimiser = terms_of(net), optimiser_of(net, "sgd")
    train(net, optimiser, terms, plan(0, scaffold={"control": "gradients"}))
    variates = {n: v.clone() for n, v in terms.state().items() if "/own." in n}
    net.load_state_dict(plain.state_dict())
    server = {f"control.{n}": torch.randn(p.shape) for n, p in net.named_parameters()}
    hints = {"scaffold": {"control": "gradients"}, "site_index": 0, "summed": [0]}
    terms.begin(plan(1, totals=server, **hints))
    terms.watch(optimiser, 1)
    x, y = data(9)
    optimiser.zero_grad()
    (net(x) - y).square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in net.named_parameters()}  # type: ignore[union-attr]
    optimiser.step()
    for name, parameter in net.named_parameters():
        before = dict(plain.named_parameters())[name]
        along = gradients[name] - variates[f"terms.scaffold/own.{name}"] + server[f"control.{name}"]
        assert torch.allclose(parameter, before - 0.05 * along, atol=1e-6)
    output = terms.finish()
    change = output.sums["control.0.weight"]
    assert torch.allclose(change, gradients["0.weight"] - variates["terms.scaffold/own.0.weight"], atol=1e-6)


@pytest.mark.parametrize(("summed", "kept"), [([0], True), ([1], False)])
def test_a_change_that_the_server_did_not_add_is_taken_back(summed: list[int], kept: bool) -> None:
    net = model()
    terms = terms_of(net)
    first = train(net, optimiser_of(net, "sgd"), terms, plan(0, scaffold={"control": "gradients"}))
    hints = {"scaffold": {"control": "gradients"}, "site_index": 0, "summed": summed}
    terms.begin(plan(1, **hints))
    variate = terms.state()["terms.scaffold/own.0.weight"]
    assert torch.equal(variate, first.sums["control.0.weight"] if kept else torch.zeros_like(variate))


def test_control_variates_survive_a_restart_and_running_statistics_have_none() -> None:
    net = model()
    terms = terms_of(net)
    train(net, optimiser_of(net, "sgd"), terms, plan(0, scaffold={"control": "gradients"}))
    other = terms_of(net)
    left = other.restore(terms.state() | {"moments": torch.ones(1)})
    assert set(left) == {"moments"}
    kept, expected = other.state(), terms.state()
    assert all(torch.equal(kept[name], expected[name]) for name in expected)
    assert {n for n in expected if "running" in n or "tracked" in n} == set()
    assert set(terms.sums_spec(RoundHints.from_json({"scaffold": {"control": "gradients"}}))) == {
        f"control.{n}" for n, _ in net.named_parameters()
    }


def test_an_older_local_state_forgets_what_came_after() -> None:
    net = model()
    terms = terms_of(net)
    before = {n: t.clone() for n, t in terms.state().items()}
    train(net, optimiser_of(net, "sgd"), terms, plan(0, scaffold={"control": "gradients"}))
    terms.restore(before)
    assert terms.state() == {}


# ---- DRFA --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "step"), [(0.01, 1), (0.25, 1), (0.26, 2), (0.75, 3), (1.0, 4)])
def test_the_snapshot_is_the_model_after_its_share_of_the_steps(share: float, step: int) -> None:
    net, reference = model(), model()
    metrics = train(
        net, optimiser_of(net, "sgd"), terms_of(net), plan(drfa={"share": share, "drawn": {"site-1": 3}})
    )
    start, optimiser = model().state_dict(), optimiser_of(reference, "sgd")
    for number in range(step):
        x, y = data(number)
        optimiser.zero_grad()
        (reference(x) - y).square().mean().backward()
        optimiser.step()
    for name, value in reference.state_dict().items():
        expected = 3 * (value.float() - start[name].float())
        assert torch.allclose(metrics.sums[f"snapshot.{name}"], expected, atol=1e-6), name
    assert (float(metrics.sums["drawn"]), metrics.factor) == (3.0, 3.0)


# ---- all of them -------------------------------------------------------------------------------------------


def test_every_term_has_a_rule_that_asks_and_declares_its_sums() -> None:
    rules = [rule_class(name)() for name in RULES]
    asking = [asks for rule in rules if (asks := rule.capability(AsksClientTerms))]
    assert {name for rule in asking for name in rule.client_terms().to_json()} == set(CLIENT_TERMS)
    for rule in asking:
        net, prefixes = model(), getattr(rule, "auxiliary_sums", ())
        spec = terms_of(net).sums_spec(rule.client_terms())
        assert len(rule.client_terms().model_fields_set) == 1
        assert all(key.startswith(prefixes) for key in spec)
        assert bool(spec) == bool(prefixes)
        metrics = train(net, optimiser_of(net, "sgd"), terms_of(net), plan(**rule.client_terms().to_json()))
        assert {n: (tuple(t.shape), t.dtype) for n, t in metrics.sums.items()} == spec


def test_an_optimiser_is_free_again_after_a_round_and_after_a_broken_one() -> None:
    net, plain = model(), model()
    terms, optimiser = terms_of(net), optimiser_of(net, "sgd")
    terms.begin(plan(fedprox={"mu": 10.0}))
    terms.watch(optimiser, STEPS)
    terms.begin(plan())
    terms.watch(optimiser, STEPS)
    train(net, optimiser)
    train(plain, optimiser_of(plain, "sgd"))
    assert same(net, plain)
    assert terms.finish() == TermOutput()


def test_a_method_that_cannot_do_it_says_so_before_round_one() -> None:
    with pytest.raises(ConfigError, match="rule 'fedprox' asks something of every optimiser step"):
        requested_sums(None, RoundHints.from_json({"fedprox": {"mu": 0.1}}))
    assert requested_sums(None, RoundHints(probe=3)) == {}


def test_a_site_where_nothing_shared_learns_says_so() -> None:
    terms = ClientTerms("site-1", lambda: {"mean": torch.zeros(3)})
    terms.begin(plan())
    with pytest.raises(ConfigError, match="none of them learns here"):
        terms.begin(plan(fedprox={"mu": 0.1}))


def test_rows_of_a_probe_depend_on_the_round_and_are_no_more_than_asked() -> None:
    rows = list(range(50))
    one, two = drawn(rows, 8, 0, "site-1", 1), drawn(rows, 8, 0, "site-1", 2)
    assert one == drawn(rows, 8, 0, "site-1", 1) == sorted(set(one))
    assert (len(one), len(two)) == (8, 8)
    assert one != two
    assert drawn(rows[:3], 8, 0) == rows[:3]
