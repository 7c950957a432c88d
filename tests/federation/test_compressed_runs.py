# SPDX-License-Identifier: Apache-2.0
"""Whole runs with compressed messages: close to the uncompressed run, and counted as what really travels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fed_harness import SITES, completed, final, ledger
from fed_learner import ADAPTER
from fed_tamper import watched
from fed_toy import ToyLearner

from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.federation.server.controller import RoundsController
from medflare.wire.compression import compress, decompress, message_bytes
from medflare.wire.digest import state_digest
from medflare.wire.files import load_tensors

WIDE = {"width": 40}
INT8, INT4 = {"uplink": "int8", "downlink": "int8"}, {"uplink": "int4", "downlink": "int8"}


def residual(run: Any, site: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    (file,) = run.root.glob(f"{site}/local_state/*/residual.safetensors")
    return load_tensors(file)


@pytest.mark.parametrize(("kinds", "off"), [(INT8, 0.01), (INT4, 0.05)])
def test_a_compressed_run_ends_near_the_fp32_run(federation, kinds: dict[str, str], off: float) -> None:
    exact = federation(controller={"num_rounds": 6}, settings=WIDE)
    rounded = federation(controller={"num_rounds": 6} | kinds, settings=WIDE)
    expected, record = completed(exact), completed(rounded)
    distance = (final(rounded)[ADAPTER] - final(exact)[ADAPTER]).norm()
    assert distance < off * final(exact)[ADAPTER].norm()
    loss = record.rounds[-1].mean["val_loss"]
    assert loss < expected.rounds[0].mean["val_loss"]
    assert loss == pytest.approx(expected.rounds[-1].mean["val_loss"], rel=5 * off)


@pytest.mark.parametrize("kinds", [INT8, INT4])
def test_bytes_are_those_of_what_really_travels(federation, kinds: dict[str, str]) -> None:
    digests, names = list[str](), set[str]()

    def look(site: str, tensors: dict[str, torch.Tensor], facts: Any) -> None:
        names.update(name.split(":")[-1] for name in tensors)
        digests.extend([state_digest(tensors)] * (site == "site-3"))

    controller = {"num_rounds": 2, "evaluate_every": 0} | kinds
    run = federation(controller=controller, settings=WIDE, tamper=watched("fit", look))
    record = completed(run)
    spec = ToyLearner(WIDE, "site-1", 0).shared_spec()
    up, down = (message_bytes(spec, kinds[way]) for way in ("uplink", "downlink"))
    assert (record.expected_bytes_per_direction, record.expected_bytes_down) == (up, down)
    first = record.rounds[0].traffic
    assert (first["site-2"].sent, first["site-2"].received) == (up, down)
    assert first["site-1"].sent == up + message_bytes(spec, "bfloat16"), "the initial state, once"
    fits = ledger(run, "site-3", "fit")
    assert [(line.bytes, line.compression) for line in fits] == [(up, kinds["uplink"])] * 2
    assert [line.sha256 for line in fits] == digests, "of what was sent"
    assert names == {ADAPTER, "head.weight"}, "the residual never leaves"


def test_the_server_adds_to_its_fp32_state_what_sites_learned_from_a_rounded_one(federation) -> None:
    run = federation(controller={"num_rounds": 3, "downlink": "int8", "seed": 5}, settings=WIDE)
    completed(run)
    learners = {site: ToyLearner(WIDE, site, 5) for site in SITES}
    state, rule = learners["site-1"].initial_shared(), WeightedMean()
    for number in range(3):
        rule.begin(state)
        for site, learner in learners.items():
            learner.load_shared(decompress(compress(state, "int8")))
            rule.add(site, learner.fit(RoundPlan(round=number, rounds=3, seed=5)))
        state = rule.finish()
    assert torch.equal(final(run)[ADAPTER], state[ADAPTER])


def test_the_residual_is_of_this_run_and_makes_the_sum_of_updates_whole(federation) -> None:
    arrived = {site: torch.zeros(2, 3) for site in SITES}

    def look(site: str, tensors: dict[str, torch.Tensor], facts: Any) -> None:
        arrived[site] += decompress(tensors)["head.weight"].float()

    run = federation(controller={"num_rounds": 4, "uplink": "int4"}, tamper=watched("fit", look))
    completed(run)
    for site in SITES:
        kept, values = residual(run, site)
        assert values["run_id"] == run.record().run_id
        total = arrived[site] + kept["head.weight"]
        torch.testing.assert_close(total, torch.full((2, 3), 4 * 3 * 0.01), msg="4 rounds of 3 steps of 0.01")


def test_a_canary_leaves_the_residual_alone(federation) -> None:
    plain, canary = (federation(controller=INT4 | {"canary": on}, settings=WIDE) for on in (False, True))
    completed(plain)
    completed(canary)
    assert torch.equal(final(plain)[ADAPTER], final(canary)[ADAPTER])
    for site in SITES:
        assert torch.equal(residual(plain, site)[0][ADAPTER], residual(canary, site)[0][ADAPTER])


@pytest.mark.parametrize("setting", [{"downlink": "int4"}, {"uplink": "float16"}, {"wire_dtype": "bfloat16"}])
def test_other_kinds_are_refused_before_anything_starts(setting: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        RoundsController(**setting)
