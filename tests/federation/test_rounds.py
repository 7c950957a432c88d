# SPDX-License-Identifier: Apache-2.0
"""Whole runs in one process: what a run leaves, and what a site that fails or is silent costs.

Equality with the plain loop is in test_equals_one_process.py, broken updates in test_rejected_updates.py.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from fed_clock import ExchangeClock
from fed_equality import written
from fed_harness import SITES, accepted, completed, events, failed, final, ledger
from fed_learner import ADAPTER
from fed_tamper import changed, watched
from fed_toy import ToyLearner
from nvflare.apis.dxo import from_shareable
from nvflare.apis.shareable import Shareable
from safetensors.torch import load_file

from medflare.core.plan import RoundPlan
from medflare.core.update import Update
from medflare.federation.server.run_state import load_state
from medflare.models.peft_folder import PeftFolder
from medflare.wire.files import load_tensors

ALL = list(SITES)
TWO_OF_THREE = {"min_responses": 2}


def only(site: str, **settings: Any) -> dict[str, Any]:
    return {"sites": {site: settings}}


# ---- a run without faults ---------------------------------------------------------------------------------


def test_run_json_is_complete(federation) -> None:
    record = completed(federation())
    assert (record.method, record.job) == ("toy", "toy")
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
    assert record.rounds[0].rule["weights"] == pytest.approx(
        {site: examples / 60 for site, examples in zip(ALL, (16, 20, 24), strict=True)}
    )
    assert [item.site for item in record.evaluations] == ALL


def test_sites_keep_their_predictions_and_the_record_points_to_them(federation) -> None:
    run = federation()
    paths = [run.folder / str(item.predictions) for item in completed(run).evaluations]
    assert [path.read_text().split()[0] for path in paths] == ALL


def test_initial_state_of_the_first_site_reaches_all(federation) -> None:
    sent: dict[str, torch.Tensor] = {}

    def look(site: str, task: str, message: Shareable) -> None:
        if task == "fit":
            sent[site] = dict(from_shareable(message).data)[ADAPTER].clone()

    completed(federation(controller={"num_rounds": 1}, mislead=look))
    assert all(torch.equal(sent[site], ToyLearner({}, "site-1", 0).start[None]) for site in ALL)


@pytest.mark.parametrize(
    ("settings", "summed", "totals"),
    [({}, [0, 1, 2], [16.0, 20.0, 24.0]), (only("site-2", bad={"0": "nan"}), [0, 2], [16.0, 0.0, 24.0])],
    ids=["all", "without site-2"],
)
def test_totals_of_sums_come_back_with_the_next_plan_which_tells_whose_they_are(
    federation, settings: dict[str, Any], summed: list[int], totals: list[float]
) -> None:
    seen: list[tuple[int, list[int], dict[str, Any]]] = []

    class Noting(ToyLearner):
        def fit(self, plan: RoundPlan) -> Update:
            values = {name: value.tolist() for name, value in plan.totals.items()}
            seen.append((plan.round, list(plan.hints.summed), values))
            return super().fit(plan)

    run = federation(settings={"sums": True, **settings}, controller=TWO_OF_THREE, learner=Noting)
    completed(run)
    assert [told for number, *told in seen if number == 0] == [[[], {}]] * 3
    assert [told for number, *told in seen if number == 1] == [[summed, {"count": totals}]] * 3
    state = load_state(run.state)
    assert state.exchanges_done == 2
    assert state.values["roster"]["sites"] == ALL
    assert state.totals["count"].tolist() == [16.0, 20.0, 24.0]


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_equal_the_sum_of_tensor_sizes(federation, dtype: str, size: int) -> None:
    run = federation(controller={"num_rounds": 2, "evaluate_every": 2, "uplink": dtype, "downlink": dtype})
    record = completed(run)
    message = (4 + 6) * size
    assert record.expected_bytes_per_direction == message
    first, last = (entry.traffic for entry in record.rounds)
    assert (first["site-2"].sent, first["site-2"].received) == (message, message)
    assert first["site-1"].sent == 2 * message, "the initial state came from site-1"
    assert (last["site-3"].sent, last["site-3"].received) == (message, 3 * message), "fit, evaluate, finish"


def test_bf16_on_the_wire_is_accumulated_in_fp32(federation) -> None:
    dtypes: set[torch.dtype] = set()
    look = watched("fit", lambda site, tensors, facts: dtypes.update(t.dtype for t in tensors.values()))
    run = federation(controller={"num_rounds": 1, "uplink": "bfloat16"}, tamper=look)
    completed(run)
    assert dtypes == {torch.bfloat16}
    assert {value.dtype for value in final(run).values()} == {torch.float32}


def test_best_and_final_are_both_kept(federation) -> None:
    run = federation(controller={"num_rounds": 3, "best_mode": "max"})
    record = completed(run)
    losses = [entry.mean["val_loss"] for entry in record.rounds]
    assert record.best_round == losses.index(max(losses)) == 0
    best = load_file(run.folder / "result/best/adapter_model.safetensors")
    assert not torch.equal(best[ADAPTER.removeprefix("adapter.")], final(run)[ADAPTER])
    assert record.artefacts == {"final": "result/adapter", "best": "result/best"}


def test_a_best_metric_that_nobody_measures_is_named_after_the_first_validation(federation) -> None:
    record = completed(federation(controller={"num_rounds": 2, "best_metric": "val_bleu"}))
    (warning,) = record.preparation["warnings"]
    assert warning.startswith(
        "no round will be the best one: best_metric is 'val_bleu', and the sites measure val_"
    )
    assert record.best_round is None


def test_a_metric_of_training_may_decide_which_round_is_the_best(federation) -> None:
    record = completed(federation(controller={"num_rounds": 2, "best_metric": "train_loss"}))
    assert record.best_round is not None
    assert "warnings" not in record.preparation


def test_canary_is_measured_and_leaves_no_trace(federation) -> None:
    plain, canary = federation(), federation(controller={"canary": True})
    completed(plain)
    record = completed(canary)
    assert all(torch.equal(final(plain)[name], final(canary)[name]) for name in final(plain))
    assert len(record.rounds) == 2
    canary_events = {event["site"]: event for event in events(canary, "canary")}
    assert sorted(canary_events) == ALL
    assert canary_events["site-1"]["bytes_sent"] == 40
    assert canary_events["site-1"]["seconds"] is not None
    tasks = [line.task for line in ledger(canary, "site-2")]
    assert tasks == ["prepare", "fit", *("fit", "evaluate") * 2, "finish"]
    counted = sum(entry.traffic["site-2"].sent for entry in record.rounds)
    assert sum(line.bytes for line in ledger(canary, "site-2")[2:]) == counted


# ---- faults at sites --------------------------------------------------------------------------------------


def test_quorum_counts_accepted_updates_not_replies(federation) -> None:
    settings = {"sites": {"site-2": {"bad": {"1": "nan"}}, "site-3": {"raises": {"1": "boom"}}}}
    run = federation(controller=TWO_OF_THREE | {"num_rounds": 3}, settings=settings)
    record = failed(run, " accepted, 2 needed", "site-2: ", "site-3: ")
    # The round is given up as soon as two have failed; the good update may be there by then or not.
    first, second = accepted(record)
    assert (first, second) in ((ALL, ["site-1"]), (ALL, []))
    assert f"round 2: {len(second)} accepted" in record.reason
    assert run.fatal
    assert torch.equal(written(run)[ADAPTER.removeprefix("adapter.")], final(run)[ADAPTER])


@pytest.mark.fault(
    "the final adapter cannot be written", phase="export", result="failed by name, with a record"
)
def test_a_result_that_cannot_be_written_is_a_failed_run_with_a_record(federation, monkeypatch) -> None:
    def full(*args: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(PeftFolder, "write", full)
    run = federation(controller={"evaluate_every": 0})
    assert failed(run).reason == "OSError: no space left on device"
    assert run.fatal
    assert load_state(run.state).exchanges_done == 2


def test_an_error_says_class_and_place_but_no_message(federation) -> None:
    settings = {"sites": {"site-1": {"raises": {"0": "KeyError"}}, "site-2": {"raises": {"0": "DataError"}}}}
    run = federation(controller={"min_responses": 1, "num_rounds": 1}, settings=settings)
    absent = run.run().rounds[0].absent
    assert absent["site-1"].startswith("E40 KeyError in _misbehave")
    assert absent["site-2"].startswith("E3 DataError")
    assert "Doe" not in (run.folder / "run.json").read_text() + (run.folder / "progress.jsonl").read_text()
    assert "Doe" in (run.site_folder("site-2") / "worker/worker.log").read_text()


@pytest.mark.fault("a site hangs", phase="training", result="named with the deadline; the others go on")
def test_a_hanging_site_meets_its_deadline_and_the_others_go_on(federation) -> None:
    def hurry(tensors: dict[str, Any], words: dict[str, Any]) -> None:
        words["deadline"] = 0.5 if words["round"] == 0 else words["deadline"]

    settings = only("site-1", hang={"0": 60})
    run = federation(controller=TWO_OF_THREE, settings=settings, mislead=changed("site-1", "fit", hurry))
    started = time.monotonic()
    record = run.run()
    assert accepted(record) == [["site-2", "site-3"], ALL]
    assert record.rounds[0].absent["site-1"].startswith("E31")
    assert time.monotonic() - started < 30


@pytest.mark.fault("a site is silent for a round", phase="training", result="suspended, then selected again")
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
    assert record.rounds[1].absent["site-2"].startswith("suspended until round 3")
    assert accepted(record) == [["site-1", "site-3"], ["site-1", "site-3"], ALL]
    for entry in record.rounds:
        assert sorted([*entry.accepted, *entry.absent]) == ALL


def test_a_site_that_never_answers_is_in_every_record(federation, clock: ExchangeClock) -> None:
    clock.gone = {"site-3"}
    record = completed(federation(controller=TWO_OF_THREE | {"evaluate_every": 0}, dead=("site-3",)))
    assert all("prepare failed" in entry.absent["site-3"] for entry in record.rounds)


def test_an_aborted_job_is_recorded_as_stopped(federation) -> None:
    def stop(site: str, task: str, message: Shareable) -> None:
        if task == "fit":
            run.abort.trigger(True)

    run = federation(settings={"hang": {"0": 60}}, mislead=stop)
    record = run.run()
    assert record.status == "stopped"
    assert sorted(record.rounds[0].absent) == ALL


@pytest.mark.fault(
    "a worker is killed",
    phase="training ({uplink})",
    result="misses the round with E30; its state comes back",
)
@pytest.mark.parametrize("uplink", [pytest.param("float32", marks=pytest.mark.faults), "int4"])
def test_a_killed_worker_costs_one_round_and_its_local_state_comes_back(federation, tmp_path, uplink) -> None:
    settings = {"width": 40} | only("site-2", die={"1": str(tmp_path / "died")})
    controller = TWO_OF_THREE | {"num_rounds": 3, "straggler_timeout": 240.0, "uplink": uplink}
    run = federation(controller=controller, settings=settings, worker="process", timeout=300)
    record = run.run()
    assert accepted(record) == [ALL, ["site-1", "site-3"], ALL]
    assert "SIGKILL" in record.rounds[1].absent["site-2"]
    (state,) = run.root.glob("site-2/local_state/*/local_state.safetensors")
    assert load_tensors(state)[1]["learner"]["fits"] == 2, "rounds 0 and 2"
    if uplink == "int4":
        tensors, values = load_tensors(state.with_name("residual.safetensors"))
        assert values["run_id"] == record.run_id
        assert tensors[ADAPTER].any()
