# SPDX-License-Identifier: Apache-2.0
"""Whole runs with compressed messages: close to the uncompressed run, counted, and refused when malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fed_toy import ADAPTER, ToyLearner
from nvflare.apis.dxo import from_shareable

from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.federation.server.controller import RoundsController
from medflare.federation.server.run_state import load_state
from medflare.wire.compression import compress, decompress, message_bytes
from medflare.wire.digest import state_digest
from medflare.wire.files import load_tensors

ALL = ("site-1", "site-2", "site-3")
WIDE = {"width": 40}
INT8, INT4 = {"uplink": "int8", "downlink": "int8"}, {"uplink": "int4", "downlink": "int8"}


def shared(run: Any) -> torch.Tensor:
    return load_state(run.folder / "state").shared[ADAPTER]


def ledger(run: Any, site: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.site_folder(site) / "egress.jsonl").read_text().splitlines()]


def residual(run: Any, site: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    (file,) = run.root.glob(f"{site}/local_state/*/residual.safetensors")
    return load_tensors(file)


@pytest.mark.parametrize(("kinds", "off"), [(INT8, 0.01), (INT4, 0.05)])
def test_a_compressed_run_ends_near_the_fp32_run(federation, kinds: dict[str, str], off: float) -> None:
    exact = federation(controller={"num_rounds": 6}, toy=WIDE)
    start = exact.run().rounds[0].mean["val_loss"]
    rounded = federation(controller={"num_rounds": 6} | kinds, toy=WIDE)
    record = rounded.run()
    assert record.status == "completed", record.reason
    assert (shared(rounded) - shared(exact)).norm() < off * shared(exact).norm()
    losses = [run.record().rounds[-1].mean["val_loss"] for run in (exact, rounded)]
    assert losses[1] < start
    assert losses[1] == pytest.approx(losses[0], rel=5 * off)


@pytest.mark.parametrize("kinds", [INT8, INT4])
def test_bytes_are_those_of_what_really_travels(federation, kinds: dict[str, str]) -> None:
    run = federation(controller={"num_rounds": 2, "evaluate_every": 0} | kinds, toy=WIDE)
    record = run.run()
    spec = ToyLearner(WIDE, "site-1", 0).shared_spec()
    up, down = (message_bytes(spec, kinds[way]) for way in ("uplink", "downlink"))
    assert (record.expected_bytes_per_direction, record.expected_bytes_down) == (up, down)
    first = record.rounds[0].traffic
    assert (first["site-2"].sent, first["site-2"].received) == (up, down)
    assert first["site-1"].sent == up + message_bytes(spec, "bfloat16"), "the initial state, once"
    fits = [line for line in ledger(run, "site-3") if line["task"] == "fit"]
    assert [(line["bytes"], line["compression"]) for line in fits] == [(up, kinds["uplink"])] * 2


def test_the_ledger_has_the_digest_of_what_was_sent(federation) -> None:
    sent = []

    def look(site, task, reply):
        if (site, task) == ("site-2", "fit"):
            sent.append(state_digest(dict(from_shareable(reply).data)))

    run = federation(controller=INT4, tamper=look)
    run.run()
    assert [line["sha256"] for line in ledger(run, "site-2") if line["task"] == "fit"] == sent


def test_the_server_adds_to_its_fp32_state_what_sites_learned_from_a_rounded_one(federation) -> None:
    run = federation(controller={"num_rounds": 3, "downlink": "int8", "seed": 5}, toy=WIDE)
    run.run()
    learners = {site: ToyLearner(WIDE, site, 5) for site in ALL}
    state, rule = learners["site-1"].initial_shared(), WeightedMean()
    for number in range(3):
        rule.begin(state)
        for site, learner in learners.items():
            learner.load_shared(decompress(compress(state, "int8")))
            rule.add(site, learner.fit(RoundPlan(round=number, rounds=3, seed=5)))
        state = rule.finish()
    assert torch.equal(shared(run), state[ADAPTER])


def test_the_residual_is_of_this_run_and_makes_the_sum_of_updates_whole(federation) -> None:
    arrived: dict[str, torch.Tensor] = {}

    def look(site, task, reply):
        if task == "fit":
            values = decompress(dict(from_shareable(reply).data))
            arrived[site] = arrived.get(site, torch.zeros(2, 3)) + values["head.weight"].float()

    run = federation(controller={"num_rounds": 4, "uplink": "int4"}, tamper=look)
    run.run()
    for site in ALL:
        left, values = residual(run, site)
        assert values["run_id"] == run.record().run_id
        whole = arrived[site] + left["head.weight"]
        torch.testing.assert_close(whole, torch.full((2, 3), 4 * 3 * 0.01), msg="4 rounds of 3 steps of 0.01")


def test_a_canary_leaves_the_residual_alone(federation) -> None:
    plain, canary = (federation(controller=INT4 | {"canary": on}, toy=WIDE) for on in (False, True))
    plain.run()
    canary.run()
    assert torch.equal(shared(plain), shared(canary))
    assert all(
        torch.equal(residual(plain, site)[0][ADAPTER], residual(canary, site)[0][ADAPTER]) for site in ALL
    )


def test_a_worker_that_died_and_came_back_carries_its_residual_on(federation, tmp_path) -> None:
    controller = INT4 | {"min_responses": 2, "num_rounds": 3, "straggler_timeout": 240.0}
    toy = WIDE | {"sites": {"site-2": {"die": {"1": str(tmp_path / "died")}}}}
    run = federation(controller=controller, toy=toy, worker="process", timeout=300)
    record = run.run()
    assert [sorted(entry.accepted) for entry in record.rounds] == [list(ALL), ["site-1", "site-3"], list(ALL)]
    left, values = residual(run, "site-2")
    assert values["run_id"] == record.run_id
    assert left[ADAPTER].any()


def test_the_residual_never_leaves(federation) -> None:
    names = set()

    def look(site, task, reply):
        names.update(key.split(":")[-1] for key in dict(from_shareable(reply).data))

    federation(controller=INT4, tamper=look).run()
    assert names == {ADAPTER, "head.weight"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data, key: data.pop("scale:head.weight"), "'head.weight' came as int8 without its scales"),
        (lambda data, key: data.update({key: data[key][:-1]}), "'head.weight' came as torch.int8 codes"),
        (lambda data, key: data["scale:head.weight"].fill_(float("inf")), "'head.weight' has scales"),
        (lambda data, key: data.update({"int8:2x2:patients": data[key][:4]}), "'patients' came as int8"),
        (lambda data, key: data.update({key.replace("2x3", "3x2"): data.pop(key)}), "has shape (3, 2)"),
    ],
)
def test_a_malformed_update_is_rejected_by_name_and_the_round_goes_on(federation, change, reason) -> None:
    def tamper(site, task, reply):
        if (site, task) == ("site-2", "fit"):
            change(from_shareable(reply).data, "int8:2x3:head.weight")

    record = federation(controller=INT8 | {"min_responses": 2, "num_rounds": 1}, tamper=tamper).run()
    assert record.status == "completed"
    assert sorted(record.rounds[0].accepted) == ["site-1", "site-3"]
    assert reason in record.rounds[0].absent["site-2"]


def test_a_nan_under_quantisation_costs_one_round(federation) -> None:
    toy = {"sites": {"site-2": {"bad": {"0": "nan"}}}}
    record = federation(controller=INT4 | {"min_responses": 2}, toy=toy).run()
    assert [sorted(entry.accepted) for entry in record.rounds] == [["site-1", "site-3"], list(ALL)]
    assert "not finite" in record.rounds[0].absent["site-2"]


@pytest.mark.parametrize("setting", [{"downlink": "int4"}, {"uplink": "float16"}, {"wire_dtype": "bfloat16"}])
def test_other_kinds_are_refused_before_anything_starts(setting: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        RoundsController(**setting)
