# SPDX-License-Identifier: Apache-2.0
"""Encrypted rounds: read by sites alone, with sites lost on the way; equality: test_equals_one_process.py."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from fed_equality import assert_close, written
from fed_harness import Make, completed, failed, final, ledger
from fed_tamper import losing, watched
from fed_toy import ToyLearner

from medflare.aggregation.weighted_mean import MOST_TOKENS
from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts

ENCRYPTED = {"protection": "he"}
ROUNDED = 1e-5
"""More than half a step for each of a dozen messages in a sum, and fp32's own rounding."""


@pytest.mark.parametrize("rounds", [1, 4])
def test_what_sites_write_at_the_end_is_what_a_plain_run_writes(federation: Make, rounds: int) -> None:
    plain = federation(controller={"num_rounds": rounds})
    run = federation(controller={"num_rounds": rounds, **ENCRYPTED})
    expected, record = completed(plain), completed(run)
    for site in run.sites:
        assert_close(written(run, site), written(plain), ROUNDED)
    assert record.protections == ["he"]
    assert [entry.accepted for entry in record.rounds] == [entry.accepted for entry in expected.rounds]


def test_rounds_with_other_weights_stand_in_sums_of_their_own(federation: Make) -> None:
    controller = {"min_responses": 2, "num_rounds": 3}
    plain = federation(controller=controller, tamper=losing("fit", "site-2"))
    run = federation(controller=controller | ENCRYPTED, tamper=losing("fit", "site-2"))
    completed(plain)
    record = completed(run)
    assert_close(written(run, "site-1"), written(plain), ROUNDED)
    assert [entry.protection["groups"] for entry in record.rounds] == [1, 2, 2]


def test_the_weights_that_sites_scale_by_are_those_that_the_server_divides_by(federation: Make) -> None:
    class Counting(ToyLearner):
        def fit(self, plan: RoundPlan) -> Update:
            update = super().fit(plan)
            update.metrics["tokens"] = 100_010.0 + update.examples  # to four digits, 100,000
            return update

    rule = {"rule_settings": {"weighting": "tokens"}}
    plain, run = (federation(rule=rule, learner=Counting, controller=each) for each in ({}, ENCRYPTED))
    completed(plain)
    record = completed(run)
    assert_close(written(run, "site-1"), written(plain), ROUNDED)
    weighed = sum(100_010 + examples for examples in (16, 20, 24)) / (24 * MOST_TOKENS)
    assert record.rounds[0].protection["weight"] == pytest.approx(weighed, rel=1e-9)


def test_declared_sums_come_back_as_totals(federation: Make) -> None:
    seen: dict[str, State] = {}

    class Noting(ToyLearner):
        def fit(self, plan: RoundPlan) -> Update:
            seen[self.site] = dict(plan.totals)
            return super().fit(plan)

    completed(federation(settings={"sums": True}, controller=ENCRYPTED, learner=Noting))
    assert len(seen) == 3
    for totals in seen.values():
        assert torch.allclose(totals["count"].float(), torch.tensor([16.0, 20.0, 24.0]), atol=1e-4)


def test_the_server_keeps_and_writes_nothing_it_could_read(federation: Make) -> None:
    run = federation(controller=ENCRYPTED)
    completed(run)
    assert not (run.folder / "result").exists()
    first = {name: value for name, value in final(run).items() if not name.startswith("encrypted:")}
    assert first["head.weight"].abs().max() == 0  # as before round 1: the toy adds 0.01 in every step
    sealed = [value for name, value in final(run).items() if name.startswith("encrypted:")]
    assert any(value.dtype == torch.uint8 for value in sealed)


def test_updates_travel_as_ciphertexts_and_the_ledger_says_so(federation: Make) -> None:
    seen: list[set[torch.dtype]] = []

    def look(site: str, tensors: dict[str, Any], facts: Any) -> None:
        seen.append({value.dtype for value in tensors.values()})

    run = federation(controller=ENCRYPTED, tamper=watched("fit", look))
    completed(run)
    assert seen == [{torch.uint8}] * 6
    assert [line.protections for line in ledger(run, "site-1", "fit")] == [["he"]] * 2


def test_a_key_of_another_provision_is_named_before_round_one(federation: Make) -> None:
    run = federation(controller=ENCRYPTED)
    make_contexts(run.root / "site-2" / "startup", ContextParameters())
    record = failed(run, "startup kits of different provisions meet: 'site-2' holds the key")
    assert not record.rounds


def test_a_kit_without_a_context_says_what_to_do(federation: Make) -> None:
    run = federation(controller=ENCRYPTED)
    shutil.rmtree(run.root / "startup")
    failed(run, "was made without keys for homomorphic encryption")
