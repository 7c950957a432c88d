# SPDX-License-Identifier: Apache-2.0
"""Nothing undeclared leaves a site, and every message that leaves is in the ledger."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medflare.core.site_description import SiteDescription
from medflare.core.sketch import Sketch
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.egress.chain import Egress
from medflare.egress.declaration import DESCRIPTION, MAX_METRICS, SECURE_SUM_BYTES
from medflare.egress.failures import EgressError, Failure, FailureCode, failure_of
from medflare.egress.ledger import declaration_digest, line_digest
from medflare.egress.permitted_facts import REASON_STAYS
from medflare.egress.policy import Policy, PolicyError
from medflare.egress.tensor_facts import declaration_of
from medflare.wire.digest import state_digest
from medflare.wire.task_messages import TaskResult

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


def lines(door: Egress) -> list[dict[str, Any]]:
    return [json.loads(line) for line in door.ledger.read_text().splitlines()]


def guarded(tmp_path: Path, shared: Any = SHARED, **rules: Any) -> Egress:
    """A door with a policy, at a site that has its site.yaml in a folder of its own."""
    policy = Policy(rules=PolicyConfig(**rules), file=Path("/ward-7/local/site.yaml"))
    egress = Egress(tmp_path / "egress.jsonl", "site-1", "id", "float32", policy=policy, job_name="fedmrg")
    egress.declare(shared, SUMS)
    return egress


@dataclass
class Packed:
    """A seal that packs everything into one vector, as masks do, and hides nothing."""

    name: Any = "mask"

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return dict(facts)

    def __call__(self, tensors: State) -> State:
        return {"masked": torch.cat([value.reshape(-1).float() for value in tensors.values()])}


def test_a_declared_update_leaves_in_the_jobs_dtype_and_sums_keep_theirs(door: Egress) -> None:
    sent = door.send("fit", 0, TaskResult(GOOD, {"w": torch.ones(2), "sum:count": torch.ones(3)}))
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
        ("fit", GOOD | {"metrics": {"John Doe": 1.0}}, {}, "metric with an unusual name of 8 characters"),
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
        door.send(task, 0, TaskResult(facts, tensors))
    assert named in str(caught.value)
    (line,) = lines(door)
    assert (line["event"], line["task"], line["rules"]) == ("blocked", task, ["declaration"])
    assert line["reason"] == str(caught.value)


def test_the_names_in_a_description_that_may_leave_are_written_out_and_are_all_of_them() -> None:
    assert set(SiteDescription.model_fields) == DESCRIPTION


def test_nothing_leaves_before_a_declaration(tmp_path: Path) -> None:
    egress = Egress(ledger=tmp_path / "egress.jsonl", site="site-1", job="job", uplink="float32")
    with pytest.raises(EgressError, match="nothing was declared"):
        egress.send("fit", 0, TaskResult(GOOD, {"w": torch.ones(2)}))


def test_a_declaration_cannot_change(door: Egress) -> None:
    door.declare(SHARED, SUMS)
    with pytest.raises(EgressError, match="cannot change"):
        door.declare(SHARED | {"more": ((1,), torch.float32)}, SUMS)


def test_the_ledger_has_a_line_per_message_with_the_digest_of_what_was_sent(door: Egress) -> None:
    first = door.send("fit", 0, TaskResult(GOOD, {"w": torch.ones(2)}))
    door.send("evaluate", 0, TaskResult({"metrics": {"loss": 0.5}}, {}))
    fit, evaluate = lines(door)
    assert (fit["site"], fit["job"], fit["round"], fit["task"]) == ("site-1", "job", 0, "fit")
    assert (fit["tensors"], fit["dtypes"], fit["bytes"]) == (1, ["bfloat16"], 4)
    assert fit["sha256"] == state_digest(first.tensors)
    assert (evaluate["tensors"], evaluate["bytes"]) == (0, 0)


def test_a_line_says_what_was_declared_once_and_refers_to_it_afterwards(door: Egress) -> None:
    tensors = {"w": torch.ones(2), "sum:count": torch.ones(3)}
    for number in range(2):
        door.send("fit", number, TaskResult(GOOD, tensors))
    door.send("fit", 2, TaskResult(GOOD, {"w": torch.ones(2)}))
    first, second, third = lines(door)
    declared = {"shared": {"w": [[2], "float32"]}, "sums": {"count": [[3], "float32"]}}
    assert first["declaration_content"] == declared == declaration_of(SHARED, SUMS)
    assert first["declaration"] == second["declaration"] == declaration_digest(declared)
    assert "declaration_content" not in second
    assert (first.get("missing"), third["missing"]) == (None, ["sum:count"])


def test_bytes_of_a_round_add_up_and_survive_a_restart_of_the_process(door: Egress, tmp_path: Path) -> None:
    door.send("fit", 0, TaskResult(GOOD, {"w": torch.ones(2)}))
    again = Egress(ledger=door.ledger, site="site-1", job="job", uplink="bfloat16")
    again.declare(SHARED, SUMS)
    again.send("evaluate", 0, TaskResult({"metrics": {"loss": 0.5}}, {}))
    again.send("evaluate", 1, TaskResult({"metrics": {"loss": 0.5}}, {}))
    one, two, three = lines(door)
    sizes = [line["bytes"] + line["facts_bytes"] for line in (one, two, three)]
    counted = [sizes[0], sum(sizes[:2]), sum(sizes)]
    assert [line["round_bytes"] for line in (one, two, three)] == counted, (
        "whatever a message calls its round"
    )
    assert "declaration_content" not in two


def test_each_line_holds_the_digest_of_the_line_before(door: Egress) -> None:
    for number in range(3):
        door.send("evaluate", number, TaskResult({"metrics": {"loss": 0.5}}, {}))
    texts = door.ledger.read_text().splitlines()
    assert [json.loads(text)["previous"] for text in texts] == ["", *map(line_digest, texts[:2])]


def test_after_a_power_cut_in_the_middle_of_a_line_the_next_line_stands_alone(door: Egress) -> None:
    door.send("evaluate", 0, TaskResult({"metrics": {"loss": 0.5}}, {}))
    with door.ledger.open("a") as file:
        file.write('{"time": "2026-')
    again = Egress(ledger=door.ledger, site="site-1", job="job")
    again.send("evaluate", 1, TaskResult({"metrics": {"loss": 0.5}}, {}))
    texts = door.ledger.read_text().splitlines()
    assert json.loads(texts[2])["previous"] == line_digest(texts[1])


def test_a_seal_is_the_last_step_and_the_ledger_has_the_digest_of_what_it_made(tmp_path: Path) -> None:
    door = guarded(tmp_path)
    sent = door.send(
        "fit", 0, TaskResult(GOOD, {"w": torch.ones(2), "sum:count": torch.ones(3)}), seal=Packed()
    )
    (line,) = lines(door)
    assert list(sent.tensors) == ["masked"]
    assert (line["protections"], line["sealed"]) == (["mask"], {"masked": [[5], "float32"]})
    assert (line["tensors"], line["bytes"], line["sha256"]) == (2, 20, state_digest(sent.tensors))
    assert line["compression"] is None


def test_undeclared_tensors_are_held_back_before_a_seal_could_hide_them(tmp_path: Path) -> None:
    with pytest.raises(EgressError, match="tensor 'x'"):
        guarded(tmp_path).send("fit", 0, TaskResult(GOOD, {"x": torch.ones(2)}), seal=Packed())


def test_a_seal_that_leaves_a_tensor_open_is_refused(tmp_path: Path) -> None:
    class Forgetful(Packed):
        def __call__(self, tensors: State) -> State:
            return dict(tensors)

    with pytest.raises(EgressError, match="1 of them under a declared name"):
        guarded(tmp_path).send("fit", 0, TaskResult(GOOD, {"w": torch.ones(2)}), seal=Forgetful())


@pytest.mark.parametrize("task", ["keys", "shares", "confirm", "reveal"])
def test_steps_of_a_secure_sum_leave_with_facts_alone_and_are_in_the_ledger(
    task: str, tmp_path: Path
) -> None:
    door = Egress(tmp_path / "egress.jsonl", "site-1", "job")
    assert door.send(task, 0, TaskResult({"secure_sum": {"site-2": "00ff"}}, {})).facts["secure_sum"]
    (line,) = lines(door)
    assert (line["task"], line["facts"], line["bytes"]) == (task, ["secure_sum"], 0)


@pytest.mark.parametrize(
    ("facts", "tensors", "named"),
    [
        ({"secure_sum": "text"}, {}, "fact 'secure_sum' of another kind"),
        ({"secure_sum": {"key": {1, 2}}}, {}, "fact 'secure_sum' of another kind"),
        ({"secure_sum": {"key": "0" * SECURE_SUM_BYTES}}, {}, f"more than {SECURE_SUM_BYTES}"),
        ({"secure_sum": {}, "metrics": {}}, {}, "fact 'metrics'"),
        ({"secure_sum": {}}, {"w": torch.ones(2)}, "tensor 'w'"),
    ],
)
def test_a_step_of_a_secure_sum_carries_nothing_else(
    door: Egress, facts: Any, tensors: Any, named: str
) -> None:
    with pytest.raises(EgressError, match=named):
        door.send("shares", 0, TaskResult(facts, tensors))


UPDATE = {"w": torch.ones(2), "sum:count": torch.ones(3)}


@pytest.mark.parametrize(
    ("rules", "task", "result", "rule", "found"),
    [
        ({"max_bytes_per_round": 70}, "fit", TaskResult(GOOD, UPDATE), "max_bytes_per_round", "at most 70"),
        (
            {"require": ["mask"]},
            "fit",
            TaskResult(GOOD, UPDATE),
            "require",
            "the protection mask, they have none",
        ),
        ({"require": ["mask|he"]}, "fit", TaskResult(GOOD, UPDATE), "require", "mask or he"),
        ({"tensors": ["sum:*"]}, "fit", TaskResult(GOOD, UPDATE), "tensors", "'w' may not leave"),
        ({"tensors": ["head.*"]}, "initialise", TaskResult({}, {"w": torch.ones(2)}), "tensors", "'w'"),
        (
            {"min_examples": 5},
            "fit",
            TaskResult(GOOD, UPDATE),
            "min_examples",
            "an update is about fewer than 5 examples",
        ),
        (
            {"min_examples": 5},
            "finish",
            TaskResult({"evaluations": [evaluation()]}, {}),
            "min_examples",
            "evaluation is about fewer",
        ),
        (
            {"min_examples": 5},
            "prepare",
            TaskResult({"describe": {"examples": {"train": 20, "val": 2, "test": 0}}}, {}),
            "min_examples",
            "'val' is about fewer",
        ),
    ],
)
def test_what_the_policy_refuses_stays_and_the_rule_and_the_file_are_named(
    tmp_path: Path, rules: Any, task: str, result: TaskResult, rule: str, found: str
) -> None:
    door = guarded(tmp_path, **rules)
    with pytest.raises(PolicyError) as caught:
        door.send(task, 0, result)
    text = str(failure_of(caught.value))
    assert text.startswith("E22 PolicyError: refused by this site's site.yaml: ")
    assert f"policy.{rule}: " in text
    assert found in text
    assert "ward-7" not in text
    (line,) = lines(door)
    assert (line["event"], line["rules"]) == ("blocked", [f"policy.{rule}"])
    assert line["file"] == "/ward-7/local/site.yaml"


@pytest.mark.parametrize("counted", [{"examples": 0}, {}, {"examples": 4}])
def test_a_sketch_is_counted_even_if_it_is_of_no_text(tmp_path: Path, counted: dict[str, int]) -> None:
    sketch = Sketch(np.arange(8, dtype=np.uint32), bytes(16))
    data = base64.b64encode(sketch.to_bytes()).decode()
    door = guarded(tmp_path, min_examples=5)
    with pytest.raises(PolicyError, match="a sketch is about fewer than 5 examples"):
        door.send("sketch", -1, TaskResult({"state": "new", "sketch": data, **counted}, {}))
    assert door.send("sketch", -1, TaskResult({"state": "same"}, {})).facts == {"state": "same"}


def test_the_limit_of_a_round_counts_every_message_of_it(tmp_path: Path) -> None:
    door = guarded(tmp_path, max_bytes_per_round=100)
    door.send("fit", 0, TaskResult(GOOD, UPDATE))
    with pytest.raises(PolicyError, match="27 bytes after 77 in the same round; at most 100"):
        door.send("evaluate", 0, TaskResult({"metrics": {"loss": 0.25}}, {}))
    with pytest.raises(PolicyError, match="27 bytes after 77 in the same round; at most 100"):
        door.send("evaluate", 1, TaskResult({"metrics": {"loss": 0.25}}, {}))
    door.admit("fit", 1, 1, method="toy", protections=[], sites=3)
    door.send("evaluate", 1, TaskResult({"metrics": {"loss": 0.25}}, {}))


def test_an_update_that_is_too_large_leaves_no_trace_in_the_feedback_of_compression(tmp_path: Path) -> None:
    def compress(tensors: Any, kind: str) -> State:
        raise AssertionError("compressed although it may not leave")

    with pytest.raises(PolicyError, match="max_bytes_per_round"):
        guarded(tmp_path, max_bytes_per_round=10).send("fit", 0, TaskResult(GOOD, UPDATE), compress)


def test_a_sealed_update_is_measured_as_it_travels(tmp_path: Path) -> None:
    door = guarded(tmp_path, max_bytes_per_round=70, require="mask")
    with pytest.raises(PolicyError, match="max_bytes_per_round"):
        door.send("fit", 0, TaskResult(GOOD, UPDATE), seal=Packed())


def test_a_required_protection_that_is_there_lets_the_update_leave(tmp_path: Path) -> None:
    for number, (rule, seal) in enumerate([("mask", "mask"), ("mask|he", "he"), ("mask|he", "mask")]):
        door = guarded(tmp_path / str(number), require=[rule])
        assert door.send("fit", 0, TaskResult(GOOD, UPDATE), seal=Packed(seal)).tensors


def test_metrics_that_may_not_leave_are_taken_out_and_counted(tmp_path: Path) -> None:
    facts = GOOD | {"metrics": {"loss": 1.0, "label_f1/edema": 0.5}}
    for rule, left in (("none", {}), (["loss"], {"loss": 1.0})):
        door = guarded(tmp_path / str(rule), metrics=rule)
        assert door.send("fit", 0, TaskResult(facts, UPDATE)).facts["metrics"] == left
        sent = door.send("finish", 0, TaskResult({"evaluations": [evaluation()]}, {}))
        assert sent.facts["evaluations"][0]["metrics"] == {}
        assert [line["withheld"] for line in lines(door)] == [2 - len(left), 1]
    assert facts["metrics"] == {"loss": 1.0, "label_f1/edema": 0.5}


def test_why_a_metric_was_skipped_leaves_without_the_folders_of_the_site(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = "skipped: bertscore: there is no /ward-7/models/bert; it is a folder of an encoder"
    skipped = {"meteor": "skipped: METEOR needs Java", "bertscore": told}
    facts = {"evaluations": [evaluation(skipped_metrics=skipped)]}
    door = guarded(tmp_path / "all")
    (sent,) = door.send("finish", 0, TaskResult(facts, {})).facts["evaluations"]
    assert sent["skipped_metrics"] == skipped | {"bertscore": REASON_STAYS}
    assert told in caplog.text
    door = guarded(tmp_path / "few", metrics=["meteor"])
    (sent,) = door.send("finish", 0, TaskResult(facts, {})).facts["evaluations"]
    assert sent["skipped_metrics"] == {"meteor": "skipped: METEOR needs Java"}


def test_a_policy_that_changes_during_a_run_is_written_down_again(tmp_path: Path) -> None:
    door = guarded(tmp_path)
    for rules in ({}, {}, {"min_sites": 3}):
        door.policy = Policy(rules=PolicyConfig(**rules))
        door.send("evaluate", 0, TaskResult({"metrics": {}}, {}))
    stated = [line.get("policy_content", {}).get("min_sites") for line in lines(door)]
    assert stated == [1, None, 3]


def test_a_failure_that_is_told_to_the_server_is_in_the_ledger_in_its_words(door: Egress) -> None:
    door.failed("fit", 3, Failure(FailureCode.DATA, "DataError: Details are in worker.log at the site."))
    (line,) = lines(door)
    assert (line["event"], line["round"], line["code"]) == ("failure", 3, 3)
    assert line["text"] == "DataError: Details are in worker.log at the site."
