# SPDX-License-Identifier: Apache-2.0
"""An update that does not fit costs its site the round, and the record says why; the others go on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fed_harness import SITES, accepted, completed
from fed_learner import ADAPTER
from fed_tamper import spoiled
from fed_toy import ToyLearner
from nvflare.apis.shareable import Shareable

from medflare.core.plan import RoundPlan
from medflare.core.site_description import SharedRecords, SiteDescription
from medflare.core.update import Update

HEAD = "int8:2x3:head.weight"
INT8, INT4 = ({"uplink": uplink, "downlink": "int8"} for uplink in ("int8", "int4"))
SELF_WEIGHED = {"rule": "influence", "rule_settings": {"mode": "client", "clip": 0.5}}


def bad(site_2: str, **controller: Any) -> dict[str, Any]:
    """Site-2 makes a broken update in round 0."""
    return {"settings": {"sites": {"site-2": {"bad": {"0": site_2}}}}, "controller": controller}


def sent(change: Any, **controller: Any) -> dict[str, Any]:
    """What site-2 sent in the only round is changed before the server reads it."""
    tamper = spoiled("site-2", "fit", lambda tensors, facts: change(tensors))
    return {"tamper": tamper, "controller": {"num_rounds": 1, **controller}}


class Weighing(ToyLearner):
    """Has the validation notes of all sites, and site-2 claims a factor for itself."""

    factor: Any

    def describe(self) -> SiteDescription:
        notes = {"validation": SharedRecords(notes=5, sha256="0" * 64)}
        return super().describe().model_copy(update=notes)

    def fit(self, plan: RoundPlan) -> Update:
        update = super().fit(plan)
        update.factor = self.factor if self.site == "site-2" else 1.0
        return update


def claimed(factor: Any) -> dict[str, Any]:
    learner = type("Claiming", (Weighing,), {"factor": factor})
    return {"learner": learner, "rule": SELF_WEIGHED, "controller": {"num_rounds": 1}}


CASES: dict[str, tuple[dict[str, Any], str]] = {
    # of the site itself
    "nan": (bad("nan"), "not finite"),
    "nan under quantisation": (bad("nan", **INT4), "not finite"),
    "missing": (bad("missing"), "missing tensor 'head.weight'"),
    "heavy": (bad("heavy"), "weight 1000000"),
    "shape": (bad("shape"), "E21"),
    "extra": (bad("extra"), "E21"),
    # broken on the way
    "unexpected": (
        sent(lambda data: data.update(patients=torch.zeros(2))),
        "unexpected tensor 'patients'",
    ),
    "length": (sent(lambda data: data.update({ADAPTER: torch.zeros(9)})), "shape (9,), expected (1, 4)"),
    "dtype": (
        sent(lambda data: data.update({ADAPTER: torch.zeros(1, 4, dtype=torch.int64)})),
        "dtype torch.int64",
    ),
    "no scales": (
        sent(lambda data: data.pop("scale:head.weight"), **INT8),
        "'head.weight' came as int8 without its scales",
    ),
    "few codes": (
        sent(lambda data: data.update({HEAD: data[HEAD][:-1]}), **INT8),
        "'head.weight' came as torch.int8 codes",
    ),
    "infinite scales": (
        sent(lambda data: data["scale:head.weight"].fill_(math.inf), **INT8),
        "'head.weight' has scales",
    ),
    "unexpected codes": (
        sent(lambda data: data.update({"int8:2x2:patients": data[HEAD][:4]}), **INT8),
        "'patients' came as int8",
    ),
    "shape of codes": (
        sent(lambda data: data.update({HEAD.replace("2x3", "3x2"): data.pop(HEAD)}), **INT8),
        "has shape (3, 2)",
    ),
    # what a site claims for itself
    "large factor": (claimed(3.0), "factor 3.0, expected between"),
    "factor in words": (claimed("Doe"), "fact 'factor' of another kind"),
}


@pytest.mark.parametrize(("options", "reason"), CASES.values(), ids=CASES)
def test_an_update_is_rejected_with_the_reason_and_the_round_goes_on(
    federation, options: dict[str, Any], reason: str
) -> None:
    options = {**options, "controller": {**options["controller"], "min_responses": 2}}
    run = federation(**options)
    record = completed(run)
    assert accepted(record) == [["site-1", "site-3"], list(SITES)][: len(record.rounds)]
    assert reason in record.rounds[0].absent["site-2"]
    assert "Doe" not in (run.folder / "run.json").read_text()


def test_a_late_reply_of_an_old_round_is_refused(federation) -> None:
    old: dict[str, Shareable] = {}

    def replay(site: str, task: str, reply: Shareable) -> Shareable | None:
        """site-2 answers round 1 with its answer to round 0."""
        return old.setdefault("reply", reply) if (site, task) == ("site-2", "fit") else None

    record = federation(controller={"min_responses": 2}, tamper=replay).run()
    assert accepted(record) == [list(SITES), ["site-1", "site-3"]]
    assert record.rounds[1].absent["site-2"] == "late: reply of round 1 in round 2"
