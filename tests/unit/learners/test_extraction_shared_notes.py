# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA+ in client mode: a site's factor, and D_v that is the same everywhere and never learnt from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from extraction_sites import PLAN, make, site

from medflare.aggregation.influence import Influence
from medflare.core.errors import ConfigError, DataError, RunError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.data.records import Entity, Note, Relation
from medflare.egress.chain import Egress
from medflare.federation.server.preparation import agree, require_shared_notes
from medflare.in_process.loop import federate
from medflare.learners.extraction.learner import ExtractionLearner
from medflare.learners.extraction.notes import LearnsFromNotes
from medflare.learners.text_task.validation_texts import check_disjoint, digest_of
from medflare.wire.task_messages import TaskResult

NOTE = Note(
    note_id="n1",
    text="Severe chest pain.",
    entities=(
        Entity(entity_id="T1", label="problem", spans=((7, 17),)),
        Entity(entity_id="T2", label="severity", spans=((0, 6),)),
    ),
    relations=(Relation(label="hasAttr", head="T1", tail="T2"),),
)
OTHER = Note(note_id="n2", text="No fever.")


@pytest.fixture(scope="module")
def learner(notes: Path) -> ExtractionLearner:
    return make(site(notes, validation=notes / "validation"))


# ---- the factor -------------------------------------------------------------------------------------------


def asked(temperature: float, clip: float = 2.0) -> RoundPlan:
    return replace(
        PLAN, hints=RoundHints.from_json({"influence": {"temperature": temperature, "clip": clip}})
    )


def test_the_factor_compares_the_loss_on_the_shared_notes_before_and_after(
    learner: ExtractionLearner,
) -> None:
    learner.load_shared(learner.initial_shared())
    before = learner.model.mean_loss(learner.shared_rows, 32)
    update = learner.fit(asked(temperature=5.0))
    after = learner.model.mean_loss(learner.shared_rows, 32)
    assert update.metrics["shared_loss"] == after != before
    assert update.factor == pytest.approx(math.exp(-(after - before) / 5.0))
    assert abs(after - before) < 10, "else this test would look at the clip"


def test_the_factor_is_clipped(learner: ExtractionLearner) -> None:
    learner.load_shared(learner.initial_shared())
    assert abs(math.log(learner.fit(asked(temperature=1e-9, clip=0.5)).factor)) == pytest.approx(0.5)


def test_sites_that_score_themselves_weigh_as_a_server_that_scores_them(notes: Path) -> None:
    shared = notes / "validation"
    found: dict[str, Any] = {}
    for mode in ("server", "client"):
        rule = Influence(mode=mode, temperature=0.05, clip=20)
        judge = None
        if mode == "server":
            validation_site = site(notes, "validation", split={"train": 0, "val": 1, "test": 0})
            judge = make(validation_site.model_copy(update={"name": "server"}))
        learners = {n: make(site(notes, n, shared)) for n in ("site-1", "site-2")}
        state = federate(learners, rule, 1, lambda r: replace(PLAN, rounds=1), judge=judge)
        found[mode] = (rule.report()["weights"], state)
    weights = found["server"][0]
    assert found["client"][0] == pytest.approx(weights, rel=1e-4)
    rows = {name: len(learners[name].train_rows) for name in learners}
    by_size = rows["site-1"] / sum(rows.values())
    assert abs(weights["site-1"] - by_size) > 1e-3, "the notes have a say"
    for name, value in found["server"][1].items():
        torch.testing.assert_close(found["client"][1][name], value, atol=1e-7, rtol=1e-4)


def test_without_shared_notes_a_site_says_what_to_write(notes: Path) -> None:
    with pytest.raises(ConfigError, match=r"site 'site-1'.*'validation' in site\.yaml"):
        make(site(notes)).fit(asked(1.0))


# ---- the notes --------------------------------------------------------------------------------------------


def moved(note: Note, **changes: Any) -> Note:
    return replace(note, **changes)


@pytest.mark.parametrize(
    ("same", "notes"),
    [
        (True, [OTHER, NOTE]),
        (True, [moved(NOTE, note_id="x", patient_id="p", split="val"), OTHER]),
        (True, [moved(NOTE, entities=NOTE.entities[::-1]), OTHER]),
        (False, [NOTE]),
        (False, [moved(NOTE, text="Severe chest pain!"), OTHER]),
        (False, [moved(NOTE, relations=()), OTHER]),
        (False, [moved(NOTE, tasks=("ner",)), OTHER]),
        (False, [moved(NOTE, annotated=("problem",)), OTHER]),
        (False, [moved(NOTE, entities=(moved(NOTE.entities[0], label="test"), NOTE.entities[1])), OTHER]),
    ],
)
def test_the_digest_knows_notes_by_what_a_loss_depends_on(same: bool, notes: list[Note]) -> None:
    one, other = (digest_of([LearnsFromNotes.facts(n) for n in each]) for each in (notes, [NOTE, OTHER]))
    assert (one == other) is same


def test_a_site_tells_how_many_shared_notes_it_has_and_their_digest(
    learner: ExtractionLearner, tmp_path: Path
) -> None:
    facts = learner.describe().to_json()
    records = learner.shared_records()
    assert records is not None
    assert facts["validation"] == records.model_dump()
    assert facts["validation"]["notes"] == 2
    door = Egress(ledger=tmp_path / "egress.jsonl", site="site-1", job="job", uplink="float32")
    assert door.send("prepare", -1, TaskResult({"describe": facts}, {})).facts["describe"] is facts


def told(sha256: str | None) -> dict[str, Any]:
    described: dict[str, Any] = {"backbone": {"name": "b", "fingerprint": "f"}, "examples": {"train": 1}}
    if sha256 is not None:
        described["validation"] = {"notes": 5, "sha256": sha256}
    return {"describe": described, "shared": {}, "sums": {}}


def test_a_site_with_other_shared_notes_is_named_before_round_1() -> None:
    facts = {
        "site-1": told("a" * 64),
        "site-2": told("b" * 64),
        "site-3": told("a" * 64),
        "server": told(None),
    }
    with pytest.raises(
        RunError, match=r"validation notes of site-2 is .*b{12}, of site-1 .*'validation' in"
    ) as e:
        agree(facts, list(facts))
    assert "site-3" not in str(e.value)
    agree(facts | {"site-2": told("a" * 64)}, list(facts))


def test_sites_with_shared_notes_may_begin_and_those_without_are_named_with_what_to_do() -> None:
    require_shared_notes({"a": told("0" * 64), "b": told("0" * 64)})
    with pytest.raises(RunError, match=r"b, c named none.*'validation' in site.yaml"):
        require_shared_notes({"a": told("0" * 64), "b": told(None), "c": told(None)})


@pytest.mark.parametrize("split", ["train", "test"])
def test_shared_notes_that_a_site_learns_or_tests_are_refused_by_name(split: str) -> None:
    site_notes = [moved(OTHER, note_id="a-17", text="  no\nFEVER. ", split=split), moved(NOTE, text="Else.")]
    with pytest.raises(DataError, match=rf"1 of the shared.*'n2' is 'a-17' of the split {split}"):
        check_disjoint("site-1", *(map(LearnsFromNotes.known, n) for n in (site_notes, [NOTE, OTHER])))


def test_a_sites_own_validation_split_may_hold_the_shared_notes(notes: Path) -> None:
    config = site(notes, validation=notes / "site-1", split={"train": 0, "val": 1, "test": 0})
    assert make(config).describe().to_json()["validation"]["notes"] == 4
    with pytest.raises(DataError, match="4 of the shared validation records are among the site's own"):
        make(site(notes, validation=notes / "site-1", split={"train": 1, "val": 0, "test": 0}))
