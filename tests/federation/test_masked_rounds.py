# SPDX-License-Identifier: Apache-2.0
"""Secure sums in the rounds: equal to plain ones, with sites lost in every phase, and never looked into."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import Federation, completed, final
from nvflare.apis.dxo import from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from medflare.core.tensors import State
from medflare.federation.server.run_state import load_state
from medflare.reporting.page import write_page

FIVE = tuple(f"site-{k}" for k in range(1, 6))
MASKED = {"protection": "masking"}
QUANTISED = 1e-6
"""More than the declared error of a mean of three to five sites, and fp32's own rounding."""

Make = Callable[..., Federation]


def same(ours: State, theirs: State) -> bool:
    return all(torch.allclose(ours[name], theirs[name], rtol=0, atol=QUANTISED) for name in theirs)


def losing(task: str, *lost: str, number: int = 1) -> Callable[[str, str, Shareable], Shareable | None]:
    """Sites that do not get through with one task of one round."""
    seen: dict[tuple[str, str], int] = {}

    def tamper(site: str, name: str, reply: Shareable) -> Shareable | None:
        seen[site, name] = seen.get((site, name), 0) + 1
        drop = name == task and site in lost and seen[site, name] == number + 1
        return make_reply(ReturnCode.EXECUTION_EXCEPTION) if drop else None

    return tamper


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"rule": "weighted_mean", "rule_settings": {"weighting": "uniform"}},
        {"rule": "fedadam", "rule_settings": {"lr": 0.1}},
        {"rule": "fedavgm"},
    ],
    ids=["mean", "uniform", "fedadam", "fedavgm"],
)
def test_a_masked_run_equals_the_plain_one(federation: Make, rule: dict[str, Any]) -> None:
    plain, masked = federation(rule=rule), federation(rule=rule, controller=MASKED)
    completed(plain)
    record = completed(masked)
    assert same(final(masked), final(plain))
    assert record.protections == ["mask"]
    assert record.rounds[-1].protection["sites"] == list(masked.sites)
    assert record.rounds[-1].accepted == completed_examples(plain)
    assert "all sites" not in json.dumps(record.rounds[-1].rule)
    assert "mask" in write_page(masked.folder / "run.json", gallery=0).read_text(encoding="utf-8")


def completed_examples(run: Federation) -> dict[str, int]:
    return run.record().rounds[-1].accepted


def test_declared_sums_are_summed_unseen_too(federation: Make) -> None:
    plain = federation(toy={"sums": True})
    masked = federation(toy={"sums": True}, controller=MASKED)
    completed(plain)
    completed(masked)
    theirs = load_state(plain.folder / "state").totals["count"]
    assert torch.allclose(load_state(masked.folder / "state").totals["count"].float(), theirs, atol=1e-6)


def test_a_canary_is_opened_and_thrown_away(federation: Make) -> None:
    plain, masked = federation(), federation(controller={**MASKED, "canary": True})
    completed(plain)
    completed(masked)
    assert same(final(masked), final(plain))


@pytest.mark.parametrize("lost", [("site-2",), ("site-2", "site-5")], ids=["1 of 5", "2 of 5"])
@pytest.mark.parametrize("task", ["keys", "shares", "fit"])
def test_who_is_lost_before_the_sum_is_left_out_of_it(
    federation: Make, task: str, lost: tuple[str, ...]
) -> None:
    options = {"min_responses": 3, "num_rounds": 2}
    plain = federation(sites=FIVE, controller=options, tamper=losing("fit", *lost))
    masked = federation(sites=FIVE, controller={**options, **MASKED}, tamper=losing(task, *lost))
    completed(plain)
    record = completed(masked)
    assert same(final(masked), final(plain))
    assert set(record.rounds[-1].absent) == set(lost)
    assert set(record.rounds[-1].accepted) == set(FIVE) - set(lost)


@pytest.mark.parametrize("lost", [("site-2",), ("site-2", "site-5")], ids=["1 of 5", "2 of 5"])
@pytest.mark.parametrize("task", ["confirm", "reveal"])
def test_who_is_lost_after_it_sent_stays_in_the_sum(
    federation: Make, task: str, lost: tuple[str, ...]
) -> None:
    options = {"min_responses": 3}
    plain = federation(sites=FIVE, controller=options)
    masked = federation(sites=FIVE, controller={**options, **MASKED}, tamper=losing(task, *lost))
    completed(plain)
    record = completed(masked)
    assert same(final(masked), final(plain))
    assert set(record.rounds[-1].accepted) == set(FIVE)
    assert set(record.rounds[-1].protection["lost"]) >= set(lost)


@pytest.mark.parametrize("task", ["keys", "shares", "fit", "confirm", "reveal"])
def test_three_of_five_lost_end_the_run_with_their_names(federation: Make, task: str) -> None:
    lost = ("site-1", "site-3", "site-4")
    strict = {"min_responses": 2, "protection_settings": {"max_lost_rounds": 0}, **MASKED}
    run = federation(sites=FIVE, controller=strict, tamper=losing(task, *lost))
    record = run.run()
    assert record.status == "failed"
    assert all(site in record.reason for site in lost)
    assert "3 are needed" in record.reason or "3 needed" in record.reason
    assert load_state(run.folder / "state").rounds_done == 1


def test_the_server_sees_neither_an_update_nor_its_weight(federation: Make) -> None:
    seen: list[tuple[dict[str, Any], State]] = []

    def look(site: str, task: str, reply: Shareable) -> None:
        if task == "fit":
            dxo = from_shareable(reply)
            seen.append((dxo.meta["medflare_reply"]["facts"], dict(dxo.data)))

    run = federation(controller=MASKED, tamper=look)
    completed(run)
    assert len(seen) == 6
    for facts, tensors in seen:
        assert set(facts) == {"metrics", "seconds", "secure_sum"}
        assert set(tensors) == {"masked:narrow", "masked:wide"}
        assert tensors["masked:narrow"].float().abs().median() > 2**24


def test_the_ledger_says_that_updates_were_masked(federation: Make) -> None:
    run = federation(controller=MASKED)
    completed(run)
    lines = [
        json.loads(line) for line in (run.site_folder("site-1") / "egress.jsonl").read_text().splitlines()
    ]
    fits = [line for line in lines if line.get("task") == "fit"]
    assert fits
    assert all(line["protections"] == ["mask"] for line in fits)
    assert {line["task"] for line in lines if "task" in line} >= {"keys", "shares", "confirm", "reveal"}


def test_an_update_beyond_the_bound_stays_at_its_site(federation: Make) -> None:
    settings = {"protection_settings": {"bound": 1e-3}, "min_responses": 3}
    run = federation(controller={**MASKED, **settings})
    record = run.run()
    assert record.status == "failed"
    assert "has a value beyond the bound of 0.001" in record.reason


def test_two_sites_are_too_few_for_a_secure_sum(federation: Make) -> None:
    record = federation(sites=("site-1", "site-2"), controller=MASKED).run()
    assert record.status == "failed"
    assert "policy asks for 3 or more" in record.reason


def test_a_threshold_that_is_no_majority_is_refused(federation: Make) -> None:
    record = federation(sites=FIVE, controller={**MASKED, "protection_settings": {"threshold": 2}}).run()
    assert record.status == "failed"
    assert "threshold is 2 of 5 sites; expected 3 to 5" in record.reason


def test_secrets_are_on_no_disk(federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, real = list[bytes](), os.urandom

    def noting(size: int) -> bytes:
        found = real(size)
        if size == 32:
            seeds.append(found)
        return found

    monkeypatch.setattr(os, "urandom", noting)
    run = federation(controller=MASKED)
    completed(run)
    assert len(seeds) >= 6  # a self-mask of each site in each round
    kept = [path.read_bytes() for path in run.root.rglob("*") if path.is_file()]
    assert any(b"secure_sum" in content for content in kept)
    for seed in seeds:
        written = (seed, seed.hex().encode(), base64.b64encode(seed))
        assert not any(form in content for form in written for content in kept)


def test_counters_pass_the_bound_of_weights_under_masks(federation: Make) -> None:
    run = federation(toy={"counter": True}, controller=MASKED)
    completed(run)
    assert final(run)["norm.steps"].tolist() == [60]


@pytest.mark.parametrize(("bits", "kind"), [(16, torch.int16), (32, torch.int32)])
def test_a_masked_value_takes_the_bytes_the_job_chooses(
    federation: Make, bits: int, kind: torch.dtype
) -> None:
    seen: list[State] = []

    def look(site: str, task: str, reply: Shareable) -> None:
        if task == "fit":
            seen.append(dict(from_shareable(reply).data))

    run = federation(controller={**MASKED, "protection_settings": {"bits": bits}}, tamper=look)
    record = completed(run)
    assert {tensors["masked:narrow"].dtype for tensors in seen} == {kind}
    sent = sum(value.numel() * value.element_size() for value in seen[0].values())
    assert record.expected_bytes_per_direction == sent == record.rounds[-1].traffic["site-1"].sent
