# SPDX-License-Identifier: Apache-2.0
"""Everything dies in one phase of a run, at the server or at a site, and the run goes on to the same result.

A phase is named by a function that is called in it; the plug is pulled where it begins or where it ends. Each
is tried in the clear, with int8 updates and error feedback, and under masks. The table of all faults is in
docs/results/faults.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from fed_harness import Federation, Make, completed
from fed_plug import interrupted_in, resumed
from fed_toy import ToyLearner
from test_resume import same, tensors

from medflare.core.run_record import RunRecord
from medflare.core.tensors import State
from medflare.egress.chain import Egress
from medflare.federation.server import phases, round, run_state
from medflare.federation.server.aggregator import ValidatingAggregator
from medflare.federation.server.channel import Channel
from medflare.federation.server.checkpoint_manager import CheckpointManager
from medflare.federation.server.first_values import FirstValues
from medflare.federation.server.update_spool import UpdateSpool
from medflare.models.peft_folder import PeftFolder
from medflare.protections.masked_server import MaskedServer
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.worker.session import WorkerSession

SITES = 3
ARGS: dict[str, dict[str, Any]] = {
    "int8": {"num_rounds": 3, "uplink": "int8", "downlink": "int8", "canary": True, "deadline": 60.0},
    "masking": {"num_rounds": 3, "protection": "masking", "canary": True, "deadline": 60.0},
}


@dataclass(frozen=True)
class Phase:
    """Where the plug is pulled.

    Attributes:
        words: of the phase. owner, name: the function. call: which call of it.
        after: at its end. protection: under which it is tried only.
    """

    words: str
    owner: Any
    name: str
    call: int = 1
    after: bool = False
    protection: str = ""

    def __str__(self) -> str:
        return self.words


SERVER = [
    Phase("agreeing on tensors in `prepare`", phases, "agree"),
    Phase("taking first values", FirstValues, "check"),
    Phase("before the canary", phases, "run_canary"),
    Phase("after the canary", phases, "run_canary", after=True),
    Phase("selecting sites", round, "select_clients", 2),
    Phase("sending the state", Channel, "broadcast", 6),
    Phase("validating the second update", ValidatingAggregator, "accept", 2 * SITES + 2),
    Phase("keeping an accepted update", UpdateSpool, "keep", 2 * SITES + 2, protection="int8"),
    Phase("after an update was kept", UpdateSpool, "keep", 2 * SITES + 2, after=True, protection="int8"),
    Phase("aggregating", ValidatingAggregator, "finish", 2),
    Phase("after aggregation", ValidatingAggregator, "finish", 2, after=True),
    Phase("measuring", round, "evaluate", 2),
    Phase("writing the record", RunRecord, "write", 12),
    Phase("writing the state's first file", run_state, "save_tensors", 13),
    Phase("writing the state's last file", run_state, "save_tensors", 15),
    Phase("after the state is in its place", run_state, "replace_durably", 4, after=True),
    Phase("writing the best adapter", PeftFolder, "write", 2),
    Phase("before the final test", phases, "final_test"),
    Phase("recording the final test", CheckpointManager, "add_evaluations"),
    Phase("exporting the final adapter", CheckpointManager, "export_final"),
    Phase("masks: after public keys", Coordinator, "adverts", 4, protection="masking"),
    Phase("masks: after shares", Coordinator, "shares_for", 3 * SITES + 2, protection="masking"),
    Phase("masks: taking a masked update", MaskedServer, "add_sealed", 2 * SITES + 2, protection="masking"),
    Phase("masks: before confirmations", Coordinator, "survivors", 4, protection="masking"),
    Phase("masks: after confirmations", Coordinator, "confirmations", 4, protection="masking"),
    Phase("masks: after revealed shares", Coordinator, "result", 4, protection="masking"),
    Phase("masks: after the sum was opened", Coordinator, "result", 4, after=True, protection="masking"),
]
SITE = [
    Phase("in `prepare`", ToyLearner, "describe", 2),
    Phase("before training", ToyLearner, "fit", SITES + 2),
    Phase("after training, before its state is saved", ToyLearner, "fit", SITES + 2, after=True),
    Phase("saving its local state", WorkerSession, "_save", SITES + 2),
    Phase("after its local state is saved", WorkerSession, "_save", SITES + 2, after=True),
    Phase("in its egress chain", Egress, "send", 5 * SITES + 2),
    Phase("after the answer has left", Egress, "send", 5 * SITES + 2, after=True),
    Phase("measuring", ToyLearner, "evaluate", 2),
    Phase("in the final test", ToyLearner, "finish", 2),
]
IN_CI = {"after an update was kept", "masks: after revealed shares", "after its local state is saved"}


def rows() -> list[Any]:
    """Each phase, in the clear and under masks; all but a few are left to `make test-faults`."""
    return [
        pytest.param(
            party,
            phase,
            how,
            id=f"{party}: {phase.words}, {how}",
            marks=[] if phase.words in IN_CI else pytest.mark.faults,
        )
        for party, phases_of in (("server", SERVER), ("site", SITE))
        for phase in phases_of
        for how in ([phase.protection] if phase.protection else ["int8", "masking"])
    ]


def start(federation: Make, how: str) -> Federation:
    run = federation(controller=ARGS[how], timeout=120.0)
    return run


@pytest.fixture(scope="module")
def results() -> dict[str, State]:
    """Tensors of the runs that nobody disturbed."""
    return {}


@pytest.mark.fault("power cut at the {party} ({how})", phase="{phase}", result="equal after `resume`")
@pytest.mark.parametrize(("party", "phase", "how"), rows())
def test_a_run_that_died_goes_on_to_the_same_result(
    federation: Make,
    monkeypatch: pytest.MonkeyPatch,
    results: dict[str, State],
    party: str,
    phase: Phase,
    how: str,
) -> None:
    if how not in results:
        undisturbed = start(federation, how)
        completed(undisturbed)
        results[how] = tensors(undisturbed)
    run = start(federation, how)
    assert interrupted_in(run, monkeypatch, phase.owner, phase.name, phase.call, phase.after), "not reached"
    again = resumed(run)
    record = again.run()
    assert record.status == "completed", record.reason
    assert [len(entry.accepted) for entry in record.rounds] == [SITES] * 3
    assert same(tensors(again), results[how], "none")
