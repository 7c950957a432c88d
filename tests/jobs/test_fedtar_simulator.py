# SPDX-License-Identifier: Apache-2.0
"""jobs/fedtar: the lines of its README, and a small run through the simulator with an unseen hospital."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.core.errors import ConfigError
from medflare.core.run_record import RunRecord
from medflare.data.settings.site import load_site
from medflare.evaluation.predictions import read_predictions
from medflare.recipes import after_run, simulate
from medflare.recipes.job_check import check_job
from medflare.recipes.job_main import changes_of
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override
from medflare.synthetic import DEMO_HOSPITALS, UNSEEN_HOSPITAL
from medflare.synthetic.follow_up import write_follow_up

JOB = Path(__file__).parents[2] / "jobs/fedtar"
SITES = ("site-1", "site-2", "site-3")
VISITS = 3
MIXTURE = {"components": 3, "least_patients": 2, "iterations": 2}
SMALL: dict[str, Any] = {
    "visits": VISITS,
    "settings.visits": VISITS,
    "rule_settings.visits": VISITS,
    "mixture": MIXTURE,
    "settings.mixture": MIXTURE,
    "settings.model.encoder": {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2},
    "settings.model.lora": {"rank": 2, "lora_alpha": 4, "targets": ["q_proj", "v_proj"]},
    "settings.patient": {"width": 4, "rank": 2, "lora_alpha": 4, "targets": ["q_proj"]},
    "settings.batch": 2,
    "settings.max_report_tokens": 24,
    "settings.decoding.max_new_tokens": 8,
    "settings.eval_limit": 0,
    "final_limit": 1,
    "steps": 1,
    "worker": "thread",
}


def test_the_committed_job_is_sound_and_says_visits_alike() -> None:
    job = read_job(JOB)
    check_job(job)
    assert job.workflow == "temporal"
    assert job.controller["mixture"] == job.settings["mixture"]


# ---- the lines of the README -------------------------------------------------------------------------------


def lines() -> dict[str, list[str]]:
    """Name of a run -> its `--set`, from the README's table; the six rules have a dot before their names."""
    rows = re.findall(
        r"^\| ([^|]+) \| ((?:`[a-z_.]+=[^`]+` ?)+)[^|]*\|$", (JOB / "README.md").read_text(), re.M
    )
    return {name.strip(): re.findall(r"`([^`]+)`", row) for name, row in rows}


RULES = [name for name in lines() if name.startswith("·")]
OTHERS = [name for name in lines() if not name.startswith(("·", "pooled", "sequential"))]


def test_the_readme_has_six_baselines_two_ways_and_two_ablations() -> None:
    assert len(RULES) == 6
    assert len([name for name in OTHERS if "Table 2" in name]) == 2


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("way", "workflow"), [("pooled, all of them", "rounds"), ("sequential, all of them", "temporal")]
)
def test_every_baseline_of_the_readme_is_a_job(way: str, workflow: str, rule: str) -> None:
    job = override(read_job(JOB), changes_of([*lines()[way], *lines()[rule]]))
    check_job(job)
    assert job.workflow == workflow
    assert job.aggregation["rule"] == rule.removeprefix("· ").lower()
    assert ("visits" in job.controller) == (workflow == "temporal")


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_line_of_the_readme_is_a_job(name: str) -> None:
    job = read_job(JOB)
    changed = override(job, changes_of(lines()[name]))
    check_job(changed)
    assert changed != job, "the line changes nothing"


def test_the_example_of_the_readme_is_a_job() -> None:
    text = (JOB / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    words = shlex.split(re.findall(r"^    (medflare run jobs/fedtar --set rule=fedadam .*)$", text, re.M)[0])
    job = override(read_job(JOB), changes_of(words[4::2]))
    check_job(job)
    assert job.aggregation["rule"] == "fedadam"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["workflow=rounds"], "the rule takes one visit an exchange"),
        (["visits=3"], "settings.visits is 4, and the controller's `visits` is 3"),
        (["mixture=null"], "no `mixture` stands in the controller's settings"),
        (["settings.variant=without_personalisation"], "Set mixture to null"),
        (["settings.mixture.components=8"], "Give both the same"),
        (["protection=he"], "stay encrypted"),
        (["workflow=swarm"], "is none of rounds, temporal"),
        (["rule=fedavg", "rule_settings.alpha_mode=softmax"], "alpha_mode"),
    ],
)
def test_what_does_not_go_together_is_said_before_anything_starts(changes: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_job(override(read_job(JOB), changes_of(changes)))


# ---- a run -------------------------------------------------------------------------------------------------


@dataclass
class Finished:
    folder: Path
    site_file: Path
    record: RunRecord


@pytest.fixture(scope="module")
def finished(without_java: None, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three sites, of which one lacks the second visit, two rounds; site-4 takes no part."""
    folder = tmp_path_factory.mktemp("visits")
    for name, hospital in zip((*SITES, "site-4"), (*DEMO_HOSPITALS, UNSEEN_HOSPITAL), strict=True):
        manifest = write_follow_up(hospital, folder / name, 8, VISITS, size=32)
        rows = manifest.read_text(encoding="utf-8").splitlines(keepends=True)
        kept = [row for row in rows if name != "site-2" or json.loads(row)["visit"] != 2]
        manifest.write_text("".join(kept), encoding="utf-8")
    cohort = {"format": "manifest", "visits": {"order": "visit"}, "columns": {"split": None}}
    split = {"train": 0.5, "val": 0.25, "test": 0.25}
    blocks = {
        name: {
            "cohort": {**cohort, "root": name, "split": split},
            "backbone": {"precision": "fp32"},
            "device": "cpu",
        }
        for name in (*SITES, "site-4")
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


@pytest.mark.simulator
def test_every_visit_of_every_round_has_its_exchange(finished: Finished) -> None:
    rounds = finished.record.rounds
    assert [[visit.round for visit in entry.exchanges] for entry in rounds] == [[0, 1, 2], [3, 4, 5]]
    for entry in rounds:
        assert sorted(entry.accepted) == list(SITES)
        assert entry.exchanges[1].accepted["site-2"] == 0 < entry.exchanges[1].accepted["site-1"]
        assert sum(entry.rule["beta"]) == pytest.approx(1)
    assert rounds[1].rule["alpha"] != rounds[0].rule["alpha"]
    told = 8 * (4 * VISITS + 1)  # slopes and times between visits
    assert rounds[1].traffic["site-3"].sent == VISITS * (finished.record.expected_bytes_per_direction + told)


@pytest.mark.simulator
def test_the_sites_agreed_on_a_mixture_that_the_result_holds(finished: Finished) -> None:
    told = finished.record.preparation["mixture"]
    assert told["iterations"] == MIXTURE["iterations"]
    result = finished.folder / finished.record.artefacts["final"]
    kept = json.loads((result / "longitudinal_generator.json").read_text(encoding="utf-8"))["mixture"]
    assert kept["weights"] == told["weights"]


@pytest.mark.simulator
def test_every_site_keeps_its_predictions_and_tells_scores(finished: Finished) -> None:
    evaluations = {item.site: item for item in finished.record.evaluations if item.role == "participant"}
    assert sorted(evaluations) == list(SITES)
    for item in evaluations.values():
        assert len(read_predictions(finished.folder / str(item.predictions))) == item.studies
        assert {"bleu_4", "label_f1", "visits/rouge_l"} <= set(item.metrics)


@pytest.mark.simulator
def test_a_hospital_that_took_no_part_is_tested_afterwards(finished: Finished) -> None:
    path = after_run.locate(finished.folder)
    found = after_run.score_site(path, load_site(finished.site_file, "site-4"))
    assert (found.role, found.adapter, found.site) == ("unseen", "generic", "site-4")
    assert (path.parent / str(found.predictions)).is_file()
