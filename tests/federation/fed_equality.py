# SPDX-License-Identifier: Apache-2.0
"""FLARE equals one process: the same rounds through controller, messages and executors, and in a plain loop.

`Case` says who trains by which rule, and what protects the updates; test_equals_one_process.py has a table.
`in_flare` starts the run, `in_one_process` trains the same sites without FLARE, `assert_equal` compares the
shared tensors and everything of the record that the plain loop knows too. A real method joins with
`real_learners` and `train`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from fed_harness import SITES, Federation, completed, final
from fed_learner import ADAPTER, SmallLearner
from fed_quadratic import QuadraticLearner
from fed_visits import VisitLearner
from safetensors.torch import load_file

from medflare.aggregation import make_rule
from medflare.aggregation.base import AggregationRule
from medflare.aggregation.capabilities import SamplesClients
from medflare.aggregation.temporal import TemporalResidual
from medflare.core.learner import Learner
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord
from medflare.core.tensors import State
from medflare.data.settings.site import load_site
from medflare.federation.server.controller import TemporalRoundsController
from medflare.federation.server.scorer import SERVER
from medflare.in_process.loop import federate
from medflare.in_process.temporal_loop import federate_visits, visit_by_visit
from medflare.learners.registry import build_learner

SEED = 7


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run.

    Attributes:
        settings: of the rule. learner: who trains, with `site_settings`; a VisitLearner in temporal rounds.
        steps: local ones of each round; the learner's own where None.
        protection: of updates. canary: a round before the first that must leave no trace.
        worker, scorer: where sites and the server train and score, a thread or a process.
        judged: the server scores candidates.
        within: largest difference of a value; 0 for equality to the last bit.
    """

    rule: str
    settings: dict[str, Any] = field(default_factory=dict)
    learner: type[SmallLearner] = QuadraticLearner
    site_settings: dict[str, Any] = field(default_factory=dict)
    rounds: int = 4
    steps: int | None = None
    protection: str = "none"
    canary: bool = False
    worker: str = "thread"
    scorer: str = "thread"
    judged: bool = False
    within: float = 0.0

    @property
    def visits(self) -> int:
        """T of temporal rounds; 0 in rounds of one exchange."""
        counts = self.site_settings.get("counts", {})
        return len(counts["site-1"]) if issubclass(self.learner, VisitLearner) else 0

    @property
    def rounded(self) -> bool:
        """Whether the rule works with losses that sites measured, which leave them rounded."""
        return self.rule in ("drfa", "l_fedavg")

    def __str__(self) -> str:
        """The name of the test."""
        words = [self.learner.__name__.removesuffix("Learner").lower(), self.rule]
        words += [f"{name}={value}" for name, value in self.settings.items()]
        words += [self.protection] * (self.protection != "none") + ["canary"] * self.canary
        words += [f"worker={self.worker}"] * (self.worker != "thread")
        return " ".join(words + [f"scorer={self.scorer}"] * (self.scorer != "thread"))


@dataclass
class Plain:
    """Rounds in one process: the rule as it is at the end; the first state, then that after each exchange."""

    rule: AggregationRule
    states: list[State]

    @property
    def state(self) -> State:
        """At the end."""
        return self.states[-1]

    @property
    def norms(self) -> list[float]:
        """Of each exchange's change of the state."""
        pairs = pairwise(self.states)
        return [
            math.hypot(*(float((new[name] - old[name]).double().norm()) for name in old))
            for old, new in pairs
        ]


def in_flare(case: Case, federation: Any) -> Federation:
    """The run, not started; `federation` is the fixture."""
    run: Federation = federation(
        learner=case.learner,
        settings=case.site_settings,
        rule={"rule": case.rule, "rule_settings": rule_settings(case)},
        worker=case.worker,
        flow_class=TemporalRoundsController if case.visits else None,
        timeout=300,
        controller={
            "num_rounds": case.rounds,
            "seed": SEED,
            "steps": case.steps,
            "protection": case.protection,
            "canary": case.canary,
            "scorer": case.scorer,
            **({"visits": case.visits} if case.visits else {}),
        },
    )
    return run


def in_one_process(case: Case) -> Plain:
    """The same rounds without FLARE. Under masks a rule draws no fewer than three sites."""
    learners = {site: case.learner(case.site_settings, site, SEED) for site in SITES}
    judge = case.learner(case.site_settings, SERVER, SEED) if case.judged else None
    rule = make_rule(case.rule, rule_settings(case))
    least = 3 if case.protection == "masking" else 1
    return train(learners, rule, case.rounds, visits=case.visits, steps=case.steps, judge=judge, least=least)


def train(
    learners: dict[str, Any],
    rule: AggregationRule,
    rounds: int,
    *,
    visits: int = 0,
    steps: int | None = None,
    seed: int = SEED,
    judge: Learner | None = None,
    least: int = 1,
) -> Plain:
    """Rounds in one process; with `visits` each has as many exchanges, by the rule or visit after visit."""
    if rule.capability(SamplesClients):
        rule.sample_clients = partial(rule.sample_clients, min_clients=least)  # type: ignore[attr-defined]
    plain = Plain(rule, [learners[min(learners)].initial_shared()])

    def plan(number: int) -> RoundPlan:
        return RoundPlan(round=number, rounds=rounds * (visits or 1), steps=steps, seed=seed)

    def note(number: int, state: State, updates: Any) -> None:
        plain.states.append({name: value.clone() for name, value in state.items()})

    if isinstance(rule, TemporalResidual):
        federate_visits(learners, rule, rounds, plan, note)
    else:
        make_plan = visit_by_visit(plan, visits) if visits else plan
        federate(learners, rule, rounds * (visits or 1), make_plan, note, judge=judge)
    return plain


def real_learners(run: Federation, seed: int) -> dict[str, Any]:
    """The learners of a run's method and sites, from the same site.yaml, in this process."""
    sites = {site: load_site(run.root / site / "local/site.yaml", site) for site in run.sites}
    return {name: build_learner(run.method, run.settings, site, seed) for name, site in sites.items()}


def rule_settings(case: Case) -> dict[str, Any]:
    return {"visits": case.visits, **case.settings} if case.rule == "temporal" else case.settings


def assert_equal(case: Case, run: Federation) -> tuple[RunRecord, Plain]:
    """Runs both and compares: state, change of each exchange, who was drawn, what the rule reports."""
    record, plain = completed(run), in_one_process(case)
    if case.protection == "he":
        for site in SITES:
            assert_close(written(run, site), plain.state, case.within)
    else:
        state = final(run)
        assert state.keys() == plain.state.keys()
        assert_close(state, plain.state, case.within)
        exchanges = [visit for entry in record.rounds for visit in (entry.exchanges or [entry])]
        norms = [exchange.checks["update_norm"] for exchange in exchanges]
        assert norms == pytest.approx(plain.norms, abs=max(10 * case.within, 1e-6), rel=1e-5)
    assert float(plain.state[ADAPTER].abs().max()) > 0.05, "something is learned"
    last = record.rounds[-1]
    assert last.mean["train_loss" if case.protection == "he" else "val_loss"] > 0
    if (
        case.protection == "none" and not case.within and "draws" not in case.settings
    ):  # no real seconds in it
        report = plain.rule.report()
        assert set(last.rule) == set(report)
        for part, values in report.items():  # losses that a rule probes or has scored leave a site rounded
            assert last.rule[part] == (pytest.approx(values, rel=1e-5) if case.rounded else values)
    if case.protection != "none":
        assert record.protections == [{"masking": "mask", "he": "he"}[case.protection]]
        assert "weights" not in last.rule or case.protection == "he", "nobody can tell what each site counted"
    for entry in record.rounds:
        if "drawn" in entry.rule and not case.visits:
            assert set(entry.rule["drawn"]) == set(entry.accepted)
            assert len(entry.accepted) == 3 or case.protection == "none", "too few to hide among"
        elif not case.visits:
            examples = {
                site: case.learner(case.site_settings, site, SEED).examples["train"] for site in SITES
            }
            assert entry.accepted == examples
    return record, plain


def assert_close(ours: State, theirs: State, within: float) -> None:
    """The same values; `ours` may lack the prefix `adapter.`, as in a PEFT folder."""
    for name, value in theirs.items():
        got = ours[name if name in ours else name.removeprefix("adapter.")]
        assert torch.equal(got, value) if not within else torch.allclose(got, value, rtol=0, atol=within), (
            name
        )


def written(run: Federation, site: str = "") -> State:
    """The tensors of the result's folder, of the server or of a site that decrypts."""
    folder = (run.site_folder(site) if site else run.folder) / "result/adapter"
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
