# SPDX-License-Identifier: Apache-2.0
"""`medflare egress report`: what left, in tables and in JSON, and what is wrong with a ledger."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import medflare
from medflare.core.tensors import State
from medflare.data.settings.policy import PolicyConfig
from medflare.egress.chain import Egress
from medflare.egress.failures import Failure, FailureCode
from medflare.egress.policy import Policy, PolicyError
from medflare.wire.digest import state_digest
from medflare.wire.task_messages import TaskResult

SHARED = {"adapter.q_proj.lora_A": ((4, 8), torch.float32), "head.bias": ((3,), torch.float32)}
SUMS = {"count": ((3,), torch.float32)}
GOOD = {"examples": 40, "metrics": {"loss": 1.0}, "seconds": 0.1}


class Packed:
    name: Any = "mask"

    def facts(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        return dict(facts)

    def __call__(self, tensors: State) -> State:
        values = torch.cat([value.reshape(-1).float() for value in tensors.values()])
        return {"masked:narrow": (values * 1000).to(torch.int32), "masked:wide": torch.ones(2).long()}


def update() -> State:
    return {**{name: torch.ones(shape) for name, (shape, _) in SHARED.items()}, "sum:count": torch.ones(3)}


def door(folder: Path, uplink: Any = "bfloat16", job: str = "fedmrg", **rules: Any) -> Egress:
    policy = Policy(rules=PolicyConfig(**rules))
    egress = Egress(folder / "egress.jsonl", folder.parent.name, f"id-{job}", uplink, policy, job_name=job)
    egress.declare(SHARED, SUMS)
    return egress


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """Two sites of a simulator, three rounds each: plain at the first, masked at the second."""
    for site, seal in (("site-1", None), ("site-2", Packed())):
        egress = door(tmp_path / site / "simulate_job", min_sites=2)
        egress.send("prepare", -1, TaskResult({"describe": {}, "shared": {}, "sums": {}}, {}))
        for number in range(3):
            egress.send("fit", number, TaskResult(GOOD, update()), seal=seal)
            egress.send("evaluate", number, TaskResult({"metrics": {"loss": 0.5}}, {}))
    return tmp_path


def report(*words: str | Path) -> Any:
    return medflare("egress", "report", *words, columns=220)


def facts(*words: str | Path) -> Any:
    return json.loads(report(*words, "--json").stdout)


def test_every_message_is_told_with_what_it_held_and_how_it_was_protected(workspace: Path) -> None:
    report_facts = facts(workspace)
    assert [(m["site"], m["task"], m["round"]) for m in report_facts["messages"]][:3] == [
        ("site-1", "prepare", -1),
        ("site-1", "fit", 0),
        ("site-1", "evaluate", 0),
    ]
    plain, masked = (
        next(m for m in report_facts["messages"] if m["site"] == s and m["task"] == "fit")
        for s in ("site-1", "site-2")
    )
    assert (plain["tensors"], plain["dtypes"], plain["bytes"]) == (3, ["bfloat16", "float32"], 35 * 2 + 12)
    assert "protections" not in plain
    assert (masked["tensors"], masked["protections"], masked["bytes"]) == (3, ["mask"], 38 * 4 + 16)
    assert masked["sealed"] == {"masked:narrow": [[38], "int32"], "masked:wide": [[2], "int64"]}
    assert len(plain["sha256"]) == 64
    assert report_facts["declarations"][plain["declaration"]]["shared"]["head.bias"] == [[3], "float32"]
    assert report_facts["problems"] == []


def test_a_run_that_a_second_job_goes_on_with_in_the_same_round_has_one_whole_ledger(tmp_path: Path) -> None:
    for job in ("fedmrg", "fedmrg-resumed"):
        egress = door(tmp_path / "site-1" / "local_state", job=job)
        for _ in range(2):
            egress.send("evaluate", 0, TaskResult({"metrics": {"loss": 0.5}}, {}))
    messages = facts(tmp_path)["messages"]
    assert [message["site_round"] for message in messages] == [0] * 4
    assert messages[-1]["round_bytes"] == 4 * messages[0]["round_bytes"]
    assert facts(tmp_path)["problems"] == []


@pytest.mark.parametrize("link", ["hardlink_to", "symlink_to"])
def test_a_ledger_that_is_linked_into_a_jobs_folder_is_counted_once(workspace: Path, link: str) -> None:
    before = facts(workspace)
    job = workspace / "site-1" / "another_job"
    job.mkdir()
    getattr(job / "egress.jsonl", link)((workspace / "site-1/simulate_job/egress.jsonl").resolve())
    assert facts(workspace)["totals"] == before["totals"]
    assert len(facts(workspace)["ledgers"]) == 2
    assert facts(job)["messages"], "in the job's folder it is found all the same"


def test_totals_are_the_sums_of_the_messages(workspace: Path) -> None:
    report_facts = facts(workspace)
    for row in report_facts["totals"]:
        same = [m for m in report_facts["messages"] if (m["site"], m["task"]) == (row["site"], row["task"])]
        assert row["messages"] == len(same)
        assert row["bytes"] == sum(m.get("bytes", 0) for m in same)
        assert row["facts_bytes"] == sum(m["facts_bytes"] for m in same)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--site", "site-2"], 7),
        (["--round", "0"], 2),
        (["--round", "3"], 4),
        (["--job", "fedmrg"], 14),
        (["--job", "id-fed"], 14),
        (["--job", "fedtar"], 0),
        (["--site", "site-1", "--round", "1"], 2),
    ],
)
def test_filters_choose_messages(workspace: Path, words: list[str], count: int) -> None:
    assert len(facts(workspace, *words)["messages"]) == count


def test_tables_name_what_an_officer_asks_for(workspace: Path) -> None:
    shown = report(workspace, "--names")
    assert shown.exit_code == 0, shown.output
    for text in (
        "what left site-1 in fedmrg (id-fedmrg)",
        "At least 2 sites must take part.",
        "adapter.q_proj.lora_A",
        "4x8",
        "sum:count",
        "masked:narrow [38] int32",
        "mask",
        "2 ledger(s): every line follows the one before it",
    ):
        assert text in shown.output
    assert "adapter.q_proj.lora_A" not in report(workspace).output


def test_what_was_held_back_and_failures_are_told(tmp_path: Path) -> None:
    egress = door(tmp_path / "site-1" / "job", max_bytes_per_round=20)
    with pytest.raises(PolicyError):
        egress.send("fit", 0, TaskResult(GOOD, update()))
    egress.failed("fit", 0, Failure(FailureCode.POLICY, "PolicyError: refused by this site's site.yaml"))
    report_facts = facts(tmp_path)
    assert report_facts["messages"] == []
    assert report_facts["blocked"][0]["rules"] == ["policy.max_bytes_per_round"]
    assert report_facts["failures"][0]["code"] == 22
    shown = report(tmp_path).output
    assert "held back" in shown
    assert "policy.max_bytes_per_round" in shown
    assert "E22" in shown


@pytest.mark.parametrize("uplink", ["float32", "bfloat16", "int8", "int4"])
def test_bytes_of_every_way_to_compress_are_those_of_the_declared_tensors(
    tmp_path: Path, uplink: str
) -> None:
    egress = door(tmp_path / "site-1" / "job", uplink)
    egress.send(
        "initialise", -1, TaskResult({"seconds": 1}, {n: torch.ones(s) for n, (s, _) in SHARED.items()})
    )
    egress.send("fit", 0, TaskResult(GOOD, update()))
    part = update()
    del part["head.bias"]
    egress.send("fit", 1, TaskResult(GOOD, part))
    report_facts = facts(tmp_path)
    assert report_facts["problems"] == []
    assert report_facts["messages"][2]["missing"] == ["head.bias"]


def change(key: str, value: Any) -> Callable[[list[str]], list[str]]:
    """Rewrites one value in the fourth line."""

    def apply(lines: list[str]) -> list[str]:
        lines[3] = json.dumps({**json.loads(lines[3]), key: value})
        return lines

    return apply


@pytest.mark.parametrize(
    ("spoil", "number", "found"),
    [
        (lambda lines: lines[:2] + lines[3:], 3, "does not follow the line before it"),
        (lambda lines: [*lines[:3], lines[3][:40], *lines[4:]], 4, "is no line of a ledger"),
        (change("task", 5), 4, "task: Input should be a valid string"),
        (change("bytes", 1), 4, "says 1 bytes, the tensors it names come to 82"),
        (change("tensors", 0), 4, "says 82 bytes, the tensors it names come to 0"),
        (change("declaration", "00"), 4, "refers to a declaration that no line before it holds"),
        (change("round_bytes", 5), 4, "says 5 bytes in this round so far, its lines come to"),
        (change("reason", "x"), 5, "does not follow the line before it"),
    ],
)
def test_a_ledger_that_was_changed_is_named_with_file_and_line(
    workspace: Path, spoil: Callable[[list[str]], list[str]], number: int, found: str
) -> None:
    path = workspace / "site-1/simulate_job/egress.jsonl"
    path.write_text("\n".join(spoil(path.read_text().splitlines())) + "\n")
    shown = report(workspace, "--json")
    assert shown.exit_code == 3
    assert any(
        text.startswith(f"{path}:{number}: ") and found in text
        for text in json.loads(shown.stdout)["problems"]
    )
    assert f"broken {path}:{number}" in report(workspace).output.replace("\n", "")


def test_a_ledger_cut_off_at_its_end_looks_whole(workspace: Path) -> None:
    """What a chain of digests cannot show; docs/explanation/site_policy.md says so."""
    path = workspace / "site-1/simulate_job/egress.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:4]) + "\n")
    assert report(workspace).exit_code == 0


def test_a_declaration_that_was_changed_is_not_the_one_of_its_digest(workspace: Path) -> None:
    path = workspace / "site-1/simulate_job/egress.jsonl"
    path.write_text(path.read_text().replace("head.bias", "head.bite"))
    assert any("the declaration is not the one its digest names" in said for said in facts(path)["problems"])


def test_a_folder_without_ledger_is_no_success(tmp_path: Path) -> None:
    result = report(tmp_path)
    assert result.exit_code == 3
    assert "no egress.jsonl in it or below it" in result.stderr


def test_the_hash_in_the_report_is_that_of_the_tensors(tmp_path: Path) -> None:
    sent = door(tmp_path / "site-1" / "job").send("fit", 0, TaskResult(GOOD, update()))
    assert facts(tmp_path)["messages"][0]["sha256"] == state_digest(sent.tensors)


def test_the_command_shows_an_example() -> None:
    assert "medflare egress report /opt" in report("--help").output
