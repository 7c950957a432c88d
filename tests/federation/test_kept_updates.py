# SPDX-License-Identifier: Apache-2.0
"""Accepted updates lie on the server's disk: memory does not grow with them, and nobody is asked twice."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from fed_harness import SITES, Federation, Make, completed, events, final
from fed_learner import ADAPTER
from fed_plug import resumed
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply

from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.update_spool import UpdateSpool
from medflare.protocol.messages import FIT, Reply

FACTS = {"examples": 4, "metrics": {"loss": 0.5}, "seconds": 1.0}
WIDTH = 7_919
"""Of a tensor that is counted: no other has so many values."""


def update(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((WIDTH,), value)}


def counted_tensors() -> int:
    """How many tensors of an update's size are in memory, views of one not counted twice."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if isinstance(item, torch.Tensor) and item.numel() == WIDTH]
    return len({item.untyped_storage().data_ptr() for item in tensors})


@pytest.mark.parametrize("late", ["site-00", "site-11"])
def test_memory_does_not_depend_on_who_answers_first(tmp_path: Path, late: str) -> None:
    names = [f"site-{number:02}" for number in range(12)]
    aggregator = ValidatingAggregator()
    aggregator.spool = UpdateSpool(tmp_path)
    aggregator.spool.begin(0, "request")
    aggregator.expect({"w": ((WIDTH,), torch.float32)}, {}, dict.fromkeys(names, 4))
    aggregator.limits.change.latest = dict.fromkeys(names, 0.1 * WIDTH**0.5)
    aggregator.begin(0, update(0.0), names)
    before, most = counted_tensors(), 0
    for number, name in enumerate([*(name for name in names if name != late), late]):
        assert aggregator.accept(name, 0, FACTS, update((1.0 + number) / 100)) is None
        most = max(most, counted_tensors() - before)
    assert most <= 1, "the rule's own sum, and none of the updates"
    assert aggregator.finish()[0]["w"].tolist() == pytest.approx([0.065] * WIDTH)


@pytest.mark.fault(
    "the server's disk takes no copies of updates", phase="validating", result="they stay in memory"
)
def test_a_disk_that_takes_no_copies_leaves_them_in_memory(tmp_path: Path) -> None:
    (tmp_path / "updates").write_text("a file where a folder should be")
    spool = UpdateSpool(tmp_path / "updates")
    spool.begin(0, "request")
    spool.keep("a", Reply(0, FACTS, update(1.0), trip=0.25))
    assert spool.take("a").tensors["w"][0] == 1.0
    assert not spool.kept(["a"])


def test_a_copy_is_used_for_the_very_same_request_only(tmp_path: Path) -> None:
    def spool(exchange: int, request: str) -> UpdateSpool:
        spool = UpdateSpool(tmp_path)
        spool.begin(exchange, request)
        return spool

    first = spool(3, "request")
    assert (tmp_path / "0003").stat().st_mode & 0o777 == 0o700, "nobody else on the machine reads them"
    first.keep("a", Reply(3, FACTS, update(1.0), trip=0.25))
    first.keep("b", Reply(2, FACTS, update(2.0)), repeatable=False)
    found = spool(3, "request").kept(["a", "b", "c"])
    assert [(site, reply.trip, reply.facts) for site, reply in found.items()] == [("a", 0.25, FACTS)]
    assert not spool(3, "another").kept(["a", "b"])
    assert not spool(4, "request").kept(["a"])
    assert not list(tmp_path.glob("0003"))


class Interruption:
    """Ends a job in its second round, when two of three updates are accepted there."""

    def __init__(self, run: Federation) -> None:
        self.run, self.folder = run, run.state.parent / "updates/0001"
        self.asked: list[str] = []
        run.tamper = self

    def __call__(self, site: str, task: str, reply: Shareable) -> Shareable | None:
        if (site, task, reply.get_header("current_round")) != ("site-3", FIT, 1) or self.run.abort.triggered:
            return None
        while len(list(self.folder.glob("*.safetensors"))) < 2:
            time.sleep(0.005)
        self.run.abort.trigger(True)
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")


@pytest.mark.fault(
    "server dies when two of three updates are accepted",
    phase="training ({uplink}), their copies on the disk {harm}",
    result="equal; only who is missing is asked",
)
@pytest.mark.parametrize("harm", [None, damage, Path.unlink], ids=["whole", "damaged", "gone"])
@pytest.mark.parametrize("uplink", ["float32", "int8"])
def test_who_was_accepted_is_not_asked_again(
    federation: Make, uplink: str, harm: Callable[[Path], object] | None
) -> None:
    args = {"num_rounds": 3, "uplink": uplink}
    undisturbed = federation(controller=args)
    whole = completed(undisturbed)
    run = federation(controller=args)
    ending = Interruption(run)
    assert run.run().status == "stopped"
    kept = {file.stem: file for file in ending.folder.glob("*.safetensors")}
    assert sorted(kept) == ["site-1", "site-2"]
    if harm is not None:
        harm(kept.pop("site-2"))
    again = resumed(run)
    again.tamper = None
    asked: list[str] = []
    again.mislead = lambda site, task, message: (
        asked.append(site) if (task, message.get_header("current_round")) == (FIT, 1) else None
    )
    record = completed(again)
    assert sorted(asked) == sorted(set(SITES) - set(kept))
    assert [event["site"] for event in events(again, "kept update")] == sorted(kept)
    assert torch.equal(final(again)[ADAPTER], final(undisturbed)[ADAPTER])
    ours, theirs = record.rounds[1], whole.rounds[1]
    assert (ours.accepted, ours.metrics, ours.traffic) == (theirs.accepted, theirs.metrics, theirs.traffic)
    assert set(ours.timings) == set(SITES)
    assert not list((run.state.parent / "updates").glob("*")), "the state holds them now"


@pytest.mark.fault(
    "run.json is empty after a power cut", phase="resuming", result="goes on with the state's record"
)
def test_a_record_that_a_power_cut_damaged_is_that_of_the_state(federation: Make) -> None:
    run = federation(controller={"num_rounds": 3})
    Interruption(run)
    assert run.run().status == "stopped"
    (run.state.parent / "run.json").write_bytes(b"")
    again = resumed(run)
    again.tamper = None
    assert [len(entry.accepted) for entry in completed(again).rounds] == [3, 3, 3]
