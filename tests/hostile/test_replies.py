# SPDX-License-Identifier: Apache-2.0
"""Replies that no honest site sends: they cost their site its part, in words, and nobody else anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import SITES, Federation
from lying_server import REPLY
from lying_site import Lie, claiming, failing, lying, without
from nvflare.apis.dxo import DXO, DataKind
from nvflare.apis.shareable import Shareable

from medflare.egress.failures import Failure, clean_text
from medflare.federation.flare_messages import read_reply

LIAR, HONEST = "site-2", ["site-1", "site-3"]
Make = Callable[..., Federation]


def run_with(federation: Make, lies: dict[str, Lie], **options: Any) -> tuple[Federation, Any]:
    controller = {"min_responses": 2, **options.pop("controller", {})}
    run = federation(controller=controller, tamper=lying(LIAR, lies), **options)
    return run, run.run()


def describing(**changes: Any) -> Lie:
    """Return the lie that describes the site otherwise."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"]["describe"] = {**reply["facts"]["describe"], **changes}

    return lie


def whole(facts: Any) -> Lie:
    """Return the lie that replaces all facts."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"] = facts

    return lie


def numbered(number: Any) -> Lie:
    """Return the lie that answers for another round."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["round"] = number

    return lie


def instead(message: Callable[[], Shareable]) -> Lie:
    """Return the lie that sends another message."""
    return lambda reply, tensors: message()


def nothing() -> Shareable:
    return Shareable()


def no_facts() -> Shareable:
    return DXO(DataKind.APP_DEFINED, data={}, meta={REPLY: None}).to_shareable()


def lists() -> Shareable:
    meta = {REPLY: {"round": 0, "facts": {"examples": 3, "metrics": {}, "seconds": 1.0}}}
    return DXO(DataKind.WEIGHT_DIFF, data={"w": [1.0]}, meta=meta).to_shareable()


FIT: list[tuple[Lie, str]] = [
    (without("metrics"), "'metrics' is missing"),
    (without("seconds"), "'seconds' is missing"),
    (claiming(seconds=float("nan")), "'seconds' is nan"),
    (claiming(seconds="soon"), "'seconds' is 'soon'"),
    (claiming(examples=True), "'examples' is True"),
    (claiming(examples=-3), "'examples' is -3"),
    (claiming(metrics=["loss"]), "'metrics' is a list"),
    (claiming(metrics={"loss": "low"}), "'metrics.loss"),
    (claiming(metrics={f"m{i}": 0.0 for i in range(1000)}), "1,000 metrics, expected at most 400"),
    (claiming(metrics={"\x1b[2Jloss": 0.0}), "a metric is called"),
    (claiming(factor=float("inf")), "'factor' is inf"),
    (claiming(surprise=1), "'surprise' is no field of it"),
    (whole([]), "facts are a list"),
    (numbered(0.5), "round 0.5"),
    (numbered(7), "late: reply of round 8"),
    (failing(code=99, text="a new kind"), "E40 the site reports E99, which this version does not know"),
    (failing(code="many", text="x"), "E40 the site reports no number"),
    (failing(code=31, text=None, round="x"), "E31"),
    (instead(nothing), "unreadable reply"),
    (instead(no_facts), "unreadable reply"),
    (instead(lists), "expected a dense tensor"),
]


@pytest.mark.parametrize(("lie", "reason"), FIT)
def test_a_malformed_update_costs_its_site_the_round(federation: Make, lie: Lie, reason: str) -> None:
    run, record = run_with(federation, {"fit": lie}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    assert sorted(record.rounds[0].accepted) == HONEST
    assert reason in record.rounds[0].absent[LIAR]
    assert run.flow.roster.suspended == {}, "it has answered, so it is asked again"


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (without("describe"), "'describe' is missing"),
        (without("shared"), "'shared' is missing"),
        (claiming(shared={"w": [[2], "nn"]}), "dtype 'nn'"),
        (claiming(shared={"w": [[2**40, 2**40], "float32"]}), "a tensor of more than"),
        (describing(backbone="toy"), "describe.backbone"),
        (describing(examples={"train": -5}), "the count"),
        (describing(export={"a": "\x1b[2J"}), "control characters"),
        (describing(backbone={"name": "toy", "fingerprint": "f9"}), "fingerprint of site-2 is f9, of site-1"),
        (claiming(shared={"w": [[2], "float32"]}), "shared tensor"),
        (claiming(method="another"), "method of site-2"),
    ],
)
def test_a_site_that_does_not_fit_is_left_out_of_the_run(federation: Make, lie: Lie, reason: str) -> None:
    _run, record = run_with(federation, {"prepare": lie}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    assert sorted(record.rounds[0].accepted) == HONEST
    assert reason in record.rounds[0].absent[LIAR]
    assert sorted(record.sites) == HONEST


def test_the_first_site_by_name_decides_nothing(federation: Make) -> None:
    lie = describing(backbone={"name": "evil", "fingerprint": "f9"})
    run = federation(controller={"min_responses": 2}, tamper=lying("site-1", {"prepare": lie}))
    record = run.run()
    assert record.status == "completed", record.reason
    assert "fingerprint of site-1 is f9, of site-2 it is f0" in record.rounds[0].absent["site-1"]


def test_a_tie_is_decided_by_nobody(federation: Make) -> None:
    lie = describing(backbone={"name": "toy", "fingerprint": "f9"})
    run = federation(
        sites=("site-1", "site-2"), controller={"min_responses": 1}, tamper=lying("site-1", {"prepare": lie})
    )
    record = run.run()
    assert record.status == "failed"
    assert "the sites cannot train together: backbone fingerprint of" in record.reason


def test_without_a_quorum_that_agrees_the_run_ends_as_before(federation: Make) -> None:
    lie = describing(backbone={"name": "toy", "fingerprint": "f9"})
    record = federation(tamper=lying(LIAR, {"prepare": lie})).run()
    assert record.status == "failed"
    assert "fingerprint of site-2 is f9, of site-1 it is f0" in record.reason


@pytest.mark.parametrize("lie", [without("seconds"), failing(code=99), instead(nothing)])
def test_first_values_come_from_the_first_site_that_has_any(federation: Make, lie: Lie) -> None:
    run = federation(controller={"min_responses": 2}, tamper=lying("site-1", {"initialise": lie}))
    record = run.run()
    assert record.status == "completed", record.reason
    assert all(len(entry.accepted) == 3 for entry in record.rounds)


EVALUATION: dict[str, Any] = {
    "site": LIAR,
    "role": "participant",
    "adapter": "generic",
    "split": "test",
    "studies": 3,
    "metrics": {"loss": {"value": 0.5, "low": 0.4, "high": 0.6}},
    "predictions": "predictions.jsonl",
}


def measured(**changes: Any) -> Lie:
    return claiming(evaluations=[{**EVALUATION, **changes}])


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (without("seconds"), "'seconds' is missing"),
        (without("evaluations"), "'evaluations' is missing"),
        (measured(site="site-1"), "it holds a test of 'site-1', expected tests of 'site-2' only"),
        (measured(predictions="../../../server/job/run.json"), "evaluations.0.predictions"),
        (measured(predictions="/etc/passwd"), "evaluations.0.predictions"),
        (measured(metrics={"loss": {"value": "x", "low": 0, "high": 0}}), "evaluations.0.metrics.loss.value"),
        (measured(metrics={"loss": {"value": 0.5, "low": None, "high": 0.6}}), "an interval has one end"),
        (
            measured(metrics={"loss": {"value": None, "low": None, "high": None}}),
            "evaluations.0.metrics.loss",
        ),
        (measured(skipped_metrics={"bleu": "\x1b[2J"}), "expected a plain text"),
        (claiming(evaluations=[EVALUATION] * 5000), "'evaluations' is a list"),
    ],
)
def test_a_malformed_final_test_costs_its_site_the_test(federation: Make, lie: Lie, reason: str) -> None:
    _run, record = run_with(federation, {"finish": lie}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    assert [item.site for item in record.evaluations] == HONEST
    assert f"no final test at {LIAR}" in record.reason
    assert reason in record.reason


def test_a_final_test_of_one_patient_has_no_interval(federation: Make) -> None:
    alone = measured(metrics={"loss": {"value": 0.5, "low": None, "high": None}})
    _run, record = run_with(federation, {"finish": alone}, controller={"num_rounds": 1})
    (tested,) = [item for item in record.evaluations if item.site == LIAR]
    assert (tested.metrics["loss"].value, tested.metrics["loss"].interval) == (0.5, None)
    assert record.reason == ""


@pytest.mark.parametrize("lie", [without("metrics"), claiming(metrics={"loss": [1]}), failing(code=77)])
def test_a_malformed_validation_costs_its_site_the_validation(federation: Make, lie: Lie) -> None:
    _, record = run_with(federation, {"evaluate": lie}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    assert len(record.rounds[0].accepted) == 3
    assert "val_loss" not in record.rounds[0].metrics[LIAR]


@pytest.mark.parametrize("task", ["keys", "shares", "confirm", "reveal", "fit"])
def test_a_malformed_step_of_a_secure_sum_costs_its_site_the_round(federation: Make, task: str) -> None:
    lie = claiming(secure_sum=["x"])
    _run, record = run_with(
        federation,
        {task: lie},
        controller={"num_rounds": 1, "protection": "masking"},
        sites=(*SITES, "site-4"),
    )
    assert record.status == "completed", record.reason
    assert set(record.rounds[0].accepted) >= {"site-1", "site-3", "site-4"}


def test_five_megabytes_of_terminal_escapes_become_a_short_plain_reason(federation: Make) -> None:
    text = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202ered\x00" * 300_000
    run, record = run_with(federation, {"fit": failing(code=20, text=text)}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    reason = record.rounds[0].absent[LIAR]
    assert reason.startswith("E20 ")
    assert len(reason) < 2100
    assert reason.isprintable()
    for file in (run.folder / "run.json", run.folder / "progress.jsonl"):
        assert file.stat().st_size < 200_000
        assert "\\u001b" not in file.read_text()


@pytest.mark.parametrize("message", [None, 3, {}, {"medflare_failure": None}, {"medflare_failure": []}])
def test_reading_a_reply_never_raises(message: Any) -> None:
    assert read_reply(message).failure is not None


@pytest.mark.parametrize(
    "failure", [{}, {"code": None}, {"code": 2.5, "text": 3}, {"code": 10**30, "text": []}]
)
def test_a_failure_of_any_form_is_a_failure(failure: dict[str, Any]) -> None:
    assert int(Failure.from_json(failure).code) == 40


def test_clean_text_keeps_what_people_write() -> None:
    text = "site.yaml: 2 settings cannot be used:\n  Größe: é ü 漢字 → 5 %"
    assert clean_text(text) == text
    assert clean_text("a\ud800b\u2066c") == "abc"


def test_a_rule_that_fails_on_one_update_loses_that_update_only(
    federation: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = federation(controller={"min_responses": 2, "num_rounds": 1})
    add = run.aggregator.rule.add

    def breaking(site: str, update: Any) -> None:
        if site == LIAR:
            raise RuntimeError("out of memory")
        add(site, update)

    monkeypatch.setattr(run.aggregator.rule, "add", breaking)
    record = run.run()
    assert record.status == "completed", record.reason
    assert sorted(record.rounds[0].accepted) == HONEST
    assert "RuntimeError: out of memory" in record.rounds[0].absent[LIAR]


def test_not_a_number_stays_out_of_the_record_and_does_not_cost_the_round(federation: Make) -> None:
    lie = claiming(metrics={"loss": float("nan"), "other": 1.0})
    _, record = run_with(federation, {"fit": lie}, controller={"num_rounds": 1})
    assert record.status == "completed", record.reason
    assert set(record.rounds[0].accepted) == set(SITES)
    assert record.rounds[0].metrics[LIAR] == {
        "train_other": 1.0,
        "val_loss": pytest.approx(record.rounds[0].metrics[LIAR]["val_loss"]),
    }
    assert torch.isfinite(torch.tensor(record.rounds[0].metrics[LIAR]["train_other"]))


FOUR = ("site-1", "site-2", "site-3", "site-4")


@pytest.mark.parametrize("task", ["prepare", "fit", "evaluate", "finish"])
def test_with_three_honest_sites_no_setting_is_needed(federation: Any, task: str) -> None:
    """The default quorum is all but one of four sites or more: one site ends no run."""

    def broken(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        reply["facts"].clear()

    run = federation(sites=FOUR, tamper=lying("site-2", {task: broken}))
    record = run.run()
    assert record.status == "completed", record.reason
    assert all(set(FOUR) - {"site-2"} <= set(entry.accepted) for entry in record.rounds)
