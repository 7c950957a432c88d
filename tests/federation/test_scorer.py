# SPDX-License-Identifier: Apache-2.0
"""The server scores updates itself: what it needs, what it makes of them, and what a fault costs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import SITES, TOY_WORKER, Federation
from fed_toy import ADAPTER, ToyLearner
from nvflare.apis.dxo import from_shareable
from safetensors.torch import load_file

from medflare.aggregation.capabilities import ScoresCandidates
from medflare.aggregation.influence import Influence, influence_weights
from medflare.aggregation.l_fedavg import LossFedAvg
from medflare.aggregation.lora import LoraStack
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.errors import RunError
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import split_by_prefix
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.settings.cohort import SplitConfig
from medflare.egress.failures import SiteSettingsError
from medflare.federation.server.run_state import load_state
from medflare.federation.server.scorer import SERVER, common_method
from medflare.federation.site import worker_config
from medflare.federation.site.worker import ProcessWorker
from medflare.federation.site.worker_config import WorkerConfig, load_site_settings
from medflare.in_process.loop import federate
from medflare.recipes import simulate
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.recipes.overrides import override

ALL = list(SITES)


def scored(run: Federation, **settings: Any) -> Federation:
    run.aggregator.rule = Influence(**settings)
    return run


def events(run: Federation, phase: str) -> list[dict[str, Any]]:
    lines = (run.folder / "progress.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["phase"] == phase]


def only(site: str, **settings: Any) -> dict[str, Any]:
    return {"sites": {site: settings}}


def loop(rounds: int, rule: Any, judge: ToyLearner | None) -> State:
    learners = {site: ToyLearner({}, site, 0) for site in ALL}
    return federate(learners, rule, rounds, lambda r: RoundPlan(round=r, rounds=rounds), judge=judge)


# ---- a run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "scores"),
    [
        (Influence(mode="server"), True),
        (Influence(mode="client"), False),
        (LossFedAvg(), False),
        (LossFedAvg(loss_source="server"), True),
        (LossFedAvg(loss_source="cross"), False),
        (WeightedMean(), False),
        (LoraStack(), False),
    ],
)
def test_only_a_rule_that_scores_candidates_needs_the_server(rule: Any, scores: bool) -> None:
    scored = rule.capability(ScoresCandidates)
    assert (scored is not None and scored.scored_by == "server") is scores


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_run_equals_the_plain_loop_with_a_judge(federation, kind: str) -> None:
    run = scored(federation(controller={"num_rounds": 3, "scorer": kind}, timeout=300))
    record = run.run()
    assert record.status == "completed", record.reason
    expected = loop(3, Influence(), ToyLearner({}, SERVER, 0))
    assert torch.equal(load_state(run.folder / "state").shared[ADAPTER], expected[ADAPTER])
    plain = loop(3, WeightedMean(), None)
    assert not torch.equal(plain[ADAPTER], expected[ADAPTER])


def test_sites_that_measure_each_others_models_give_what_the_plain_loop_gives(federation) -> None:
    run = federation(controller={"num_rounds": 2})
    run.aggregator.rule = LossFedAvg(loss_source="cross")
    record = run.run()
    assert record.status == "completed", record.reason
    expected = loop(2, LossFedAvg(loss_source="cross"), None)
    assert torch.allclose(load_state(run.folder / "state").shared[ADAPTER], expected[ADAPTER], rtol=1e-6)
    told = events(run, "scored")
    assert [(event["round"], event["site"]) for event in told] == [(n, site) for n in (0, 1) for site in ALL]
    assert all(sorted(event["measured"]) == ALL for event in told)
    assert record.rounds[1].rule["losses"] == {e["site"]: e["cross_loss"] for e in told if e["round"] == 1}
    assert len(set(record.rounds[1].rule["losses"].values())) == 3


def test_a_model_that_no_site_can_measure_costs_its_site_the_round(federation, monkeypatch) -> None:
    asked, original = [], ToyLearner.evaluate

    def evaluate(self, split, plan):
        asked.append(plan.hints.loss_only)
        return {} if asked.count(True) in (4, 5, 6) and asked[-1] else original(self, split, plan)

    monkeypatch.setattr(ToyLearner, "evaluate", evaluate)
    run = federation(controller={"num_rounds": 1, "min_responses": 2})
    run.aggregator.rule = LossFedAvg(loss_source="cross")
    record = run.run()
    assert sorted(record.rounds[0].accepted) == ["site-1", "site-3"]
    assert "no site with validation data measured a finite loss" in record.rounds[0].absent["site-2"]


def test_losses_and_weights_are_in_the_record_and_in_the_progress(federation) -> None:
    run = scored(federation(), temperature=0.5)
    record = run.run()
    for entry in record.rounds:
        losses = [entry.rule["losses"][site] for site in ALL]
        expected = influence_weights(losses, [16, 20, 24], temperature=0.5)
        assert [entry.rule["weights"][site] for site in ALL] == pytest.approx(expected)
        told = [event for event in events(run, "weighed") if event["round"] == entry.round]
        assert [(e["site"], e["weight"], e["server_loss"]) for e in told] == [
            (site, entry.rule["weights"][site], entry.rule["losses"][site]) for site in ALL
        ]
    assert [(event["round"], event["site"]) for event in events(run, "scored")] == [
        (number, site) for number in (0, 1) for site in ALL
    ]


def test_what_is_scored_is_the_state_with_one_sites_update(federation) -> None:
    run = scored(federation(controller={"num_rounds": 1}))
    record = run.run()
    judge, site = ToyLearner({}, SERVER, 0), ToyLearner({}, "site-2", 0)
    state = ToyLearner({}, "site-1", 0).initial_shared()
    site.load_shared(state)
    update = site.fit(RoundPlan(round=0, rounds=1))
    judge.load_shared({name: value + update.delta[name] for name, value in state.items()})
    loss = judge.evaluate("val", RoundPlan(round=0, rounds=1))["loss"]
    assert record.rounds[0].rule["losses"]["site-2"] == pytest.approx(loss, rel=1e-6)


def test_nothing_but_the_loss_is_asked_for(federation, monkeypatch) -> None:
    asked, original = [], ToyLearner.evaluate

    def evaluate(self, split, plan):
        asked.append((self.site == SERVER, split, plan.hints.loss_only))
        return original(self, split, plan)

    monkeypatch.setattr(ToyLearner, "evaluate", evaluate)
    scored(federation(controller={"num_rounds": 1})).run()
    loop(1, Influence(), ToyLearner({}, SERVER, 0))
    assert {item for item in asked if item[0]} == {(True, "val", True)}
    assert {item[2] for item in asked if not item[0]} == {False}


def test_a_canary_tries_the_scorer_too(federation) -> None:
    run = scored(federation(controller={"num_rounds": 1, "canary": True}))
    assert run.run().status == "completed"
    assert len(events(run, "scored")) == 6


def test_scores_come_after_the_exchange_so_that_they_delay_no_site(federation) -> None:
    run = scored(federation(controller={"num_rounds": 1}))
    run.run()
    lines = (run.folder / "progress.jsonl").read_text().splitlines()
    phases = [json.loads(line)["phase"] for line in lines]
    assert [phase for phase in phases if phase in ("update", "scored")] == ["update"] * 3 + ["scored"] * 3


# ---- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "reason"),
    [("nan", "scored a loss of nan on the server's validation data"), ("raise", "E40 KeyError in evaluate")],
)
def test_a_score_that_fails_costs_the_site_its_round(federation, monkeypatch, failing, reason) -> None:
    original, count = ToyLearner.evaluate, [0]

    def evaluate(self, split, plan):
        if self.site == SERVER:
            count[0] += 1
            if count[0] == 2 and failing == "raise":
                raise KeyError("a note's text")
            if count[0] == 2:
                return {"loss": math.nan}
        return original(self, split, plan)

    monkeypatch.setattr(ToyLearner, "evaluate", evaluate)
    run = scored(federation(controller={"min_responses": 2}))
    record = run.run()
    assert record.status == "completed", record.reason
    assert [sorted(entry.accepted) for entry in record.rounds] == [["site-1", "site-3"], ALL]
    assert reason in record.rounds[0].absent["site-2"]
    assert set(record.rounds[0].rule["weights"]) == {"site-1", "site-3"}
    assert "a note's text" not in (run.folder / "run.json").read_text()


def test_a_server_that_dies_while_scoring_starts_again(federation, tmp_path) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(
        "import os, pathlib, runpy, sys\n"
        f"sys.path.insert(0, {str(Path(TOY_WORKER[1]).parent)!r})\n"
        "import fed_toy\n"
        "plain = fed_toy.ToyLearner.evaluate\n"
        "def evaluate(self, split, plan):\n"
        f"    mark = pathlib.Path({str(tmp_path / 'died')!r})\n"
        "    if not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), 9)\n"
        "    return plain(self, split, plan)\n"
        "fed_toy.ToyLearner.evaluate = evaluate\n"
        f"runpy.run_path({TOY_WORKER[1]!r}, run_name='__main__')\n"
    )
    run = scored(federation(controller={"scorer": "process", "min_responses": 2}, timeout=300))

    command = (TOY_WORKER[0], str(script))
    run.flow.make_worker = lambda config, folder: ProcessWorker(config, folder, command=command)
    record = run.run()
    assert record.status == "completed", record.reason
    assert "SIGKILL" in record.rounds[0].absent["site-1"]
    assert sorted(record.rounds[1].accepted) == ALL


def test_no_notes_at_the_server_stops_before_round_one_and_says_what_to_write(
    federation, monkeypatch
) -> None:
    def settings(config: WorkerConfig) -> str:
        if config.site == SERVER:
            raise SiteSettingsError(f"{config.site_file}: no such file.")
        return config.site

    monkeypatch.setattr(worker_config, "load_site_settings", settings)
    run = scored(federation())
    record = run.run()
    assert (record.status, record.rounds) == ("failed", [])
    file = run.root / "server/local/site.yaml"
    assert f"{file}: no such file. " in record.reason
    assert f"Write {file} there, with `cohort:`" in record.reason
    assert "an entry `server:` under `sites:`" in record.reason


@pytest.mark.parametrize(
    ("toy", "reason"),
    [
        (only(SERVER, val=0), "names no record of the split 'val'"),
        (only(SERVER, fingerprint="f9"), "backbone fingerprint of server is f9, of site-1 it is f0"),
        (only(SERVER, width=5), "of server is [[1, 5], 'float32'], of site-1 it is [[1, 4], 'float32']"),
    ],
)
def test_a_server_that_does_not_fit_stops_before_round_one(federation, toy, reason: str) -> None:
    record = scored(federation(toy=toy)).run()
    assert (record.status, record.rounds) == ("failed", [])
    assert reason in record.reason


def test_sites_with_different_settings_cannot_be_scored_together() -> None:
    facts = {s: {"method": "toy", "settings": {"lr": 1}} for s in ALL}
    assert common_method(facts) == ("toy", {"lr": 1})
    facts["site-3"] = {"method": "toy", "settings": {"lr": 2}}
    with pytest.raises(RunError, match=r"settings of site-3 is \{'lr': 2\}, of site-1 it is \{'lr': 1\}"):
        common_method(facts)


# ---- where the notes come from ----------------------------------------------------------------------------

SERVER_FILE = """
sites:
  site-1: {cohort: {format: manifest, root: a}}
  server: {cohort: {format: notes_jsonl, root: b, split: {train: 0.5, val: 0.25, test: 0.25}}}
"""


def test_all_notes_of_the_server_count_as_val(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SERVER_FILE)
    config = WorkerConfig(
        method="toy",
        settings={},
        seed=0,
        site=SERVER,
        site_file=str(tmp_path / "site.yaml"),
        state_folder="",
        cache_folder="",
        run_id="run",
    )
    assert load_site_settings(config).cohort[0].split.val == 0.25
    whole = load_site_settings(WorkerConfig(**{**config.to_json(), "split": "val"}))
    assert whole.cohort[0].split == SplitConfig(train=0, val=1, test=0)


def test_the_servers_entry_is_no_site_of_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SERVER_FILE)
    assert simulate.prepare_workspace(tmp_path / "ws", tmp_path / "site.yaml") == ["site-1"]


# ---- what a rule adds to the state ------------------------------------------------------------------------


class Merging(WeightedMean):
    """Adds factors that grow from round to round, as `lora_stack` does."""

    facts = replace(WeightedMean.facts, extra_tensors=("merged.",))

    def begin(self, global_state: State) -> None:
        self.merged = {n: v for n, v in global_state.items() if n.startswith("merged.")}
        super().begin({n: v for n, v in global_state.items() if n not in self.merged})

    def finish(self) -> State:
        old = self.merged.get("merged.q.lora_A.weight", torch.zeros(0, 4))
        a = torch.cat([old, torch.ones(2, 4)])
        return super().finish() | {
            "merged.q.lora_A.weight": a,
            "merged.q.lora_B.weight": torch.ones(3, len(a)),
        }


class Takes(ToyLearner):
    """Notes the ranks of the merged factors it was given."""

    def load_shared(self, state: State) -> None:
        plain, merged = split_by_prefix(state, "merged.")
        self.seen = merged["q.lora_A.weight"].shape[0] if merged else 0
        super().load_shared(plain)

    def fit(self, plan: RoundPlan) -> Update:
        update = super().fit(plan)
        update.metrics["rank"] = float(self.seen)
        return update


@pytest.mark.parametrize("downlink", ["float32", "int8"])
def test_merged_factors_reach_the_sites_and_the_state_and_become_the_adapter(
    federation, monkeypatch, downlink: str
) -> None:
    monkeypatch.setattr("fed_toy.ToyLearner", Takes)
    run = federation(controller={"num_rounds": 3, "downlink": downlink})
    run.aggregator.rule = Merging()
    record = run.run()
    assert record.status == "completed", record.reason
    assert [entry.mean["train_rank"] for entry in record.rounds] == [0, 2, 4]
    assert load_state(run.folder / "state").shared["merged.q.lora_A.weight"].shape == (6, 4)
    folder = run.folder / "result/adapter"
    assert load_file(folder / "adapter_model.safetensors")["q.lora_A.weight"].shape == (6, 4)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (6, 12)


def test_a_site_cannot_send_merged_factors(federation, monkeypatch) -> None:
    monkeypatch.setattr("fed_toy.ToyLearner", Takes)

    def tamper(site, task, reply):
        if (site, task) == ("site-2", "fit"):
            from_shareable(reply).data["merged.q.lora_A.weight"] = torch.ones(2, 4)

    run = federation(controller={"num_rounds": 1, "min_responses": 2}, tamper=tamper)
    run.aggregator.rule = Merging()
    absent = run.run().rounds[0].absent
    assert "unexpected tensor 'merged.q.lora_A.weight'" in absent["site-2"]


def test_a_job_can_name_the_rule_and_where_the_scorer_runs() -> None:
    job = Job(title="trial", method="fed_medlora", aggregation={"rule": "influence"})
    changed = override(job, {"scorer": "thread", "uplink": "int4", "downlink": "int8"})
    check_job(changed)
    assert changed.controller == {"scorer": "thread", "uplink": "int4", "downlink": "int8"}
