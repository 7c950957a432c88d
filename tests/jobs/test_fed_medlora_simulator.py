# SPDX-License-Identifier: Apache-2.0
"""jobs/fed_medlora_plus through the simulator, small: weights by influence, results, and the plain loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from medflare.aggregation import make_rule
from medflare.aggregation.influence import influence_weights
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord
from medflare.core.tensors import State
from medflare.data.settings.cohort import SplitConfig
from medflare.data.settings.site import load_site
from medflare.evaluation.extraction_predictions import read_documents
from medflare.in_process.loop import federate
from medflare.learners.extraction.learner import ADAPTER_PREFIX, build
from medflare.models.adapters.base import GENERIC
from medflare.recipes import after_run, simulate
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from medflare.synthetic.notes.files import write_validation_notes
from medflare.tasks.extraction.extractor_folder import load_extractor

pytestmark = pytest.mark.simulator
JOB = Path(__file__).parents[2] / "jobs/fed_medlora_plus"
SITES = ("site-1", "site-2")
SMALL: dict[str, Any] = {
    "settings.lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "settings.optimiser.batch": 2,
    "settings.eval_limit": 0,
    "final_limit": 1,
    "steps": 2,
    "uplink": "float32",
    "downlink": "float32",
    "worker": "thread",
    "scorer": "thread",
}


@dataclass
class Finished:
    folder: Path
    site_file: Path
    record: RunRecord


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Two sites and the server's validation notes, two rounds; site-3 takes no part."""
    folder = tmp_path_factory.mktemp("extraction")
    for name, hospital in zip((*SITES, "site-3"), NOTE_HOSPITALS, strict=True):
        write_notes_hospital(hospital, folder / name, 4, "jsonl")
    write_validation_notes(folder / "server", count=1)
    blocks = {
        name: {
            "cohort": {
                "format": "notes_jsonl",
                "root": name,
                "split": {"train": 0.5, "val": 0.25, "test": 0.25},
            },
            "backbone": {"precision": "fp32"},
            "device": "cpu",
        }
        for name in (*SITES, "site-3", "server")
    }
    (folder / "site.yaml").write_text(yaml.safe_dump({"sites": blocks}))
    record = simulate.run_simulator(
        JOB,
        folder / "ws",
        sites=SITES,
        site_file=folder / "site.yaml",
        rounds=2,
        changes=SMALL,
        timeout=900,
    )
    return Finished(folder / "ws" / simulate.SERVER_FOLDER, folder / "site.yaml", record)


def test_every_round_has_the_losses_and_the_weights_they_give(finished: Finished) -> None:
    record = finished.record
    assert [sorted(entry.accepted) for entry in record.rounds] == [list(SITES)] * 2
    for entry in record.rounds:
        losses = [entry.rule["losses"][site] for site in SITES]
        expected = influence_weights(losses, [entry.accepted[site] for site in SITES], temperature=0.1)
        assert [entry.rule["weights"][site] for site in SITES] == pytest.approx(expected)
        assert losses[0] != losses[1]
        assert "val_loss" in entry.mean
    assert record.rounds[1].traffic["site-2"].sent == record.expected_bytes_per_direction > 0


def looped(finished: Finished) -> State:
    """The same rounds in this process without FLARE."""
    job = override(read_job(JOB), SMALL)
    sites = {name: load_site(finished.site_file, name) for name in (*SITES, "server")}
    own = sites.pop("server")
    whole = own.cohort[0].model_copy(update={"split": SplitConfig(train=0, val=1, test=0)})
    judge = build(job.settings, own.model_copy(update={"cohort": (whole,)}), finished.record.seed)
    learners = {name: build(job.settings, site, finished.record.seed) for name, site in sites.items()}
    rule = make_rule(job.aggregation["rule"], job.aggregation["rule_settings"])
    plan = {"rounds": 2, "steps": 2, "seed": finished.record.seed}
    return federate(learners, rule, 2, lambda number: RoundPlan(round=number, **plan), judge=judge)


def test_the_result_opens_and_is_what_the_plain_loop_learns(finished: Finished) -> None:
    extractor = load_extractor(finished.folder / finished.record.artefacts["final"], precision="fp32")
    found = extractor.model.adapters.state(GENERIC)
    for name, value in looped(finished).items():
        torch.testing.assert_close(found[name.removeprefix(ADAPTER_PREFIX)], value, atol=1e-6, rtol=1e-5)
    assert all(value.any() for value in found.values())


def test_every_site_keeps_its_predictions_and_tells_scores(finished: Finished) -> None:
    evaluations = {item.site: item for item in finished.record.evaluations}
    assert sorted(evaluations) == list(SITES)
    for item in evaluations.values():
        documents = read_documents(finished.folder / str(item.predictions))
        assert len(documents) == item.studies == 1
        assert {"ner_strict_f1", "re_gold_strict_f1", "parse_failure_rate"} <= set(item.metrics)


def test_a_hospital_that_took_no_part_is_tested_afterwards(finished: Finished) -> None:
    path = after_run.locate(finished.folder)
    found = after_run.score_site(path, load_site(finished.site_file, "site-3"))
    assert (found.role, found.adapter, found.site) == ("unseen", "generic", "site-3")
    assert (path.parent / str(found.predictions)).is_file()
