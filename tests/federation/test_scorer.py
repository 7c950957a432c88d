# SPDX-License-Identifier: Apache-2.0
"""The server scores updates itself: what it needs, what it makes of them, and what a fault costs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fed_harness import SITES, TOY_WORKER, Make, accepted, completed, events, failed, final, toy_site_settings
from fed_tamper import spoiled
from fed_toy import ToyLearner
from safetensors.torch import load_file

from influence_formula import influence_weights
from medflare.aggregation.capabilities import ScoresCandidates
from medflare.aggregation.influence import Influence
from medflare.aggregation.l_fedavg import LossFedAvg
from medflare.aggregation.lora import LoraStack
from medflare.aggregation.weighted_mean import WeightedMean
from medflare.core.metrics import Metrics
from medflare.core.plan import RoundPlan
from medflare.core.tensor_names import split_by_prefix
from medflare.core.tensors import State
from medflare.core.update import Update
from medflare.data.settings.cohort import SplitConfig
from medflare.data.settings.site import SiteConfig
from medflare.egress.failures import SiteSettingsError
from medflare.federation.server.scorer import SERVER
from medflare.recipes import simulate
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.recipes.overrides import override
from medflare.worker import config as worker_config
from medflare.worker.config import WorkerConfig, load_site_settings
from medflare.worker.workers import ProcessWorker

ALL = list(SITES)
CROSS = {"rule": "l_fedavg", "rule_settings": {"loss_source": "cross"}}
Evaluate = Callable[[ToyLearner, str, RoundPlan], Metrics]


@pytest.fixture
def scored(federation: Make) -> Make:
    """Makes runs whose server scores every update."""

    def make(rounds: int = 2, temperature: float | None = None, **options: Any) -> Any:
        controller = {"num_rounds": rounds, **options.pop("controller", {})}
        settings = {} if temperature is None else {"temperature": temperature}
        rule = {"rule": "influence", "rule_settings": settings}
        return federation(rule=rule, controller=controller, **options)

    return make


def evaluating(
    evaluate: Callable[[Evaluate, ToyLearner, str, RoundPlan], Metrics],
) -> type[ToyLearner]:
    """A learner that evaluates otherwise; the function is given the plain way, and what it is given."""

    class Evaluating(ToyLearner):
        def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
            return evaluate(ToyLearner.evaluate, self, split, plan)

    return Evaluating


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


def test_sites_that_measure_each_others_models_are_weighed_by_what_they_found(federation: Make) -> None:
    run = federation(rule=CROSS)
    record = completed(run)
    scores = events(run, "scored")
    assert [(event["round"], event["site"]) for event in scores] == [
        (n, site) for n in (0, 1) for site in ALL
    ]
    assert all(sorted(event["measured"]) == ALL for event in scores)
    losses = {event["site"]: event["cross_loss"] for event in scores if event["round"] == 1}
    assert record.rounds[1].rule["losses"] == losses
    assert len(set(losses.values())) == 3


def test_losses_and_weights_are_in_the_record_and_in_the_progress(scored: Make) -> None:
    run = scored(temperature=0.5)
    for entry in completed(run).rounds:
        losses = [entry.rule["losses"][site] for site in ALL]
        expected = influence_weights(losses, [16, 20, 24], temperature=0.5)
        assert [entry.rule["weights"][site] for site in ALL] == pytest.approx(expected)
        weighed = [event for event in events(run, "weighed") if event["round"] == entry.round]
        assert [(e["site"], e["weight"], e["server_loss"]) for e in weighed] == [
            (site, entry.rule["weights"][site], entry.rule["losses"][site]) for site in ALL
        ]
    assert [(event["round"], event["site"]) for event in events(run, "scored")] == [
        (number, site) for number in (0, 1) for site in ALL
    ]


def test_what_is_scored_is_the_state_with_one_sites_update(scored: Make) -> None:
    record = completed(scored(1))
    judge, site = ToyLearner({}, SERVER, 0), ToyLearner({}, "site-2", 0)
    state = ToyLearner({}, "site-1", 0).initial_shared()
    site.load_shared(state)
    update = site.fit(RoundPlan(round=0, rounds=1))
    judge.load_shared({name: value + update.delta[name] for name, value in state.items()})
    loss = judge.evaluate("val", RoundPlan(round=0, rounds=1))["loss"]
    assert record.rounds[0].rule["losses"]["site-2"] == pytest.approx(loss, rel=1e-6)


def test_nothing_but_the_loss_is_asked_for(scored: Make) -> None:
    asked: set[tuple[bool, str, bool]] = set()

    def noting(plain: Evaluate, learner: ToyLearner, split: str, plan: RoundPlan) -> Metrics:
        asked.add((learner.site == SERVER, split, plan.hints.loss_only))
        return plain(learner, split, plan)

    completed(scored(1, learner=evaluating(noting)))
    assert {item for item in asked if item[0]} == {(True, "val", True)}
    assert {item[2] for item in asked if not item[0]} == {False}


def test_a_canary_tries_the_scorer_too_and_scores_come_after_the_exchange(scored: Make) -> None:
    """So that they delay no site."""
    run = scored(1, controller={"canary": True})
    completed(run)
    assert len(events(run, "scored")) == 6
    phases = [event["phase"] for event in events(run, "update", "scored")]
    assert phases[-6:] == ["update"] * 3 + ["scored"] * 3


# ---- faults -----------------------------------------------------------------------------------------------


def nan() -> Metrics:
    return Metrics({"loss": math.nan}, 1)


def raising() -> Metrics:
    raise KeyError("a note's text")


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (nan, "scored a loss of nan on the server's validation data"),
        (raising, "E40 KeyError in raising"),
    ],
)
def test_a_score_that_fails_costs_the_site_its_round(scored: Make, loss: Any, reason: str) -> None:
    count = [0]

    def failing(plain: Evaluate, learner: ToyLearner, split: str, plan: RoundPlan) -> Metrics:
        count[0] += learner.site == SERVER
        return loss() if learner.site == SERVER and count[0] == 2 else plain(learner, split, plan)

    run = scored(controller={"min_responses": 2}, learner=evaluating(failing))
    record = completed(run)
    assert accepted(record) == [["site-1", "site-3"], ALL]
    assert reason in record.rounds[0].absent["site-2"]
    assert set(record.rounds[0].rule["weights"]) == {"site-1", "site-3"}
    assert "a note's text" not in (run.folder / "run.json").read_text()


def test_a_model_that_no_site_can_measure_costs_its_site_the_round(federation: Make) -> None:
    asked: list[bool] = []

    def failing(plain: Evaluate, learner: ToyLearner, split: str, plan: RoundPlan) -> Metrics:
        asked.append(plan.hints.loss_only)
        of_site_2 = asked[-1] and asked.count(True) in (4, 5, 6)
        return Metrics() if of_site_2 else plain(learner, split, plan)

    controller = {"num_rounds": 1, "min_responses": 2}
    record = federation(controller=controller, rule=CROSS, learner=evaluating(failing)).run()
    assert accepted(record) == [["site-1", "site-3"]]
    assert "no site with validation data measured a finite loss" in record.rounds[0].absent["site-2"]


def test_a_server_that_dies_while_scoring_starts_again(scored: Make, tmp_path: Path) -> None:
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
    run = scored(controller={"scorer": "process", "min_responses": 2}, timeout=300)
    command = (TOY_WORKER[0], str(script))
    run.flow.make_worker = lambda config, folder: ProcessWorker(config, folder, command=command)
    record = completed(run)
    assert "SIGKILL" in record.rounds[0].absent["site-1"]
    assert sorted(record.rounds[1].accepted) == ALL


def test_no_notes_at_the_server_stops_before_round_one_and_says_what_to_write(
    scored: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def settings(config: WorkerConfig) -> SiteConfig:
        if config.site == SERVER:
            raise SiteSettingsError(f"{config.site_file}: no such file.")
        return toy_site_settings(config)

    monkeypatch.setattr(worker_config, "load_site_settings", settings)
    run = scored()
    file = run.root / "server/local/site.yaml"
    record = failed(
        run,
        f"{file}: no such file. ",
        f"Write {file} there, with `cohort:`",
        "an entry `server:` under `sites:`",
    )
    assert record.rounds == []


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
    loaded = load_site_settings(WorkerConfig(**{**config.to_json(), "split": "val"}))
    assert loaded.cohort[0].split == SplitConfig(train=0, val=1, test=0)


def test_the_servers_entry_is_no_site_of_the_simulator(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SERVER_FILE)
    simulate.prepare_workspace(tmp_path / "ws", tmp_path / "site.yaml")
    assert list(simulate.described_sites(tmp_path / "ws", None)) == ["site-1"]


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
    federation: Make, downlink: str
) -> None:
    run = federation(controller={"num_rounds": 3, "downlink": downlink}, learner=Takes)
    run.aggregator.rule = Merging()
    record = completed(run)
    assert [entry.mean["train_rank"] for entry in record.rounds] == [0, 2, 4]
    assert final(run)["merged.q.lora_A.weight"].shape == (6, 4)
    folder = run.folder / "result/adapter"
    assert load_file(folder / "adapter_model.safetensors")["q.lora_A.weight"].shape == (6, 4)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"]) == (6, 12)


def test_a_site_cannot_send_merged_factors(federation: Make) -> None:
    extra = {"merged.q.lora_A.weight": torch.ones(2, 4)}
    tamper = spoiled("site-2", "fit", lambda tensors, facts: tensors.update(extra))
    run = federation(controller={"num_rounds": 1, "min_responses": 2}, tamper=tamper, learner=Takes)
    run.aggregator.rule = Merging()
    assert "unexpected tensor 'merged.q.lora_A.weight'" in run.run().rounds[0].absent["site-2"]


def test_a_job_can_name_the_rule_and_where_the_scorer_runs() -> None:
    job = Job(title="trial", method="fed_medlora", aggregation={"rule": "influence"})
    changed = override(job, {"scorer": "thread", "uplink": "int4", "downlink": "int8"})
    check_job(changed)
    assert changed.controller == {"scorer": "thread", "uplink": "int4", "downlink": "int8"}
