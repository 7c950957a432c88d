# SPDX-License-Identifier: Apache-2.0
"""What every aggregation rule must do: one row of CASES for each; a new rule joins by adding its row."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_rules as slow
import torch
from documented_rule import documented_rule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from medflare.aggregation import RULES, make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import round_hints
from medflare.aggregation.influence import Influence
from medflare.aggregation.l_fedavg import LossFedAvg
from medflare.core.errors import UpdateError
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.run_state import RunState, load_state, save_state

SITES = ("a", "b", "c", "d", "e", "f", "g")
EXAMPLES = (40, 30, 20, 10, 25, 35, 15)
LOSSES = dict(zip(SITES, (0.9, 1.1, 1.4, 0.7, 1.0, 1.2, 0.8), strict=True))
A, B = "adapter.q.lora_A.weight", "adapter.q.lora_B.weight"


def shapes(*names: str) -> dict[str, tuple[int, ...]]:
    every = {A: (2, 5), B: (6, 2), "norm.weight": (3,), "scale": ()}
    return {name: every[name] for name in (names or every)}


def flat(state: State) -> Tensor:
    return torch.cat([state[name].double().reshape(-1) for name in sorted(state)])


def product(state: State) -> Tensor:
    """What a LoRA state computes with, beside its plain tensors."""
    merged_product = state[B].double() @ state[A].double()
    if f"merged.{A.removeprefix('adapter.')}" in state:
        merged_product = merged_product + (
            state["merged.q.lora_B.weight"].double() @ state["merged.q.lora_A.weight"].double()
        )
    return torch.cat([merged_product.reshape(-1), flat({n: state[n] for n in ("norm.weight", "scale")})])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule and what is true of it.

    Attributes:
        make: a new rule; site k's loss is LOSSES[k] wherever the rule looks for it.
        slow: the reference, on what `view` gives of the sites' states; None where another file has it.
        keeps: identical updates are what all sites have afterwards (not so for adaptive optimisers).
        hostile: one site that sends anything does not pull the result away from the others.
        clips: an enormous update is scaled down to the median norm before it is averaged.
        overflows: fp32 moments cannot hold an update of 1e30, which is refused.
    """

    make: Callable[[], AggregationRule]
    slow: Callable[..., np.ndarray] | None = None
    names: tuple[str, ...] = ()
    view: Callable[[State], Tensor] = flat
    keeps: bool = True
    hostile: bool = False
    clips: bool = False
    overflows: bool = False


def rule(name: str, **given: Any) -> Callable[[], AggregationRule]:
    return lambda: make_rule(name, given)


def scored(made: Influence | LossFedAvg) -> AggregationRule:
    made.set_score(lambda site, state: LOSSES[site])
    return made


CASES = {
    "weighted_mean": Case(make=rule("weighted_mean"), slow=slow.weighted_mean),
    "weighted_mean, tokens": Case(make=rule("weighted_mean", weighting="tokens"), slow=slow.weighted_mean),
    "fedavg": Case(make=rule("fedavg"), slow=slow.weighted_mean),
    "freeze_a": Case(make=rule("freeze_a"), slow=slow.weighted_mean, names=(B, "norm.weight")),
    "lora_stack": Case(make=rule("lora_stack"), slow=slow.weighted_mean, view=product),
    "lora_product_svd": Case(make=rule("lora_product_svd"), view=product),
    "influence": Case(make=lambda: scored(Influence(mode="server")), slow=slow.influence),
    "influence, client": Case(make=rule("influence", mode="client"), slow=slow.weighted_mean),
    "l_fedavg": Case(make=rule("l_fedavg"), slow=slow.l_fedavg),
    "l_fedavg, server": Case(
        make=lambda: scored(LossFedAvg(loss_source="server", loss_metric="nobody's")), slow=slow.l_fedavg
    ),
    "krum": Case(make=rule("krum", allow_unsafe=True), slow=slow.krum, hostile=True),
    "krum, directions": Case(make=rule("krum", allow_unsafe=True, directions=True)),
    "multi_krum": Case(make=rule("multi_krum", allow_unsafe=True), slow=slow.multi_krum, hostile=True),
    "medoid": Case(make=rule("medoid"), slow=slow.medoid, hostile=True),
    "trimmed_mean": Case(make=rule("trimmed_mean", allow_unsafe=True), slow=slow.trimmed_mean, hostile=True),
    "median": Case(make=rule("median"), slow=slow.median, hostile=True),
    "geometric_median": Case(make=rule("geometric_median"), slow=slow.geometric_median, hostile=True),
    "bulyan": Case(make=rule("bulyan", allow_unsafe=True), slow=slow.bulyan, hostile=True),
    "fedavgm": Case(make=rule("fedavgm"), slow=slow.weighted_mean),
    "fedadam": Case(make=rule("fedadam"), slow=slow.fedadam, keeps=False, overflows=True),
    "fedyogi": Case(make=rule("fedyogi"), slow=slow.fedadam, keeps=False, overflows=True),
    "fedprox": Case(make=rule("fedprox"), slow=slow.weighted_mean),
    "scaffold": Case(make=rule("scaffold"), slow=slow.uniform_mean),
    "ddcs": Case(make=rule("ddcs"), slow=slow.weighted_mean),
    "drfa": Case(make=rule("drfa"), slow=slow.uniform_mean),
    "fedcs": Case(make=rule("fedcs"), slow=slow.weighted_mean),
    "importance_sampling": Case(make=rule("importance_sampling"), slow=slow.weighted_mean),
    "uniform_selection": Case(make=rule("uniform_selection"), slow=slow.weighted_mean),
    "stratified_sampling": Case(make=rule("stratified_sampling"), slow=slow.weighted_mean),
    "power_of_choice": Case(make=rule("power_of_choice"), slow=slow.weighted_mean),
    "oort": Case(make=rule("oort"), slow=slow.weighted_mean),
    "temporal": Case(make=rule("temporal"), slow=slow.weighted_mean),
    "temporal, three visits": Case(make=rule("temporal", visits=3), keeps=False),
    "docs/how-to/add-a-rule.md": Case(make=documented_rule),
    **{
        f"{name}, norm_clip": Case(
            make=rule(name, norm_clip="median"),
            slow=reference,
            keeps=keeps,
            overflows=False,
            clips=True,
        )
        for name, reference, keeps in (
            ("weighted_mean", slow.clipped(slow.weighted_mean), True),
            ("l_fedavg", slow.clipped(slow.l_fedavg), True),
            ("fedavgm", slow.clipped(slow.weighted_mean), True),
            ("fedadam", slow.clipped(slow.fedadam), False),
            ("fedprox", slow.clipped(slow.weighted_mean), True),
            ("scaffold", slow.clipped(slow.uniform_mean), True),
            ("temporal", slow.clipped(slow.weighted_mean), True),
            ("ddcs", slow.clipped(slow.weighted_mean), True),
            ("drfa", slow.clipped(slow.uniform_mean), True),
        )
    },
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def tensors(case: Case, seed: int, dtype: torch.dtype = torch.float32) -> State:
    generator = torch.Generator().manual_seed(seed)
    named = shapes(*case.names).items()
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in named}


def update(case: Case, site: str, seed: int, scale: int = 1) -> Update:
    examples = scale * EXAMPLES[SITES.index(site)]
    metrics = {"loss": LOSSES[site], "val_loss": LOSSES[site], "tokens": 100.0 * examples}
    return Update(delta=tensors(case, seed), examples=examples, metrics=metrics)


def updates(case: Case, seed: int = 0, sites: tuple[str, ...] = SITES, scale: int = 1) -> dict[str, Update]:
    return {site: update(case, site, 100 * seed + SITES.index(site) + 1, scale) for site in sites}


def zero(case: Case) -> State:
    return {name: torch.zeros(shape) for name, shape in shapes(*case.names).items()}


def aggregate(rule: AggregationRule, state: State, given: dict[str, Update]) -> State:
    rule.begin(state)
    for site, item in given.items():
        rule.add(site, item)
    return rule.finish()


def after(state: State, item: Update) -> State:
    return {name: value + item.delta[name] for name, value in state.items()}


def close(found: Tensor, expected: Tensor, rtol: float = 1e-5) -> bool:
    return torch.allclose(found, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


# ---- what a rule says of itself ----------------------------------------------------------------------------


def test_every_rule_of_the_table_has_a_row() -> None:
    assert {name.split(",")[0] for name in CASES} >= set(RULES)


def test_facts_are_declared(case: Case) -> None:
    rule_object = case.make()
    assert rule_object.facts.needs in ("sum", "individual")
    assert rule_object.facts.summary.endswith(".")
    assert rule_object.facts.source
    json.dumps(round_hints(rule_object).to_json())


def test_the_report_of_a_round_is_json_and_names_sites_that_took_part(case: Case) -> None:
    rule_object = case.make()
    aggregate(rule_object, zero(case), updates(case))
    report = json.loads(json.dumps(rule_object.report(), allow_nan=False))
    assert set(report.get("weights", {})) <= set(SITES)
    assert sum(report.get("weights", {"all": 1.0}).values()) == pytest.approx(1.0)
    assert all(isinstance(value, float) for value in report.get("checks", {}).values())


# ---- what it computes --------------------------------------------------------------------------------------


def test_identical_updates_are_a_fixed_point(case: Case) -> None:
    state, common = tensors(case, 50), tensors(case, 51)
    alike = {site: update(case, site, 0) for site in SITES}
    for item in alike.values():
        item.delta = common
    new = aggregate(case.make(), state, alike)
    if case.keeps:
        assert close(case.view(new), case.view(after(state, alike["a"])))
    else:
        assert torch.equal((flat(new) - flat(state)).sign(), flat(common).sign())


def test_one_site_is_enough_and_is_followed(case: Case) -> None:
    state, alone = tensors(case, 50), updates(case, sites=("c",))
    new = aggregate(case.make(), state, alone)
    if case.keeps:
        assert close(case.view(new), case.view(after(state, alone["c"])))
    assert torch.isfinite(flat(new)).all()


@given(order=st.permutations(SITES), seed=st.integers(0, 50))
@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("name", CASES)
def test_the_order_of_sites_does_not_matter(name: str, order: list[str], seed: int) -> None:
    case = CASES[name]
    state, given = tensors(case, 50), updates(case, seed)
    straight = aggregate(case.make(), state, given)
    mixed = aggregate(case.make(), state, {site: given[site] for site in order})
    assert close(case.view(mixed), case.view(straight))


def test_only_ratios_of_examples_matter(case: Case) -> None:
    state = tensors(case, 50)
    one, seven = (aggregate(case.make(), state, updates(case, scale=scale)) for scale in (1, 7))
    assert close(case.view(seven), case.view(one))


@given(seed=st.integers(0, 200), present=st.sets(st.sampled_from(SITES[:6]), min_size=4))
@settings(max_examples=10, deadline=None)
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.slow])
def test_a_stream_of_whoever_takes_part_equals_the_slow_reference(name: str, seed: int, present: set) -> None:
    case = CASES[name]
    given = updates(case, seed, tuple(sorted({*present, "g"})))
    rows = np.stack([case.view(after(zero(case), item)).numpy() for item in given.values()])
    n = np.array([item.examples for item in given.values()], dtype=float)
    expected = torch.from_numpy(case.slow(rows, n, np.array([LOSSES[site] for site in given])))
    assert close(case.view(aggregate(case.make(), zero(case), given)), expected, rtol=2e-5)


def test_an_abandoned_round_leaves_nothing_behind(case: Case) -> None:
    state, given = tensors(case, 50), updates(case, 2, SITES[:5])
    rule = case.make()
    rule.begin(state)
    for site, item in updates(case, 9).items():
        rule.add(site, item)
    again, fresh = aggregate(rule, state, given), aggregate(case.make(), state, given)
    assert all(torch.equal(again[name], fresh[name]) for name in fresh)


def test_nothing_added_is_an_error(case: Case) -> None:
    rule = case.make()
    rule.begin(zero(case))
    with pytest.raises(ValueError, match="no update"):
        rule.finish()


# ---- what may be odd about the numbers ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_new_state_has_the_dtypes_of_the_old_one(case: Case, dtype: torch.dtype) -> None:
    state = tensors(case, 50, dtype)
    new = aggregate(case.make(), state, updates(case))
    assert {value.dtype for value in new.values()} == {dtype}
    assert {n: v.shape for n, v in new.items() if n in state} == {n: v.shape for n, v in state.items()}


def test_updates_in_bf16_are_accumulated_in_fp32(case: Case) -> None:
    state, given = tensors(case, 50), updates(case)
    for item in given.values():
        item.delta = {name: value.bfloat16() for name, value in item.delta.items()}
    half = aggregate(case.make(), state, given)
    for item in given.values():
        item.delta = {name: value.float() for name, value in item.delta.items()}
    assert close(case.view(half), case.view(aggregate(case.make(), state, given)))


@pytest.mark.parametrize("size", [1e30, -1e6])
def test_an_enormous_update_makes_nothing_infinite_and_fools_no_robust_rule(case: Case, size: float) -> None:
    state, given = zero(case), updates(case)
    honest = torch.stack([flat(item.delta) for site, item in given.items() if site != "b"])
    given["b"].delta = {name: size * value.sign() for name, value in given["b"].delta.items()}
    if case.overflows and size > 1e19:
        with pytest.raises(UpdateError, match="second moment of"):
            aggregate(case.make(), state, given)
        return
    new = aggregate(case.make(), state, given)
    assert torch.isfinite(flat(new)).all()
    if case.clips and case.keeps:
        assert flat(new).norm() <= 1.01 * flat_norms(updates(case)).max(), "as one site of seven"
    if case.hostile:
        radius = (honest - honest.mean(0)).norm(dim=1).max()
        assert (flat(new) - honest.mean(0)).norm() <= 1.5 * radius


def flat_norms(given: dict[str, Update]) -> Tensor:
    return torch.stack([flat(item.delta).norm() for item in given.values()])


def test_a_nan_is_rejected_before_the_rule_sees_it(case: Case) -> None:
    state, given = tensors(case, 50), updates(case)
    spec = {name: (tuple(value.shape), value.dtype) for name, value in state.items()}
    aggregator = ValidatingAggregator()
    aggregator.rule = case.make()
    aggregator.expect(spec, {}, dict(zip(SITES, EXAMPLES, strict=True)))
    aggregator.begin(0, state, SITES)
    given["b"].delta["norm.weight"][1] = float("nan")
    for site, item in given.items():
        facts = {"examples": item.examples, "metrics": item.metrics}
        reason = aggregator.accept(site, 0, facts, item.delta)
        assert reason == (None if site != "b" else "update: 'norm.weight' has values that are not finite.")
    expected = aggregate(case.make(), state, {site: item for site, item in given.items() if site != "b"})
    found, _, checks = aggregator.finish()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert checks["update_norm"] > 0


def test_a_rule_goes_on_after_a_restart_as_if_nothing_had_happened(case: Case, tmp_path: Path) -> None:
    state, rule = tensors(case, 50), case.make()
    middle = aggregate(rule, state, updates(case, 1))
    save_state(tmp_path, RunState(exchanges_done=1, shared=middle, rule=rule.state_dict()))
    straight = aggregate(rule, middle, updates(case, 2))
    kept, again = load_state(tmp_path), case.make()
    again.load_state_dict(kept.rule)
    resumed = aggregate(again, kept.shared, updates(case, 2))
    assert all(torch.equal(resumed[name], straight[name]) for name in straight)
