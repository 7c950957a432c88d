# SPDX-License-Identifier: Apache-2.0
"""jobs/ddcs_qa through the simulator, small: drawn sites train by a simulated clock; results open again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord
from medflare.data.settings.site import load_site
from medflare.evaluation.question_metrics import read_answers
from medflare.federation.server.run_state import load_state
from medflare.models.adapters.base import GENERIC
from medflare.recipes import after_run, simulate
from medflare.synthetic.knowledge import write_questions_demo
from medflare.tasks.questions.answerer_folder import load_answerer

pytestmark = pytest.mark.simulator
JOB = Path(__file__).parents[2] / "jobs/ddcs_qa"
SITES, UNSEEN = ("site-1", "site-2", "site-3"), "site-4"
SMALL: dict[str, Any] = {
    "settings.lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
    "settings.optimiser.batch": 2,
    "settings.eval_limit": 2,
    "final_limit": 2,
    "steps": 2,
    "uplink": "float32",
    "downlink": "float32",
    "worker": "thread",
}


@dataclass
class Finished:
    folder: Path
    site_file: Path
    record: RunRecord


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three hospitals, two rounds; site-4 takes no part."""
    folder = tmp_path_factory.mktemp("questions")
    write_questions_demo(folder, 4, questions=12, diseases=2, groups=3)
    site_file = folder / "site.yaml"
    record = simulate.run_simulator(
        JOB, folder / "ws", sites=SITES, site_file=site_file, rounds=2, changes=SMALL, timeout=900
    )
    return Finished(folder / "ws" / simulate.SERVER_FOLDER, site_file, record)


def test_drawn_sites_train_and_the_simulated_clock_passes(finished: Finished) -> None:
    record = finished.record
    assert set(record.preparation["sketches"]["sites"]) == set(SITES)
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 3
        assert set(entry.accepted) == set(entry.rule["drawn"]) <= set(SITES)
        assert entry.mean["val_accuracy"] >= 0
    first, second = (entry.simulated_seconds for entry in record.rounds)
    assert second > first > 0


def test_the_result_opens_and_every_site_keeps_its_answers(finished: Finished) -> None:
    model = load_answerer(finished.folder / finished.record.artefacts["final"]).model
    shared = load_state(finished.folder / "state").shared
    for name, value in model.adapters.state(GENERIC).items():
        assert torch.equal(value, shared[f"adapter.{name}"])
    for item in finished.record.evaluations:
        assert len(read_answers(finished.folder / str(item.predictions))) == item.studies == 2
        assert {"accuracy", "chance", "margin"} <= set(item.metrics)


def test_a_hospital_that_took_no_part_is_tested_afterwards(finished: Finished) -> None:
    path = after_run.locate(finished.folder)
    found = after_run.score_site(path, load_site(finished.site_file, UNSEEN))
    assert (found.role, found.adapter, found.site) == ("unseen", "generic", UNSEEN)
    assert (path.parent / str(found.predictions)).is_file()


def test_a_site_without_a_latency_profile_is_named_before_anything_starts(tmp_path: Path) -> None:
    write_questions_demo(tmp_path, 2, questions=12, diseases=2, groups=3)
    document = yaml.safe_load((tmp_path / "site.yaml").read_text())
    document["sites"]["ward"] = document["sites"].pop("site-2")
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    said = r"no latency profile for ward, only for site-1.*latency_profiles=\{\}"
    with pytest.raises(ConfigError, match=said):
        simulate.run_simulator(JOB, tmp_path / "ws", site_file=tmp_path / "site.yaml")
    assert not (tmp_path / "ws.log").exists()
