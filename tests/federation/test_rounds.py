# SPDX-License-Identifier: Apache-2.0
"""Whole runs in one process: what a run leaves, and what each fault costs."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
import torch
from fed_clock import ExchangeClock
from fed_harness import changed, completed
from fed_toy import ADAPTER, ToyLearner
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from safetensors.torch import load_file

from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.plan import RoundPlan
from medflare.federation.peft_folder import PeftFolder
from medflare.federation.server.run_state import load_state
from medflare.in_process.loop import federate
from medflare.wire.files import load_tensors

ALL = ["site-1", "site-2", "site-3"]
TWO_OF_THREE = {"min_responses": 2}


def accepted(record: Any) -> list[list[str]]:
    return [sorted(entry.accepted) for entry in record.rounds]


def final(run: Any, name: str = "adapter") -> dict[str, torch.Tensor]:
    folder = run.folder / "result" / name
    inside = load_file(folder / "adapter_model.safetensors")
    return {f"adapter.{k}": v for k, v in inside.items()} | load_file(folder / "report_generator.safetensors")


def only(site: str, **settings: Any) -> dict[str, Any]:
    return {"sites": {site: settings}}


# ---- a run without faults ---------------------------------------------------------------------------------


def test_run_json_is_complete(federation) -> None:
    run = federation()
    record = run.run()
    assert (record.status, record.method, record.job) == ("completed", "toy", "toy"), record.reason
    assert accepted(record) == [ALL, ALL]
    assert sorted(record.sites) == ALL
    assert record.sites["site-1"].fingerprint == "f0"
    assert record.sites["site-2"].examples == {"train": 20, "val": 20, "test": 20}
    assert record.parameters == {"adapter": 4, "head": 6}
    assert {"nvflare", "torch", "medflare"} <= set(record.versions)
    assert record.configuration["controller"]["num_rounds"] == 2
    for entry in record.rounds:
        assert {"train_loss", "val_loss"} <= set(entry.mean)
        assert set(entry.metrics["site-3"]) >= {"train_loss", "val_loss"}
        assert entry.checks["update_norm"] > 0
        assert entry.seconds > 0
    assert [item.site for item in record.evaluations] == ALL


def test_sites_keep_their_predictions_and_the_record_points_to_them(federation) -> None:
    run = federation()
    record = run.run()
    paths = [run.folder / str(item.predictions) for item in record.evaluations]
    assert [path.read_text().split()[0] for path in paths] == ALL


def test_run_equals_the_plain_loop_to_the_last_bit(federation) -> None:
    run = federation(controller={"num_rounds": 4, "seed": 7, "steps": 2})
    run.run()
    learners = {site: ToyLearner({}, site, 7) for site in ALL}
    expected = federate(learners, WeightedMean(), 4, lambda r: RoundPlan(round=r, rounds=4, steps=2, seed=7))
    got = final(run)
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def test_initial_state_of_the_first_site_reaches_all(federation) -> None:
    sent: dict[str, torch.Tensor] = {}
    run = federation(controller={"num_rounds": 1})
    for executor in run.executors.values():
        inner = executor.execute

        def watch(task, message, ctx, abort, inner=inner):
            if task == "fit":
                sent[ctx.get_identity_name()] = dict(from_shareable(message).data)[ADAPTER].clone()
            return inner(task, message, ctx, abort)

        executor.execute = watch
    run.run()
    assert all(torch.equal(sent[site], ToyLearner({}, "site-1", 0).start[None]) for site in ALL)


def test_totals_of_sums_come_back_with_the_next_plan(federation) -> None:
    run = federation(toy={"sums": True}, controller={"num_rounds": 2})
    seen = []
    original = ToyLearner.fit

    def fit(self, plan):
        seen.append((plan.round, {name: value.tolist() for name, value in plan.totals.items()}))
        return original(self, plan)

    ToyLearner.fit = fit
    try:
        run.run()
    finally:
        ToyLearner.fit = original
    assert [totals for number, totals in seen if number == 0] == [{}] * 3
    assert [totals for number, totals in seen if number == 1] == [{"count": [16.0, 20.0, 24.0]}] * 3


def test_a_plan_tells_whose_sums_are_in_its_totals(federation, monkeypatch) -> None:
    toy = {"sums": True} | only("site-2", bad={"0": "nan"})
    seen, original = [], ToyLearner.fit

    def fit(self, plan):
        seen.append((plan.round, list(plan.hints.summed)))
        return original(self, plan)

    monkeypatch.setattr(ToyLearner, "fit", fit)
    federation(toy=toy, controller=TWO_OF_THREE | {"num_rounds": 2}).run()
    assert [summed for number, summed in seen if number == 0] == [[]] * 3
    assert [summed for number, summed in seen if number == 1] == [[0, 2]] * 3


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_equal_the_sum_of_tensor_sizes(federation, dtype: str, size: int) -> None:
    run = federation(controller={"num_rounds": 2, "evaluate_every": 2, "uplink": dtype, "downlink": dtype})
    record = run.run()
    message = (4 + 6) * size
    assert record.expected_bytes_per_direction == message
    first, last = (entry.traffic for entry in record.rounds)
    assert (first["site-2"].sent, first["site-2"].received) == (message, message)
    assert first["site-1"].sent == 2 * message, "the initial state came from site-1"
    assert (last["site-3"].sent, last["site-3"].received) == (message, 3 * message), "fit, evaluate, finish"


def test_bf16_on_the_wire_is_accumulated_in_fp32(federation) -> None:
    kinds = []

    def look(site, task, reply):
        if task == "fit":
            kinds.extend(value.dtype for value in from_shareable(reply).data.values())

    run = federation(controller={"num_rounds": 1, "uplink": "bfloat16"}, tamper=look)
    run.run()
    assert set(kinds) == {torch.bfloat16}
    state = load_state(run.folder / "state").shared
    assert {value.dtype for value in state.values()} == {torch.float32}


def test_best_and_final_are_both_kept(federation) -> None:
    run = federation(controller={"num_rounds": 3, "best_mode": "max"})
    record = run.run()
    losses = [entry.mean["val_loss"] for entry in record.rounds]
    assert record.best_round == losses.index(max(losses)) == 0
    assert not torch.equal(final(run, "best")[ADAPTER], final(run)[ADAPTER])
    assert torch.equal(final(run)[ADAPTER], load_state(run.folder / "state").shared[ADAPTER])
    assert record.artefacts == {"final": "result/adapter", "best": "result/best"}


def test_run_state_is_written_after_every_round(federation) -> None:
    run = federation(toy={"sums": True})
    run.run()
    state = load_state(run.folder / "state")
    assert state.rounds_done == 2
    assert state.values["roster"]["sites"] == ALL
    assert state.totals["count"].tolist() == [16.0, 20.0, 24.0]


def test_canary_is_measured_and_leaves_no_trace(federation) -> None:
    plain, canary = federation(), federation(controller={"canary": True})
    plain.run()
    record = canary.run()
    assert all(torch.equal(final(plain)[name], final(canary)[name]) for name in final(plain))
    assert len(record.rounds) == 2
    events = [json.loads(line) for line in (canary.folder / "progress.jsonl").read_text().splitlines()]
    seen = {e["site"]: e for e in events if e["phase"] == "canary"}
    assert sorted(seen) == ALL
    assert seen["site-1"]["bytes_sent"] == 40
    assert seen["site-1"]["seconds"] is not None


# ---- faults at sites --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", "not finite"),
        ("missing", "missing tensor 'head.weight'"),
        ("heavy", "weight 1000000"),
        ("shape", "E21"),
        ("extra", "E21"),
    ],
)
def test_a_bad_update_costs_the_site_its_round_and_is_named(federation, kind: str, reason: str) -> None:
    run = federation(controller=TWO_OF_THREE, toy=only("site-2", bad={"0": kind}))
    record = run.run()
    assert accepted(record) == [["site-1", "site-3"], ALL]
    assert reason in record.rounds[0].absent["site-2"]
    assert record.status == "completed"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data.update(patients=torch.zeros(2)), "unexpected tensor 'patients'"),
        (lambda data: data.update({ADAPTER: torch.zeros(9)}), "shape (9,), expected (1, 4)"),
        (lambda data: data.update({ADAPTER: torch.zeros(1, 4, dtype=torch.int64)}), "dtype torch.int64"),
    ],
)
def test_what_is_broken_on_the_way_is_rejected_by_the_server(federation, change, reason: str) -> None:
    def tamper(site, task, reply):
        if (site, task) == ("site-2", "fit"):
            change(from_shareable(reply).data)

    record = federation(controller=TWO_OF_THREE | {"num_rounds": 1}, tamper=tamper).run()
    assert accepted(record) == [["site-1", "site-3"]]
    assert reason in record.rounds[0].absent["site-2"]


def test_quorum_counts_accepted_updates_not_replies(federation) -> None:
    toy = {"sites": {"site-2": {"bad": {"1": "nan"}}, "site-3": {"raises": {"1": "boom"}}}}
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 3}, toy=toy)
    record = run.run()
    assert record.status == "failed"
    assert accepted(record) == [ALL, ["site-1"]]
    assert "round 1: 1 accepted, 2 needed" in record.reason
    assert "site-2: " in record.reason
    assert "site-3: " in record.reason
    assert run.fatal
    assert torch.equal(final(run)[ADAPTER], load_state(run.folder / "state").shared[ADAPTER])


def test_a_result_that_cannot_be_written_is_a_failed_run_with_a_record(federation, monkeypatch) -> None:
    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(PeftFolder, "write", full)
    run = federation(controller={"evaluate_every": 0})
    record = run.run()
    assert (record.status, record.reason) == ("failed", "OSError: no space left on device")
    assert run.fatal
    assert load_state(run.folder / "state").rounds_done == 2


def test_all_sites_are_required_by_default(federation) -> None:
    record = federation(toy=only("site-3", raises={"0": "boom"})).run()
    assert record.status == "failed"
    assert " accepted, 3 needed" in record.reason


def test_an_error_says_class_and_place_but_no_message(federation) -> None:
    toy = {"sites": {"site-1": {"raises": {"0": "KeyError"}}, "site-2": {"raises": {"0": "DataError"}}}}
    run = federation(controller={"min_responses": 1, "num_rounds": 1}, toy=toy)
    absent = run.run().rounds[0].absent
    assert absent["site-1"].startswith("E40 KeyError in _misbehave")
    assert absent["site-2"].startswith("E3 DataError")
    assert "Doe" not in (run.folder / "run.json").read_text() + (run.folder / "progress.jsonl").read_text()
    assert "Doe" in (run.site_folder("site-2") / "worker/worker.log").read_text()


def test_fingerprint_mismatch_stops_before_round_one_and_names_both(federation) -> None:
    record = federation(toy=only("site-2", fingerprint="f1")).run()
    assert (record.status, record.rounds) == ("failed", [])
    assert "fingerprint of site-2 is f1, of site-1 it is f0" in record.reason
    assert record.artefacts == {}


def test_different_shared_tensors_stop_before_round_one(federation) -> None:
    record = federation(toy=only("site-3", width=5)).run()
    assert "of site-3 is [[1, 5], 'float32'], of site-1 it is [[1, 4], 'float32']" in record.reason


def test_a_hanging_site_meets_its_deadline_and_the_others_go_on(federation) -> None:
    def hurry(tensors: dict[str, Any], words: dict[str, Any]) -> None:
        words["deadline"] = 0.5 if words["round"] == 0 else words["deadline"]

    toy = only("site-1", hang={"0": 60})
    run = federation(controller=TWO_OF_THREE, toy=toy, mislead=changed("fit", hurry, "site-1"))
    started = time.monotonic()
    record = run.run()
    assert accepted(record) == [["site-2", "site-3"], ALL]
    assert record.rounds[0].absent["site-1"].startswith("E31")
    assert time.monotonic() - started < 30


def test_a_silent_site_is_suspended_and_then_selected_again(federation) -> None:
    back = threading.Event()

    def silent(site: str, task: str, message: Shareable) -> None:
        if (site, task) == ("site-2", "fit"):
            back.wait(60)

    def tamper(site: str, task: str, reply: Shareable) -> None:
        if task == "initialise":
            run.change(straggler_timeout=0.1)
        elif (task, reply.get_header("current_round")) == ("fit", 1):
            run.change(straggler_timeout=60.0)
            back.set()

    controller = TWO_OF_THREE | {"num_rounds": 3, "suspend_rounds": 1}
    run = federation(controller=controller, mislead=silent, tamper=tamper)
    record = completed(run)
    assert "no reply within 0.1 s of the quorum" in record.rounds[0].absent["site-2"]
    assert record.rounds[1].absent["site-2"].startswith("suspended until round 2")
    assert accepted(record) == [["site-1", "site-3"], ["site-1", "site-3"], ALL]
    for entry in record.rounds:
        assert sorted([*entry.accepted, *entry.absent]) == ALL


def test_a_site_that_never_answers_is_in_every_record(federation, clock: ExchangeClock) -> None:
    clock.gone = {"site-3"}
    record = federation(controller=TWO_OF_THREE | {"evaluate_every": 0}, dead=("site-3",)).run()
    assert record.status == "completed", record.reason
    assert all("prepare failed" in entry.absent["site-3"] for entry in record.rounds)


def test_a_late_reply_of_an_old_round_is_refused(federation) -> None:
    old: dict[str, Any] = {}

    def replay(site, task, reply):
        """site-2 answers round 1 with its answer to round 0."""
        if (site, task) == ("site-2", "fit"):
            return old.setdefault("reply", reply)
        return None

    record = federation(controller=TWO_OF_THREE, tamper=replay).run()
    assert accepted(record) == [ALL, ["site-1", "site-3"]]
    assert record.rounds[1].absent["site-2"] == "late: reply of round 0 in round 1"


def test_an_aborted_job_is_recorded_as_stopped(federation) -> None:
    def stop(site: str, task: str, message: Shareable) -> None:
        if task == "fit":
            run.abort.trigger(True)

    run = federation(toy={"hang": {"0": 60}}, mislead=stop)
    record = run.run()
    assert record.status == "stopped"
    assert sorted(record.rounds[0].absent) == ALL


# ---- the worker process -----------------------------------------------------------------------------------


def test_a_killed_worker_costs_one_round_and_its_local_state_comes_back(federation, tmp_path) -> None:
    toy = only("site-2", die={"1": str(tmp_path / "died")})
    run = federation(
        controller=TWO_OF_THREE | {"num_rounds": 3, "straggler_timeout": 240.0},
        toy=toy,
        worker="process",
        timeout=300,
    )
    record = run.run()
    assert accepted(record) == [ALL, ["site-1", "site-3"], ALL]
    assert "SIGKILL" in record.rounds[1].absent["site-2"]
    (state,) = run.root.glob("site-2/local_state/*/local_state.safetensors")
    assert load_tensors(state)[1]["learner"]["fits"] == 2, "rounds 0 and 2"


def test_process_and_thread_workers_give_the_same_result(federation) -> None:
    thread, process = federation(), federation(worker="process", timeout=300)
    thread.run()
    process.run()
    assert all(torch.equal(final(thread)[name], final(process)[name]) for name in final(thread))
