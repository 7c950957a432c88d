# SPDX-License-Identifier: Apache-2.0
"""A run that lost all its processes at any write goes on to the result that it would have had."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_equality import Case, in_flare
from fed_harness import Federation, Make
from fed_plug import count_writes, interrupted, interrupted_in, resumed
from fed_visits import COUNTS
from safetensors.torch import load_file
from test_equals_one_process import DRAWN, toy, visits
from test_extraction_in_rounds import extraction, notes

from medflare.aggregation import RULES
from medflare.core.tensors import State
from medflare.federation.server import phases

__all__ = ["extraction", "notes"]
EVERY = os.environ.get("FAULTS") == "all" and "FAULTS_PLACES" not in os.environ
"""Whether the plug is pulled at every write, as `make test-faults` does."""
PLACES = int(os.environ.get("FAULTS_PLACES", "2"))
"""At how many writes of a run it is pulled otherwise."""
CASES = [
    toy(rounds=3, steps=2),
    toy("influence", rounds=2, judged=True),
    toy("l_fedavg", settings={"loss_source": "cross"}, within=1e-5),
    toy("fedadam", settings={"lr": 0.1}),
    toy("fedavgm"),
    toy(canary=True, rounds=2),
    Case(rule="scaffold", rounds=3),
    Case(rule="drfa", settings={"m": 2}, rounds=3),
    Case(rule="ddcs", settings=DRAWN, rounds=3),
    Case(rule="importance_sampling", settings={"draws": 2}, rounds=3),
    visits("temporal", COUNTS, {"lr": 0.05}, rounds=2),
    visits("scaffold", COUNTS, {}, rounds=2),
]
COMPRESSED = [
    toy(rounds=3),
    Case(rule="scaffold", rounds=2),
    toy("fedadam", settings={"lr": 0.1}, rounds=2),
    Case(rule="drfa", settings={"m": 2}, rounds=2),
    Case(rule="ddcs", settings=DRAWN, rounds=2),
    visits("temporal", COUNTS, {"lr": 0.05}, rounds=2),
]
"""Under int8 updates with error feedback; all but the first are left to `make test-faults`."""
PROTECTED = [
    toy(rounds=2, protection="masking"),
    toy("fedadam", settings={"lr": 0.1}, rounds=2, protection="masking", canary=True),
    Case(rule="scaffold", rounds=2, protection="masking"),
    visits("temporal", COUNTS, {"lr": 0.05}, rounds=2, protection="masking"),
    toy(rounds=2, protection="he"),
]
FURTHER = [
    Case(rule="ddcs", settings={**DRAWN, "draws": 6}, rounds=2, protection="masking"),
    Case(rule="uniform_selection", settings={"draws": 6}, rounds=2, protection="masking"),
    toy("fedavgm", rounds=2, protection="masking"),
    visits("scaffold", COUNTS, {}, rounds=2, protection="masking"),
]
"""More rules under masks, left to `make test-faults`."""

OTHER_RULES = [
    *(toy(rule, rounds=2) for rule in ("fedavg", "median", "medoid", "geometric_median", "fedyogi")),
    toy("krum", settings={"f": 0}, rounds=2),
    toy("multi_krum", settings={"f": 0, "keep": 2}, rounds=2),
    toy("bulyan", settings={"f": 0}, rounds=2),
    toy("trimmed_mean", settings={"f": 1}, rounds=2),
    Case(rule="fedprox", settings={"mu": 0.3}, rounds=2),
    Case(rule="fedcs", settings={"deadline": 60.0}, rounds=2),
    Case(rule="uniform_selection", settings={"draws": 2}, rounds=2),
    Case(rule="stratified_sampling", settings={"draws": 2}, rounds=2),
    Case(rule="power_of_choice", settings={"clients": 2, "candidates": 3}, rounds=2),
    Case(rule="oort", settings={"clients": 2}, rounds=2),
]
"""The rules of which no case is above: two writes of each, left to `make test-faults`."""


def left_to_faults(cases: list[Case]) -> list[Any]:
    """Cases that only `make test-faults` tries."""
    return [pytest.param(case, id=str(case), marks=pytest.mark.faults) for case in cases]


def tensors(run: Federation) -> State:
    """Every tensor of the result, the server's and the sites'."""
    folders = {"server": run.folder, **{site: run.site_folder(site) for site in run.sites}}
    return {
        f"{name}/{file.relative_to(folder)}:{tensor}": value
        for name, folder in folders.items()
        for file in sorted(folder.glob("result/**/*.safetensors"))
        for tensor, value in load_file(file).items()
    }


def same(ours: State, theirs: State, protection: str) -> bool:
    """Whether both are equal to the last bit; ciphertexts hold new noise each time, of about 1e-8."""
    if protection != "he":
        return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    return ours.keys() == theirs.keys() and all(
        torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-6) for name in ours
    )


def places(writes: int, some: int, every: bool) -> list[int]:
    """The writes at which the plug is pulled: all, or some from the first third to the last."""
    return list(range(1, writes + 1)) if every else [writes * (k + 1) // (some + 1) for k in range(some)]


def check(case: Case, federation: Make, some: int = PLACES, every: bool = EVERY, **controller: Any) -> None:
    """Compare runs in which the plug is pulled at a write with one in which it is not."""

    def start() -> Federation:
        run = in_flare(case, federation)
        run.change(**controller)
        run.controller |= controller
        return run

    check_runs(start, str(case), case.protection, some, every)


def check_runs(
    start: Callable[[], Federation], name: str, protection: str = "none", some: int = 2, every: bool = False
) -> None:
    """Compare runs that `start` makes, with the plug pulled at some writes or at every one, and without."""
    undisturbed = start()
    writes = count_writes(undisturbed)
    expected, pulled = tensors(undisturbed), 0
    assert any("/result/adapter/" in name for name in expected)
    for write in places(len(writes), some, every):
        run = start()
        if not interrupted(run, write):
            continue  # threads write in another order each time, and now and then less often
        again = resumed(run)
        record = again.run()
        if not (run.root / "server/runs/job/run.json").exists():
            assert "there is no run job" in record.reason  # it had not begun: nothing is lost
            continue
        if "is completed" in record.reason:
            continue  # the plug was pulled when all was done
        assert record.status == "completed", (write, record.reason)
        assert same(tensors(again), expected, protection), (write, writes[write - 1])
        pulled += 1
    print(f"{name}: {len(writes)} writes, plug pulled and run gone on with {pulled} times")


@pytest.mark.fault(
    "power cut at a write to a disk",
    phase="any write: {case}",
    result="equal after `resume`",
)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_result_is_that_of_an_undisturbed_run(federation: Make, case: Case) -> None:
    check(case, federation)


@pytest.mark.fault(
    "power cut at a write to a disk", phase="any write: mode async", result="equal after `resume`"
)
def test_an_asynchronous_run_goes_on(federation: Make) -> None:
    """With a buffer for all sites, which are all there in every round."""
    check(toy(rounds=3), federation, mode="async", buffer=3)


@pytest.mark.fault(
    "power cut at a write to a disk",
    phase="any write: {case}, {uplink} with error feedback",
    result="equal after `resume`",
)
@pytest.mark.parametrize(
    ("case", "uplink"),
    [
        pytest.param(COMPRESSED[0], "int8", id="int8"),
        pytest.param(COMPRESSED[0], "int4", id="int4"),
        *(pytest.param(case, "int8", id=f"int8 {case}", marks=pytest.mark.faults) for case in COMPRESSED[1:]),
    ],
)
def test_what_compression_lost_is_carried_on(federation: Make, case: Case, uplink: str) -> None:
    check(case, federation, uplink=uplink, downlink="int8")


@pytest.mark.fault(
    "power cut at a write to a disk",
    phase="any write: {case}",
    result="equal after `resume`; under HE to 1e-6",
)
@pytest.mark.parametrize("case", [*(pytest.param(c, id=str(c)) for c in PROTECTED), *left_to_faults(FURTHER)])
def test_under_a_protection(federation: Make, case: Case) -> None:
    check(case, federation)


@pytest.mark.fault(
    "power cut at a write to a disk", phase="two writes: {case}", result="equal after `resume`"
)
@pytest.mark.parametrize("case", left_to_faults(OTHER_RULES))
def test_every_other_rule_goes_on(federation: Make, case: Case) -> None:
    """Under a simulated clock, because choices of clients by measured seconds differ from run to run."""
    alike = {"seconds_per_example": 1.0, "down": 1e-3, "up": 1e-3}
    check(
        case, federation, every=False, latency_profiles=dict.fromkeys(("site-1", "site-2", "site-3"), alike)
    )


LORA_RULES = {"freeze_a": "freeze_a", "lora_stack": "stack", "lora_product_svd": "factors"}
"""Rules of LoRA's two factors -> what is shared of them; they need an adapter of PEFT's names."""


@pytest.mark.fault(
    "power cut at a write to a disk", phase="two writes: {rule}", result="equal after `resume`"
)
@pytest.mark.parametrize(
    "rule", [pytest.param(rule, id=rule, marks=pytest.mark.faults) for rule in LORA_RULES]
)
def test_every_rule_of_lora_factors_goes_on(extraction: Any, rule: str) -> None:
    check_runs(lambda: extraction({"rule": rule}, {}, sharing=LORA_RULES[rule]), rule)


def test_no_rule_is_left_out() -> None:
    tried = {case.rule for case in [*CASES, *COMPRESSED, *FURTHER, *OTHER_RULES]}
    assert tried | set(LORA_RULES) == set(RULES)


@pytest.mark.fault(
    "a site is suspended when the server dies", phase="training", result="takes part again after `resume`"
)
def test_a_site_that_was_suspended_takes_part_again(
    federation: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(site: str, task: str, message: Any) -> None:
        if (site, task) == ("site-2", "fit"):
            run.done.wait(60)  # until the plug is pulled

    def tamper(site: str, task: str, reply: Any) -> None:
        if task == "initialise":
            run.change(straggler_timeout=0.1)

    rounds = {"num_rounds": 4, "suspend_rounds": 2, "min_responses": 2}
    run = federation(controller=rounds, mislead=silent, tamper=tamper)
    assert interrupted_in(run, monkeypatch, phases, "run_round", call=2)
    again = resumed(run)
    again.mislead = again.tamper = None
    record = again.run()
    assert record.status == "completed", record.reason
    everybody = ["site-1", "site-2", "site-3"]
    assert [sorted(entry.accepted) for entry in record.rounds] == [["site-1", "site-3"], *[everybody] * 3]
