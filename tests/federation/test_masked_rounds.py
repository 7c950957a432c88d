# SPDX-License-Identifier: Apache-2.0
"""Secure sums in the rounds, with sites lost in every phase, and never looked into.

Equality with rounds in one process is in test_equals_one_process.py.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_equality import assert_close
from fed_harness import Make, completed, failed, final, ledger
from fed_plug import resumed
from fed_tamper import in_round, losing, together, watched
from nvflare.apis.shareable import Shareable

from medflare.core import plugins
from medflare.core.errors import ConfigError
from medflare.core.tensors import State
from medflare.federation.server.run_state import load_state
from plugin_packages import example_package

FIVE = tuple(f"site-{k}" for k in range(1, 6))
MASKED = {"protection": "masking"}
QUANTISED = 1e-6
"""More than the declared error of a mean of three to five sites, and fp32's own rounding."""


def test_declared_sums_are_summed_unseen_too(federation: Make) -> None:
    run = federation(settings={"sums": True}, controller=MASKED)
    completed(run)
    totals = load_state(run.state).totals["count"].float()
    assert torch.allclose(totals, torch.tensor([16.0, 20.0, 24.0]), atol=1e-6)


def test_a_protection_of_a_package_hides_updates_where_it_is_admitted(
    federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = {"protection": "masking_of_five", "num_rounds": 1}
    with example_package(tmp_path, monkeypatch):
        with pytest.raises(ConfigError, match="medflare-example, which is installed and not admitted"):
            federation(sites=FIVE, controller=controller)
        monkeypatch.setenv(plugins.VARIABLE, "medflare-example")
        run = federation(sites=FIVE, controller=controller)
        assert completed(run).protections == ["mask"]
        assert [line.protections for line in ledger(run, "site-1", "fit")] == [["mask"]]
        failed(federation(sites=FIVE[:4], controller=controller), "5")
    plain = federation(sites=FIVE, controller={"num_rounds": 1})
    completed(plain)
    assert_close(final(run), final(plain), QUANTISED)


@pytest.mark.fault("sites {lost} of five are lost", phase="masks: {task}", result="the sum of the others")
@pytest.mark.parametrize("lost", [("site-2",), ("site-2", "site-5")], ids=["1 of 5", "2 of 5"])
@pytest.mark.parametrize("task", ["keys", "shares", "fit"])
def test_who_is_lost_before_the_sum_is_left_out_of_it(
    federation: Make, task: str, lost: tuple[str, ...]
) -> None:
    options = {"min_responses": 3, "num_rounds": 2}
    plain = federation(sites=FIVE, controller=options, tamper=losing("fit", *lost))
    masked = federation(
        sites=FIVE, controller={**options, **MASKED}, tamper=losing(task, *lost, number=in_round(task, 1))
    )
    completed(plain)
    record = completed(masked)
    assert_close(final(masked), final(plain), QUANTISED)
    assert set(record.rounds[-1].absent) == set(lost)
    assert set(record.rounds[-1].accepted) == set(FIVE) - set(lost)


@pytest.mark.fault("sites {lost} of five are lost", phase="masks: {task}", result="the sum of all five")
@pytest.mark.parametrize("lost", [("site-2",), ("site-2", "site-5")], ids=["1 of 5", "2 of 5"])
@pytest.mark.parametrize("task", ["confirm", "reveal"])
def test_who_is_lost_after_it_sent_stays_in_the_sum(
    federation: Make, task: str, lost: tuple[str, ...]
) -> None:
    options = {"min_responses": 3}
    plain = federation(sites=FIVE, controller=options)
    masked = federation(
        sites=FIVE, controller={**options, **MASKED}, tamper=losing(task, *lost, number=in_round(task, 1))
    )
    completed(plain)
    record = completed(masked)
    assert_close(final(masked), final(plain), QUANTISED)
    assert set(record.rounds[-1].accepted) == set(FIVE)
    assert set(record.rounds[-1].protection["lost"]) >= set(lost)


@pytest.mark.fault(
    "three of five sites are lost", phase="masks: {task}", result="ends by name; last state is kept"
)
@pytest.mark.parametrize("task", ["keys", "shares", "fit", "confirm", "reveal"])
def test_three_of_five_lost_end_the_run_with_their_names(federation: Make, task: str) -> None:
    lost = ("site-1", "site-3", "site-4")
    strict = {"min_responses": 2, "protection_settings": {"max_lost_rounds": 0}, **MASKED}
    run = federation(sites=FIVE, controller=strict, tamper=losing(task, *lost, number=in_round(task, 1)))
    record = failed(run, *lost)
    assert "3 are needed" in record.reason or "3 needed" in record.reason
    assert load_state(run.state).exchanges_done == 1


@pytest.mark.parametrize(("bits", "dtype"), [(16, torch.int16), (32, torch.int32)])
def test_the_server_sees_neither_an_update_nor_its_weight(
    federation: Make, bits: int, dtype: torch.dtype
) -> None:
    seen: dict[str, list[tuple[State, dict[str, Any]]]] = {"fit": [], "evaluate": [], "finish": []}
    looks = [
        watched(task, lambda site, tensors, facts, here=here: here.append((tensors, facts)))
        for task, here in seen.items()
    ]
    run = federation(
        controller={**MASKED, "protection_settings": {"bits": bits}},
        tamper=together(*looks),
    )
    record = completed(run)
    assert {task: len(here) for task, here in seen.items()} == {"fit": 6, "evaluate": 6, "finish": 3}
    for tensors, facts in seen["fit"]:
        assert set(facts) == {"metrics", "seconds", "secure_sum"}
        assert set(tensors) == {"masked:narrow", "masked:wide"}
        assert tensors["masked:narrow"].dtype == dtype
        assert tensors["masked:narrow"].float().abs().median() > 2.0 ** (bits - 8)
    sent = {
        task: sum(value.numel() * value.element_size() for value in here[0][0].values())
        for task, here in seen.items()
    }
    assert record.expected_bytes_per_direction == sent["fit"]
    assert [entry.traffic["site-2"].sent for entry in record.rounds] == [
        sent["fit"] + sent["evaluate"],
        sent["fit"] + sent["evaluate"] + sent["finish"],
    ]


def test_the_ledger_says_that_updates_were_masked(federation: Make) -> None:
    run = federation(controller=MASKED)
    completed(run)
    assert [line.protections for line in ledger(run, "site-1", "fit")] == [["mask"]] * 2
    assert [line.protections for line in ledger(run, "site-1", "evaluate", "finish")] == [["mask"]] * 3
    assert {line.task for line in ledger(run, "site-1")} >= {"keys", "shares", "confirm", "reveal"}


def test_secrets_are_on_no_disk(federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, real = list[bytes](), os.urandom

    def noting(size: int) -> bytes:
        made = real(size)
        if size == 32:
            seeds.append(made)
        return made

    monkeypatch.setattr(os, "urandom", noting)
    run = federation(controller=MASKED)
    completed(run)
    assert len(seeds) >= 6  # a self-mask of each site in each round
    kept = [path.read_bytes() for path in run.root.rglob("*") if path.is_file()]
    assert any(b"secure_sum" in content for content in kept)
    for seed in seeds:
        written = (seed, seed.hex().encode(), base64.b64encode(seed))
        assert not any(form in content for form in written for content in kept)


@pytest.mark.fault(
    "too few shares come to open a sum", phase="masks: reveal", result="repeated over its own sites"
)
def test_a_sum_that_was_lost_late_is_repeated_over_its_own_sites(federation: Make) -> None:
    """Round 0 loses site 4 before it sends, and site 1's shares: too few of three are left to open it."""
    early, late = losing("fit", "site-4", number=0), losing("reveal", "site-1", number=0)
    run = federation(
        sites=FIVE[:4],
        controller={**MASKED, "min_responses": 3, "num_rounds": 3},
        tamper=together(early, late),
    )
    record = completed(run)
    assert [len(entry.accepted) for entry in record.rounds] == [0, 3, 4]
    assert "repeated over its own sites" in record.rounds[1].absent["site-4"]


@pytest.mark.fault(
    "the server dies after sites gave their shares",
    phase="masks: reveal",
    result="the sum is repeated over its own sites",
)
@pytest.mark.parametrize("after", [False, True], ids=["within the round", "after it was lost"])
def test_a_server_that_died_while_a_sum_was_opened_repeats_it_over_its_own_sites(
    federation: Make, after: bool
) -> None:
    """Site 4 is not in round 1's sum; then sites gave their shares, and no process got the sum."""
    run = federation(
        sites=FIVE[:4],
        controller={**MASKED, "min_responses": 3, "num_rounds": 4, "evaluate_every": 0},
        timeout=120,
    )

    def pull(site: str, task: str, reply: Shareable) -> None:
        number = reply.get_header("current_round")
        if task == ("keys" if after else "reveal") and number == 1 + after:
            run.abort.trigger(True)
            run.done.wait(60)  # no answer arrives before the process is dead

    early, late = losing("fit", "site-4", number=1), losing("reveal", "site-1", number=1)
    run.tamper = together(early, late, pull) if after else together(early, pull)
    assert run.run().status == "stopped"
    again = resumed(run)
    again.tamper = None
    record = completed(again)
    assert [len(entry.accepted) for entry in record.rounds] == ([4, 0, 3, 4] if after else [4, 3, 4, 4])
    assert "repeated over its own sites" in record.rounds[1 + after].absent["site-4"]
