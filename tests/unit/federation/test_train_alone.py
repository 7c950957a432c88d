# SPDX-License-Identifier: Apache-2.0
"""Each site trains alone after a run: with which job, what enters the record, and what is not done twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from medflare.core.errors import ConfigError
from medflare.core.run_record import Estimate, EvaluationRecord, RunRecord, SiteRecord, read_record
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig, load_site_file
from medflare.evaluation.predictions import Prediction
from medflare.recipes import local_baseline
from medflare.recipes.job import Job
from medflare.recipes.job_reader import read_job
from medflare.recipes.local_baseline import FOLDER, check_baselines, job_alone, train_alone
from medflare.recipes.overrides import override
from medflare.recipes.resume import StoredRequest, WorkspaceState
from medflare.recipes.simulator_process import SERVER_FOLDER

JOBS = Path(__file__).parents[3] / "jobs"
SITES = ["north", "south"]


def job(name: str, **changes: Any) -> Job:
    return override(read_job(JOBS / name), changes)


@pytest.mark.parametrize(
    ("name", "changes", "rule"),
    [
        ("fedmrg", {}, "weighted_mean"),
        ("fedmrg", {"rule": "fedadam", "protection": "masking"}, "weighted_mean"),
        ("fed_medlora", {"rule": "fedavgm"}, "weighted_mean"),
        ("fedmrg", {"rule": "fedprox"}, "weighted_mean"),
        ("fedvit_gpt2_krum", {}, "weighted_mean"),
        ("ddcs_qa", {}, "weighted_mean"),
        ("fedtar", {}, "temporal"),
    ],
)
def test_a_rule_that_needs_a_server_or_several_sites_gives_way_and_no_other(
    name: str, changes: dict[str, Any], rule: str
) -> None:
    given = job(name, num_rounds=7, mandatory_sites=SITES, **changes)
    alone = job_alone(given)
    assert alone.aggregation["rule"] == rule
    assert (alone.n_clients, alone.controller["protection"], alone.controller["mandatory_sites"]) == (
        1,
        "none",
        [],
    )
    assert (alone.settings, alone.method, alone.controller["num_rounds"]) == (given.settings, given.method, 7)


def test_a_site_that_could_not_train_alone_is_named_before_the_run(tmp_path: Path) -> None:
    site = SiteConfig.model_validate({"cohort": {"format": "manifest", "root": str(tmp_path)}})
    known = dict.fromkeys(SITES, site)
    check_baselines(job("fedmrg"), known, SITES, tmp_path)
    policy = PolicyConfig(min_sites=3, require=("mask",), min_threshold=3)
    check_baselines(
        job("fedmrg", protection="masking"),
        dict.fromkeys(SITES, site.model_copy(update={"policy": policy})),
        SITES,
        tmp_path,
    )
    profile = {"seconds_per_example": 1.0, "up": 1.0, "down": 1.0}
    simulated = job("fedmrg", latency_profiles={"north": profile})
    with pytest.raises(ConfigError, match=r"south cannot train alone: .*no latency profile for south"):
        check_baselines(simulated, known, SITES, tmp_path)


def write_run(workspace: Path, sites: list[str], drafts: str, status: str = "completed") -> None:
    """Write what a run of the simulator leaves: a record, and each site's predictions at the site."""
    folder = workspace / SERVER_FOLDER
    cohort = {"format": "manifest", "root": str(workspace)}
    policy = {"min_sites": 3, "require": ["mask"], "min_site_noise": 0.5, "min_examples": 7}
    (workspace / "local").mkdir(parents=True)
    document = {"sites": {site: {"cohort": cohort, "policy": policy} for site in sites}}
    (workspace / "local" / "site.yaml").write_text(yaml.safe_dump(document))
    evaluations = []
    for site in sites:
        file = workspace / site / "predictions.jsonl"
        file.parent.mkdir(parents=True)
        rows = [
            Prediction(
                study_id=str(number),
                patient_id=str(number),
                site=site,
                adapter="generic",
                reference="small left effusion",
                generated=drafts,
                gold_codes=(0,) * 14,
                predicted_codes=(0,) * 14,
            ).model_dump_json()
            for number in range(4)
        ]
        file.write_text("\n".join(rows) + "\n")
        evaluations.append(
            EvaluationRecord(
                site=site,
                role="participant",
                adapter="generic",
                split="test",
                studies=4,
                metrics={"bleu_1": Estimate(value=0.5, low=0.4, high=0.6)},
                predictions=f"../../{site}/predictions.jsonl",
            )
        )
    folder.mkdir(parents=True)
    record = RunRecord(job="j", method="fedmrg", task="reports", run_id="r", started="2026", status=status)
    record.sites = {site: SiteRecord(backbone="b", fingerprint="f") for site in sites}
    record.evaluations = evaluations
    record.write(folder / "run.json")


def test_scores_of_training_alone_and_the_paired_difference_enter_the_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "run"
    write_run(workspace, SITES, "small left effusion")
    WorkspaceState(workspace).begin(
        job("fedmrg"), StoredRequest(sites=SITES, unseen=["east"], local_baseline=True)
    )
    tested: list[tuple[str, str]] = []
    monkeypatch.setattr(
        local_baseline, "score_unseen", lambda record, file, name: tested.append((record.parts[-4], name))
    )
    started: list[list[str]] = []

    def run(folder: Path, place: Path, sites: list[str], file: Path, **_: Any) -> None:
        assert read_job(folder).n_clients == 1
        policy = load_site_file(file)[sites[0]].policy
        assert policy == PolicyConfig(min_examples=7), "who else takes part is nobody's rule here"
        started.append(sites)
        write_run(place, sites, "no effusion")

    for _ in range(2):  # the second time, as after a crash, nothing is trained again
        for site in SITES:
            train_alone(workspace, site, run)
    assert started == [["north"], ["south"]]
    assert tested[:2] == [("north", "east"), ("south", "east")]
    record = read_record(workspace / SERVER_FOLDER)
    assert [item.trained_at for item in record.alone] == SITES
    for item in record.alone:
        gaps = {gap.metric: gap for gap in item.differences}
        assert gaps["bleu_1"].value > 0.3
        assert (workspace / SERVER_FOLDER / str(item.evaluation.predictions)).is_file()
        assert FOLDER in str(item.evaluation.predictions)


def test_a_training_that_did_not_complete_is_begun_again(tmp_path: Path) -> None:
    workspace = tmp_path / "run"
    write_run(workspace, SITES, "effusion")
    WorkspaceState(workspace).begin(job("fedmrg"), StoredRequest(sites=SITES))
    write_run(workspace / FOLDER / "north", ["north"], "x", status="failed")

    def run(_: Path, place: Path, sites: list[str], *__: Any, **options: Any) -> None:
        assert options["overwrite"]
        raise ConfigError(f"begun again in {place.name}")

    with pytest.raises(ConfigError, match="begun again in north"):
        train_alone(workspace, "north", run)
