# SPDX-License-Identifier: Apache-2.0
"""Nothing undeclared leaves a site, and every message that leaves is in the ledger."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from medflare.federation import wire
from medflare.federation.egress import MAX_METRICS, Egress
from medflare.federation.failures import EgressError
from medflare.federation.worker_session import Result

SHARED = {"w": ((2,), torch.float32)}
SUMS = {"count": ((3,), torch.float32)}
GOOD = {"examples": 4, "metrics": {"loss": 1.0}, "seconds": 0.1}


@pytest.fixture
def door(tmp_path: Path) -> Egress:
    egress = Egress(ledger=tmp_path / "egress.jsonl", site="site-1", job="job", uplink="bfloat16")
    egress.declare(SHARED, SUMS)
    return egress


def evaluation(**changes: Any) -> dict[str, Any]:
    base = {
        "site": "site-1",
        "role": "participant",
        "adapter": "generic",
        "split": "test",
        "studies": 3,
        "metrics": {"bleu_4": {"value": 0.1, "low": 0.0, "high": 0.2}},
        "predictions": "predictions_generic.jsonl",
    }
    return base | changes


def test_a_declared_update_leaves_in_the_jobs_dtype_and_sums_keep_theirs(door: Egress) -> None:
    sent = door.send("fit", 0, Result(GOOD, {"w": torch.ones(2), "sum:count": torch.ones(3)}))
    assert {name: value.dtype for name, value in sent.tensors.items()} == {
        "w": torch.bfloat16,
        "sum:count": torch.float32,
    }


@pytest.mark.parametrize(
    ("task", "facts", "tensors", "named"),
    [
        ("fit", GOOD, {"x": torch.ones(2)}, "tensor 'x'"),
        ("fit", GOOD, {"w": torch.ones(3)}, "tensor 'w' of shape (3,)"),
        ("fit", GOOD, {"w": torch.ones(2), "sum:other": torch.ones(3)}, "tensor 'sum:other'"),
        ("initialise", {}, {"w": torch.ones(2), "sum:count": torch.ones(3)}, "tensor 'sum:count'"),
        ("evaluate", {"metrics": {}}, {"w": torch.ones(2)}, "tensor 'w'"),
        ("fit", GOOD | {"reports": ["..."]}, {}, "fact 'reports'"),
        ("fit", GOOD | {"metrics": {"John Doe": 1.0}}, {}, "metric 'John Doe'"),
        ("fit", GOOD | {"metrics": {"loss": "text"}}, {}, "metric 'loss'"),
        ("evaluate", {"metrics": {f"m{i}": 1.0 for i in range(MAX_METRICS + 1)}}, {}, "more than"),
        ("prepare", {"describe": {"patients": 3}}, {}, "description 'patients'"),
        ("finish", {"evaluations": [evaluation(site="site-2")]}, {}, "evaluation of site 'site-2'"),
        ("finish", {"evaluations": [evaluation(predictions="/data/p.jsonl")]}, {}, "path of the predictions"),
        ("finish", {"evaluations": [evaluation(text="a report")]}, {}, "fields of another kind"),
        ("gossip", {"metrics": {}}, {}, "fact 'metrics'"),
    ],
)
def test_what_is_not_declared_stays(door: Egress, task: str, facts: Any, tensors: Any, named: str) -> None:
    with pytest.raises(EgressError) as caught:
        door.send(task, 0, Result(facts, tensors))
    assert named in str(caught.value)
    assert not door.ledger.exists()


def test_nothing_leaves_before_a_declaration(tmp_path: Path) -> None:
    egress = Egress(ledger=tmp_path / "egress.jsonl", site="site-1", job="job", uplink="float32")
    with pytest.raises(EgressError, match="nothing was declared"):
        egress.send("fit", 0, Result(GOOD, {"w": torch.ones(2)}))


def test_a_declaration_cannot_change(door: Egress) -> None:
    door.declare(SHARED, SUMS)
    with pytest.raises(EgressError, match="cannot change"):
        door.declare(SHARED | {"more": ((1,), torch.float32)}, SUMS)


def test_the_ledger_has_a_line_per_message_with_the_digest_of_what_was_sent(door: Egress) -> None:
    first = door.send("fit", 0, Result(GOOD, {"w": torch.ones(2)}))
    door.send("evaluate", 0, Result({"metrics": {"loss": 0.5}}, {}))
    fit, evaluate = (json.loads(line) for line in door.ledger.read_text().splitlines())
    assert (fit["site"], fit["job"], fit["round"], fit["task"]) == ("site-1", "job", 0, "fit")
    assert (fit["tensors"], fit["dtypes"], fit["bytes"]) == (1, ["bfloat16"], 4)
    assert fit["sha256"] == wire.digest(first.tensors)
    assert (evaluate["tensors"], evaluate["bytes"]) == (0, 0)


def test_a_whole_run_is_in_the_ledgers(federation) -> None:
    run = federation(controller={"num_rounds": 2, "canary": True})
    record = run.run()
    lines = [json.loads(x) for x in (run.site_folder("site-2") / "egress.jsonl").read_text().splitlines()]
    assert [line["task"] for line in lines] == [
        *("prepare", "fit"),
        *("fit", "evaluate"),
        *("fit", "evaluate"),
        "finish",
    ]
    counted = sum(entry.traffic["site-2"].sent for entry in record.rounds)
    assert sum(line["bytes"] for line in lines[2:]) == counted
