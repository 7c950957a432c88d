# SPDX-License-Identifier: Apache-2.0
"""What sites measure in protected rounds: the mean of all is known, and no number of one of them."""

from __future__ import annotations

import io
import json
import math
import re
from typing import Any

import pytest
from fed_harness import Make, completed, events, ledger
from fed_tamper import in_round, losing, watched
from fed_toy import ToyLearner
from rich.console import Console

from medflare.core.metrics import MetricNames, Metrics
from medflare.core.plan import RoundPlan
from medflare.core.run_record import ALL_SITES, RunRecord
from medflare.egress.chain import Egress
from medflare.reporting.page import write_page
from medflare.reporting.score_rows import rows_of
from medflare.reporting.tables import results_table

FIVE = tuple(f"site-{k}" for k in range(1, 6))
MASKED, ENCRYPTED = {"protection": "masking"}, {"protection": "he"}
FIXED_POINT = 1e-7
"""More than half a step of the wide ring for each of five sites, divided by the examples."""
STATE = 1e-4
"""Of a loss whose state was rounded by masks in every round."""


def means(record: RunRecord) -> list[float | None]:
    return [entry.mean.get("val_loss") for entry in record.rounds]


class Frozen(ToyLearner):
    """A toy whose state stays as it is, so that masked and plain runs measure the very same one."""

    def fit(self, plan: RoundPlan) -> Any:
        update = super().fit(plan)
        update.delta = {name: 0 * value for name, value in update.delta.items()}
        return update


def test_the_mean_is_the_plain_runs_mean(federation: Make) -> None:
    plain = completed(federation(sites=FIVE, learner=Frozen))
    masked = completed(federation(sites=FIVE, learner=Frozen, controller=MASKED))
    assert means(masked) == pytest.approx(means(plain), abs=FIXED_POINT)
    tested = sum(item.metrics["loss"].value * item.studies for item in plain.evaluations)
    studies = sum(item.studies for item in plain.evaluations)
    (row,) = masked.evaluations
    assert (row.site, row.adapter, row.split, row.studies) == (ALL_SITES, "generic", "test", studies)
    assert row.sites == list(FIVE)
    assert row.metrics["loss"].value == pytest.approx(tested / studies, abs=FIXED_POINT)
    assert row.metrics["loss"].interval is None


def test_the_best_round_is_the_plain_runs_best_round(federation: Make) -> None:
    plain, masked = (completed(federation(controller={**given, "num_rounds": 4})) for given in ({}, MASKED))
    assert means(masked) == pytest.approx(means(plain), rel=STATE)
    assert masked.best_round == plain.best_round
    assert "best" in masked.artefacts


def test_no_number_of_one_site_is_in_the_record(federation: Make) -> None:
    seen: list[dict[str, Any]] = []
    run = federation(controller=MASKED, tamper=watched("evaluate", lambda site, _, facts: seen.append(facts)))
    record = completed(run)
    assert [facts["metrics"] for facts in seen] == [{}] * 6
    measured = {name for entry in record.rounds for values in entry.metrics.values() for name in values}
    assert measured == {"train_loss"}
    assert record.rounds[0].protection["val"] == {"examples": 60, "sites": 3}
    assert {event["site"] for event in events(run, "val")} == {ALL_SITES}
    results = run.site_folder("site-1") / "result"
    lines = (results / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["round"] for line in lines] == [0, 1]
    (tested,) = json.loads((results / "evaluations.json").read_text(encoding="utf-8"))["evaluations"]
    assert (tested["site"], tested["metrics"]["loss"]["low"] > 0) == ("site-1", True)


@pytest.mark.parametrize("task", ["keys", "shares", "evaluate"])
def test_a_site_that_drops_out_costs_that_validation_and_not_the_run(federation: Make, task: str) -> None:
    lost = losing(task, "site-2", number=in_round(task, 1, measuring=True))
    run = federation(sites=FIVE, controller={**MASKED, "num_rounds": 3}, tamper=lost)
    record = completed(run)
    assert [value is None for value in means(record)] == [False, True, False]
    assert "site-2" in record.rounds[1].protection["val"]["failed"]
    assert [len(entry.accepted) for entry in record.rounds] == [5, 5, 5]
    assert record.best_round != 1
    assert len(record.evaluations) == 1
    # Nobody would use the sum over the others, so it is not opened.
    opened = [line.round for line in ledger(run, "site-1", "reveal")]
    assert opened == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("task", ["confirm", "reveal"])
def test_a_site_that_drops_out_after_it_measured_stays_in_the_sum(federation: Make, task: str) -> None:
    lost = losing(task, "site-2", number=in_round(task, 1, measuring=True))
    plain, masked = federation(sites=FIVE), federation(sites=FIVE, controller=MASKED, tamper=lost)
    assert means(completed(masked)) == pytest.approx(means(completed(plain)), rel=STATE)


def test_a_sum_that_cannot_be_opened_costs_that_validation_and_keeps_nobody_from_the_next_round(
    federation: Make,
) -> None:
    lost = losing("reveal", "site-1", "site-3", "site-4", number=in_round("reveal", 0, measuring=True))
    run = federation(sites=FIVE, controller={**MASKED, "num_rounds": 2, "min_responses": 3}, tamper=lost)
    record = completed(run)
    assert [value is None for value in means(record)] == [True, False]
    assert "3 are needed" in record.rounds[0].protection["val"]["failed"]
    assert [sorted(entry.accepted) for entry in record.rounds] == [list(FIVE)] * 2


def test_a_site_that_is_lost_in_the_final_test_is_named_and_the_others_are_in_the_sum(
    federation: Make,
) -> None:
    run = federation(
        sites=FIVE, controller={**MASKED, "num_rounds": 1}, tamper=losing("finish", "site-2", number=0)
    )
    record = completed(run)
    (row,) = record.evaluations
    assert row.sites == ["site-1", "site-3", "site-4", "site-5"]
    assert "no final test at site-2" in record.reason


def test_a_final_test_that_cannot_be_opened_leaves_the_adapter(federation: Make) -> None:
    lost = losing("finish", "site-1", "site-2", "site-3", number=0)
    run = federation(sites=FIVE, controller={**MASKED, "num_rounds": 1}, tamper=lost)
    record = completed(run)
    assert record.evaluations == []
    assert "no final test at site-1, site-2, site-3, site-4, site-5" in record.reason
    assert "final" in record.artefacts


def test_a_site_without_examples_of_the_split_has_no_say(federation: Make) -> None:
    settings = {"sites": {"site-2": {"val": 0}}}
    plain = completed(federation(sites=FIVE, settings=settings, learner=Frozen))
    masked = completed(federation(sites=FIVE, settings=settings, learner=Frozen, controller=MASKED))
    assert means(masked) == pytest.approx(means(plain), abs=FIXED_POINT)
    assert masked.rounds[0].protection["val"]["sites"] == 4


def test_a_mean_over_fewer_than_three_sites_is_not_recorded(federation: Make) -> None:
    settings = {"sites": {site: {"val": 0, "test": 0} for site in FIVE[:3]}}
    record = completed(federation(sites=FIVE, settings=settings, controller=MASKED))
    assert means(record) == [None, None]
    assert (
        "2 of 5 sites had enough examples in 'val', expected 3"
        in record.rounds[0].protection["val"]["failed"]
    )
    assert record.evaluations == []


class Measuring(ToyLearner):
    """Measures a second number, which one site cannot, and one of a name that it did not declare."""

    def metric_names(self) -> MetricNames:
        return MetricNames(validation=["loss", "f1"], tested={"generic": ["loss"]})

    def evaluate(self, split: str, plan: RoundPlan) -> Metrics:
        metrics = super().evaluate(split, plan)
        metrics["f1"] = math.nan if self.site == self.settings.get("unable") else 0.25
        metrics["accuracy/our ward"] = 1.0
        return metrics


def test_a_metric_that_one_site_cannot_measure_has_no_mean_and_others_have(federation: Make) -> None:
    both = completed(federation(learner=Measuring, controller=MASKED))
    one = completed(federation(learner=Measuring, controller=MASKED, settings={"unable": "site-2"}))
    assert both.rounds[0].mean["val_f1"] == pytest.approx(0.25, abs=FIXED_POINT)
    assert set(one.rounds[0].mean) == {"train_loss", "val_loss"}


def test_a_number_of_an_undeclared_name_stays_at_its_site(federation: Make) -> None:
    run = federation(learner=Measuring, controller=MASKED)
    record = completed(run)
    assert not any("ward" in name for entry in record.rounds for name in entry.mean)
    assert [line.withheld for line in ledger(run, "site-1", "evaluate")] == [1, 1]


def test_numbers_of_no_proportion_are_not_used(federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Egress._summed

    def lying(self: Egress, *given: Any, **words: Any) -> Any:
        result, allowed, withheld = honest(self, *given, **words)
        if self.site == "site-2":
            result.tensors.update({name: 1000 * value for name, value in result.tensors.items()})
        return result, allowed, withheld

    monkeypatch.setattr(Egress, "_summed", lying)
    record = completed(federation(controller=MASKED))
    assert means(record) == [None, None]
    assert "A site has sent wrong numbers" in record.rounds[0].protection["val"]["failed"]
    assert record.evaluations == []


def test_losses_of_training_are_coarser_beside_masked_updates(federation: Make) -> None:
    record = completed(federation(controller=MASKED))
    losses = [values["train_loss"] for entry in record.rounds for values in entry.metrics.values()]
    assert losses == [float(f"{loss:.4g}") for loss in losses]


# ---- encryption --------------------------------------------------------------------------------------------


def test_under_encryption_numbers_stay_at_the_sites(federation: Make) -> None:
    run = federation(controller=ENCRYPTED)
    record = completed(run)
    assert (means(record), record.evaluations, record.best_round) == ([None, None], [], None)
    assert [event["reason"] for event in events(run, "no validation")]
    assert ledger(run, "site-1", "evaluate") == []
    (line,) = ledger(run, "site-1", "finish")
    assert line.withheld == 1
    evaluations = run.site_folder("site-1") / "result" / "evaluations.json"
    assert (
        json.loads(evaluations.read_text(encoding="utf-8"))["evaluations"][0]["metrics"]["loss"]["value"] > 0
    )


# ---- what people see ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protection", "said"),
    [("masking", "Under masks only the mean"), ("he", "Under homomorphic encryption nobody but a site")],
)
def test_tables_and_page_say_why_no_site_has_a_row(federation: Make, protection: str, said: str) -> None:
    run = federation(controller={"protection": protection})
    record = completed(run)
    page = write_page(run.folder / "run.json").read_text(encoding="utf-8")
    assert said in page
    rows = rows_of([record])
    assert said in str(results_table(rows, protections=record.protections).caption)
    assert [row.site_name for row in rows] == ([ALL_SITES] if protection == "masking" else [])
    if rows:
        console = Console(width=200, record=True, file=io.StringIO())
        console.print(results_table(rows))
        assert re.search(rf"{ALL_SITES} +generic +60 ", console.export_text())
