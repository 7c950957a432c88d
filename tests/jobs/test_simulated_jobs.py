# SPDX-License-Identifier: Apache-2.0
"""Jobs of most tasks through the simulator, small: rounds, results, scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from simulated_jobs import JOBS, MIXTURE, ROUNDS, SMALL, STEPS, VISITS, Runs, write_questions

from influence_formula import influence_weights
from medflare.aggregation import make_rule
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.data.settings.cohort import SplitConfig
from medflare.data.settings.site import load_site
from medflare.federation.server.run_state import load_state
from medflare.in_process.loop import federate
from medflare.learners.extraction.learner import build
from medflare.models.adapters.base import GENERIC
from medflare.recipes import after_run, simulate
from medflare.recipes.job_reader import read_job
from medflare.recipes.overrides import override

pytestmark = pytest.mark.simulator


@pytest.fixture(scope="module")
def runs(without_java: None, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp)


@pytest.mark.parametrize("name", SMALL)
def test_every_site_keeps_its_predictions_and_tells_scores(runs: Runs, name: str) -> None:
    run, limit = runs[name], SMALL[name].changes["final_limit"]
    evaluations = {item.site: item for item in run.record.evaluations if item.role == "participant"}
    assert tuple(sorted(evaluations)) == run.job.sites
    for item in evaluations.values():
        assert len(run.job.read(run.folder / str(item.predictions))) == item.studies
        assert item.studies == limit or name == "fedtar", "its limit is of patients"
        assert run.job.metrics <= set(item.metrics)


@pytest.mark.parametrize("name", SMALL)
def test_a_hospital_that_took_no_part_is_tested_afterwards(runs: Runs, name: str) -> None:
    run = runs[name]
    path = after_run.locate(run.folder)
    record = after_run.score_site(path, load_site(run.site_file, run.job.unseen))
    assert (record.role, record.adapter, record.site) == ("unseen", "generic", run.job.unseen)
    assert (path.parent / str(record.predictions)).is_file()


@pytest.mark.parametrize("name", [name for name, job in SMALL.items() if job.load])
def test_the_result_opens_and_holds_what_the_server_does(runs: Runs, name: str) -> None:
    run = runs[name]
    opened = run.job.load(run.folder / run.record.artefacts["final"], precision="fp32")
    shared = load_state(run.state).shared
    state = opened.model.adapters.state(GENERIC)
    assert all(torch.equal(value, shared[f"adapter.{key}"]) for key, value in state.items())
    assert all(value.any() for value in state.values())


# ---- fed_medlora_plus --------------------------------------------------------------------------------------


def test_every_round_has_the_losses_and_the_weights_they_give(runs: Runs) -> None:
    record, sites = runs["fed_medlora_plus"].record, SMALL["fed_medlora_plus"].sites
    assert [sorted(entry.accepted) for entry in record.rounds] == [list(sites)] * ROUNDS
    for entry in record.rounds:
        losses = [entry.rule["losses"][site] for site in sites]
        expected = influence_weights(losses, [entry.accepted[site] for site in sites], temperature=0.1)
        assert [entry.rule["weights"][site] for site in sites] == pytest.approx(expected)
        assert losses[0] != losses[1]
        assert "val_loss" in entry.mean
    assert record.rounds[1].traffic["site-2"].sent == record.expected_bytes_per_direction > 0


def test_the_result_is_what_the_plain_loop_learns(runs: Runs) -> None:
    run = runs["fed_medlora_plus"]
    job = override(read_job(JOBS / run.job.name), run.job.changes)
    sites = {name: load_site(run.site_file, name) for name in (*run.job.sites, "server")}
    server = sites.pop("server")
    validation = server.cohort[0].model_copy(update={"split": SplitConfig(train=0, val=1, test=0)})
    judge = build(job.settings, server.model_copy(update={"cohort": (validation,)}), run.record.seed)
    learners = {name: build(job.settings, site, run.record.seed) for name, site in sites.items()}
    rule = make_rule(job.aggregation["rule"], job.aggregation["rule_settings"])
    plan = {"rounds": ROUNDS, "steps": STEPS, "seed": run.record.seed}
    expected = federate(learners, rule, ROUNDS, lambda number: RoundPlan(round=number, **plan), judge=judge)
    shared = load_state(run.state).shared
    for name, value in expected.items():
        torch.testing.assert_close(shared[name], value, atol=1e-6, rtol=1e-5)


# ---- ddcs_qa -----------------------------------------------------------------------------------------------


def test_drawn_sites_train_and_the_simulated_clock_passes(runs: Runs) -> None:
    record, sites = runs["ddcs_qa"].record, set(SMALL["ddcs_qa"].sites)
    assert set(record.preparation["sketches"]["sites"]) == sites
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 3
        assert set(entry.accepted) == set(entry.rule["drawn"]) <= sites
        assert entry.mean["val_accuracy"] >= 0
    first, second = (entry.simulated_seconds for entry in record.rounds)
    assert second > first > 0


def test_a_site_without_a_latency_profile_is_named_before_anything_starts(tmp_path: Path) -> None:
    write_questions(tmp_path)
    document = yaml.safe_load((tmp_path / "site.yaml").read_text())
    sites = document["sites"]
    document["sites"] = {"site-1": sites["site-1"], "ward": sites["site-2"]}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(
        ConfigError, match=r"no latency profile for ward, only for site-1.*latency_profiles=\{\}"
    ):
        simulate.run_simulator(JOBS / "ddcs_qa", tmp_path / "ws", site_file=tmp_path / "site.yaml")
    assert not (tmp_path / "ws.log").exists()


# ---- fedtar ------------------------------------------------------------------------------------------------


def test_every_visit_of_every_round_has_its_exchange(runs: Runs) -> None:
    record = runs["fedtar"].record
    assert [[visit.round for visit in entry.exchanges] for entry in record.rounds] == [[0, 1, 2], [3, 4, 5]]
    for entry in record.rounds:
        assert tuple(sorted(entry.accepted)) == SMALL["fedtar"].sites
        assert entry.exchanges[1].accepted["site-2"] == 0 < entry.exchanges[1].accepted["site-1"]
        assert sum(entry.rule["beta"]) == pytest.approx(1)
    assert record.rounds[1].rule["alpha"] != record.rounds[0].rule["alpha"]
    slopes_and_times = 8 * (4 * VISITS + 1)
    message = record.expected_bytes_per_direction + slopes_and_times
    assert record.rounds[1].traffic["site-3"].sent == VISITS * message


def test_the_sites_agreed_on_a_mixture_that_the_result_holds(runs: Runs) -> None:
    run = runs["fedtar"]
    mixture = run.record.preparation["mixture"]
    assert mixture["iterations"] == MIXTURE["iterations"]
    result = run.folder / run.record.artefacts["final"]
    kept = json.loads((result / "longitudinal_generator.json").read_text(encoding="utf-8"))["mixture"]
    assert kept["weights"] == mixture["weights"]
