# SPDX-License-Identifier: Apache-2.0
"""Encrypted rounds: equal to plain ones, read by sites alone, with sites lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fed_harness import Federation
from fed_toy import ToyLearner
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from safetensors.torch import load_file

from medflare.core.plan import RoundPlan
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.federation.server.run_state import load_state
from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts

ENCRYPTED = {"protection": "he"}
ROUNDED = 1e-5
"""More than half a step for each of a dozen messages in a sum, and fp32's own rounding."""

Make = Callable[..., Federation]


@pytest.fixture
def encrypted(federation: Make) -> Make:
    """Federations whose sites have one key, and whose server has none."""

    def make(**options: object) -> Federation:
        options["controller"] = {**ENCRYPTED, **options.get("controller", {})}  # type: ignore[dict-item]
        run = federation(**options)
        make_contexts(run.root / "startup", ContextParameters())
        return run

    return make


def adapter(folder: Path) -> State:
    return load_file(folder / "result" / "adapter" / "adapter_model.safetensors")


def lost_in_round(task: str, *sites: str, number: int) -> Callable[[str, str, Shareable], Shareable | None]:
    seen: dict[str, int] = {}

    def tamper(site: str, name: str, reply: Shareable) -> Shareable | None:
        if name == task:
            seen[site] = seen.get(site, 0) + 1
            if site in sites and seen[site] == number + 1:
                return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return None

    return tamper


@pytest.mark.parametrize("rounds", [1, 4])
def test_what_sites_write_at_the_end_is_what_a_plain_run_writes(
    federation: Make, encrypted: Make, rounds: int
) -> None:
    plain, run = federation(controller={"num_rounds": rounds}), encrypted(controller={"num_rounds": rounds})
    assert plain.run().status == "completed"
    record = run.run()
    assert record.status == "completed", record.reason
    theirs = adapter(plain.folder)
    for site in run.sites:
        ours = adapter(run.site_folder(site))
        assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=ROUNDED) for name in theirs)
    assert record.protections == ["he"]
    assert [entry.accepted for entry in record.rounds] == [entry.accepted for entry in plain.record().rounds]


def test_rounds_with_other_weights_stand_in_sums_of_their_own(federation: Make, encrypted: Make) -> None:
    settings = {"min_responses": 2, "num_rounds": 3}
    lose = lost_in_round("fit", "site-2", number=1)
    plain, run = (
        federation(controller=settings, tamper=lose),
        encrypted(controller=settings, tamper=lost_in_round("fit", "site-2", number=1)),
    )
    assert plain.run().status == "completed"
    record = run.run()
    assert record.status == "completed", record.reason
    theirs, ours = adapter(plain.folder), adapter(run.site_folder("site-1"))
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=ROUNDED) for name in theirs)
    assert [entry.protection["groups"] for entry in record.rounds] == [1, 2, 2]


def test_declared_sums_come_back_as_totals(
    federation: Make, encrypted: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, State] = {}
    fit = ToyLearner.fit

    def noting(learner: ToyLearner, plan: RoundPlan) -> Update:
        seen[learner.site] = dict(plan.totals)
        return fit(learner, plan)

    monkeypatch.setattr(ToyLearner, "fit", noting)
    assert federation(toy={"sums": True}).run().status == "completed"
    theirs = dict(seen)
    seen.clear()
    assert encrypted(toy={"sums": True}).run().status == "completed"
    assert theirs["site-1"]["count"].tolist() == [16, 20, 24]
    assert all(
        torch.allclose(seen[site]["count"].float(), theirs[site]["count"], atol=1e-4) for site in theirs
    )


def test_the_server_keeps_and_writes_nothing_it_could_read(encrypted: Make) -> None:
    run = encrypted()
    assert run.run().status == "completed"
    assert not (run.folder / "result").exists()
    kept = load_state(run.folder / "state").shared
    first = {name: value for name, value in kept.items() if not name.startswith("encrypted:")}
    assert first["head.weight"].abs().max() == 0  # as before round 1: the toy adds 0.01 in every step
    assert any(value.dtype == torch.uint8 for name, value in kept.items() if name.startswith("encrypted:"))


def test_updates_travel_as_ciphertexts_and_the_ledger_says_so(encrypted: Make) -> None:
    seen: list[State] = []

    def look(site: str, task: str, reply: Shareable) -> None:
        if task == "fit":
            seen.append(dict(from_shareable(reply).data))

    run = encrypted(tamper=look)
    assert run.run().status == "completed"
    assert len(seen) == 6
    assert all({value.dtype for value in tensors.values()} == {torch.uint8} for tensors in seen)
    text = (run.site_folder("site-1") / "egress.jsonl").read_text()
    fits = [line for line in map(json.loads, text.splitlines()) if line.get("task") == "fit"]
    assert fits
    assert all(line["protections"] == ["he"] for line in fits)


def test_a_key_of_another_provision_is_named_before_round_one(encrypted: Make) -> None:
    run = encrypted()
    make_contexts(run.root / "site-2" / "startup", ContextParameters())
    record = run.run()
    assert record.status == "failed"
    assert "startup kits of different provisions meet: 'site-2' holds the key" in record.reason
    assert not record.rounds


def test_a_kit_without_a_context_says_what_to_do(federation: Make) -> None:
    record = federation(controller=ENCRYPTED).run()
    assert record.status == "failed"
    assert "was made without keys for homomorphic encryption" in record.reason


def test_a_canary_leaves_no_trace(federation: Make, encrypted: Make) -> None:
    plain, run = federation(), encrypted(controller={"canary": True})
    assert plain.run().status == "completed"
    assert run.run().status == "completed"
    theirs, ours = adapter(plain.folder), adapter(run.site_folder("site-1"))
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=ROUNDED) for name in theirs)


def test_counters_pass_the_bound_of_weights(federation: Make, encrypted: Make) -> None:
    plain, run = federation(toy={"counter": True}), encrypted(toy={"counter": True})
    assert plain.run().status == "completed"
    record = run.run()
    assert record.status == "completed", record.reason
    theirs = load_file(plain.folder / "result" / "adapter" / "report_generator.safetensors")["norm.steps"]
    ours = load_file(run.site_folder("site-3") / "result" / "adapter" / "report_generator.safetensors")
    assert theirs.tolist() == ours["norm.steps"].tolist() == [60]
