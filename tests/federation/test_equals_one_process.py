# SPDX-License-Identifier: Apache-2.0
"""Every kind of run in FLARE is the run in one process: to the last bit, under a protection to rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fed_equality import Case, assert_close, assert_equal, in_flare, in_one_process, written
from fed_harness import final
from fed_learner import ADAPTER
from fed_toy import ToyLearner
from fed_visits import COUNTS, NOBODY_HAS, ONE_LACKS, POOLING_RULES, REGULAR, VisitLearner

from medflare.reporting.page import write_page

QUANTISED = {"masking": 1e-6, "he": 1e-5}
"""Largest difference of a mean of three sites, by protection: its declared error and fp32's own rounding."""
DRFA_END = {"m": 2, "step": 0.05, "snapshot": "end"}
DRAWN = {"draws": 2, "floor": 1.0}
"""No two runs see the same seconds, so DDCS draws at φ = 1; by a simulated clock: test_latencies_in_rounds"""


def toy(rule: str = "weighted_mean", /, **more: Any) -> Case:
    """A case of sites with local state; to the declared error of its protection."""
    within = QUANTISED.get(more.get("protection", "none"), 0.0)
    return Case(rule=rule, learner=ToyLearner, **{"rounds": 2, "within": within, **more})


ROUNDS = [
    toy(rounds=4, steps=2),
    toy(worker="process"),
    toy("influence", rounds=3, judged=True),
    toy("influence", rounds=3, judged=True, scorer="process"),
    toy("l_fedavg", settings={"loss_source": "cross"}, within=1e-5),
    *(Case(rule="fedprox", settings={"mu": mu}) for mu in (0.0, 0.3)),
    Case(rule="scaffold"),
    Case(rule="scaffold", settings={"control": "option_2"}),
    Case(rule="scaffold", rounds=3, canary=True),
    Case(rule="drfa", settings={"m": 2}),
    Case(rule="drfa", settings=DRFA_END),
    Case(rule="ddcs", settings=DRAWN),
    Case(rule="uniform_selection", settings={"draws": 2}),
    Case(rule="importance_sampling", settings={"draws": 2}),
]
PROTECTED = [
    *(toy(settings={"weighting": w}, protection="masking") for w in ("examples", "uniform")),
    toy("fedadam", settings={"lr": 0.1}, protection="masking"),
    toy("fedavgm", protection="masking"),
    *(toy(canary=True, protection=name) for name in QUANTISED),
    *(toy(site_settings={"counter": True}, protection=name) for name in QUANTISED),
    Case(rule="fedprox", protection="masking", within=1e-5),
    Case(rule="scaffold", protection="masking", within=1e-5),
    Case(rule="drfa", settings=DRFA_END, protection="masking", within=1e-5),
    Case(rule="ddcs", settings={"draws": 5, "floor": 1.0}, protection="masking", within=1e-4),
]


@pytest.mark.parametrize("case", [*ROUNDS, *PROTECTED], ids=str)
def test_rounds(federation, case: Case) -> None:
    run = in_flare(case, federation)
    record, plain = assert_equal(case, run)
    if case.protection == "none":
        assert_close(written(run), final(run), 0.0)
    if case.site_settings.get("counter"):
        assert plain.state["norm.steps"].tolist() == [60], "a counter passes the bound of weights"
    if case.protection == "masking" and not case.canary:
        assert record.rounds[-1].protection["sites"] == list(run.sites)
        assert "mask" in write_page(run.folder / "run.json", gallery=0).read_text(encoding="utf-8")
    if case.rule == "drfa":
        assert record.rounds[-1].rule["lambda"] == pytest.approx(plain.rule.report()["lambda"], abs=1e-4)
        assert all(len(entry.rule["probed"]) == 2 for entry in record.rounds)
    if case.settings.get("draws") == 2:
        assert [sum(entry.rule["drawn"].values()) for entry in record.rounds] == [2] * case.rounds


# ---- temporal rounds ---------------------------------------------------------------------------------------


def visits(rule: str, counts: dict[str, list[int]], settings: dict[str, Any], **more: Any) -> Case:
    """A case of sites whose patients come back."""
    return Case(rule=rule, learner=VisitLearner, site_settings={"counts": counts}, settings=settings, **more)


TEMPORAL: list[dict[str, Any]] = [
    {"lr": 0.05},
    {"lr": 0.05, "alpha_mode": "sigmoid"},
    {"lr": 0.05, "alpha_mode": "beta_softmax", "embedding": "days"},
    {"alpha_mode": "constant", "alpha": 0.4, "weighting": "uniform"},
]
VISITS = {
    "every visit": [visits("temporal", REGULAR, settings, rounds=3) for settings in TEMPORAL]
    + [visits("fedadam", REGULAR, {"lr": 0.1}, rounds=3)],
    "two lack": [visits("temporal", COUNTS, settings, rounds=3) for settings in TEMPORAL]
    + [visits("temporal", COUNTS, {"lr": 0.05}, rounds=3, canary=True)],
    "nobody has": [visits("temporal", NOBODY_HAS, {"lr": 0.05}, rounds=3)],
    "one visit": [visits("temporal", {site: [sum(n)] for site, n in COUNTS.items()}, {}, rounds=3)],
}
for _name, _counts in {"one lacks": ONE_LACKS, "two lack": COUNTS, "nobody has": NOBODY_HAS}.items():
    _cases = [visits(rule, _counts, settings, rounds=2) for rule, settings in POOLING_RULES]
    VISITS[_name] = VISITS.get(_name, []) + _cases
    if _name != "two lack":
        # under masks no fewer than three sites are drawn; with 24 draws they are in any case
        masked = [
            replace(
                one, protection="masking", within=1e-4, settings={"m": 24, "step": 1e-3, "snapshot": "end"}
            )
            if one.rule == "drfa"
            else replace(one, protection="masking", within=1e-4)
            for one in _cases
        ]
        VISITS[_name] += [*masked, replace(_cases[0], protection="he", within=1e-5)]
for _name, _counts in {"every visit": REGULAR, "two lack": COUNTS, "nobody has": NOBODY_HAS}.items():
    _case = visits("temporal", _counts, TEMPORAL[2], rounds=3)
    VISITS[_name].append(replace(_case, protection="masking", within=1e-5))


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{name} {case}") for name in VISITS for case in VISITS[name]]
)
def test_rounds_of_visits(federation, case: Case) -> None:
    run = in_flare(case, federation)
    record, plain = assert_equal(case, run)
    counts = case.site_settings["counts"]
    assert [len(entry.exchanges) for entry in record.rounds] == [case.visits] * case.rounds
    if case.protection == "none" and case.rule != "drfa":
        for number, visit in enumerate(record.rounds[0].exchanges):
            assert visit.accepted == {site: counts[site][number] for site in counts}
    examples = [sum(column) for column in zip(*counts.values(), strict=True)]
    if case.protection == "masking":
        weights = [visit.protection["weight"] for visit in record.rounds[0].exchanges]
        assert [bool(weight) for weight in weights] == [bool(count) for count in examples]
        assert case.rule not in ("temporal", "weighted_mean") or weights == examples
    if case.rule == "temporal" and case.visits > 1:
        assert float(plain.state[ADAPTER].abs().max()) > 0.3
        report = plain.rule.report()
        assert record.rounds[-1].rule["alpha"] == pytest.approx(report["alpha"], abs=1e-5)
        assert record.rounds[-1].rule.get("slopes") == pytest.approx(report.get("slopes"), abs=1e-4)
    if counts is NOBODY_HAS and case.protection != "he":
        assert [entry.exchanges[1].checks["update_norm"] for entry in record.rounds] == [0.0] * case.rounds
        assert case.rule != "temporal" or all(entry.rule["beta"][2] == 0 for entry in record.rounds)


# ---- what makes the comparisons above worth something ------------------------------------------------------


def test_with_one_visit_temporal_rounds_are_fedavg_to_the_last_bit() -> None:
    (case,) = VISITS["one visit"]
    assert_close(in_one_process(replace(case, rule="fedavg")).state, in_one_process(case).state, 0.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (toy("influence", judged=True), toy()),
        (Case(rule="scaffold"), Case(rule="fedavg")),
        (Case(rule="fedprox", settings={"mu": 0.3}), Case(rule="fedavg")),
        (toy(steps=2), toy(steps=3)),
    ],
    ids=str,
)
def test_rules_differ(one: Case, other: Case) -> None:
    """Else equality could be that of runs that heed no rule."""
    assert not torch.equal(in_one_process(one).state[ADAPTER], in_one_process(other).state[ADAPTER])
