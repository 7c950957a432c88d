# SPDX-License-Identifier: Apache-2.0
"""Differentially private rounds: what hospitals refuse, what leaves, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fed_harness import SITES, Federation, Make, completed, failed, final, ledger
from fed_learner import ADAPTER
from fed_real import real_federation

from medflare.core.patient_privacy import Mechanism
from medflare.differential_privacy.accounting import epsilon
from medflare.differential_privacy.spending import ACCOUNT

PATIENTS, STEPS, DELTA = 6, 2, 0.1
DP = {"noise_multiplier": 1.0, "sample_rate": 0.5, "delta": DELTA}
SETTINGS: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj"], "dropout": 0.0},
    "optimiser": {"batch": 4, "lr": 2e-3},
    "max_tokens": 120,
    "sharing": "freeze_a",
    "eval_limit": 1,
    "writing": {"max_new_tokens": 3},
}
BUDGET: dict[str, Any] = {"epsilon": 20.0, "delta": DELTA, "min_patients": 2}
ONE_ROUND = epsilon([Mechanism(noise=1.0, rate=0.5, steps=STEPS)], DELTA)
TWO_ROUNDS = epsilon([Mechanism(noise=1.0, rate=0.5, steps=2 * STEPS)], DELTA)


def write_rows(folder: Path, named: bool = True) -> Path:
    """Summaries of six patients to train on, and of one each for validation and test."""
    folder.mkdir(parents=True)
    lines = []
    for number in range(PATIENTS + 2):
        split = "train" if number < PATIENTS else ("val", "test")[number - PATIENTS]
        row = {
            "id": f"s{number}",
            "findings": f"Edema, film {number}.",
            "impression": "Edema.",
            "split": split,
        }
        lines.append(json.dumps(row | ({"patient_id": f"p{number}"} if named else {})))
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def private(tiny_backbone: Path, tmp_path: Path) -> Make:
    """Runs of three sites whose policies have the block `dp` given for each; None for none."""

    def make(
        budgets: dict[str, Any] | None = None, named: bool = True, dp: Any = DP, **controller: Any
    ) -> Federation:
        rows = write_rows(tmp_path / "rows" / str(len(list(tmp_path.iterdir()))), named)
        blocks = {
            site: {
                "cohort": {"format": "summaries_jsonl", "root": str(rows)},
                "backbone": {"folder": str(tiny_backbone), "precision": "fp32"},
                "device": "cpu",
                "policy": {"dp": (budgets or {}).get(site, BUDGET)},
            }
            for site in SITES
        }
        return real_federation(
            tmp_path,
            blocks,
            method="summarisation",
            settings=SETTINGS | {"dp": dp},
            rule={"rule": "freeze_a"},
            controller={"num_rounds": 2, "steps": STEPS, "final_limit": 1, **controller},
        )

    return make


def account(run: Federation, site: str) -> dict[str, Any]:
    (file,) = (run.root / site).rglob(ACCOUNT)
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def test_a_private_run_counts_epsilon_and_sends_no_number_on_patients(private: Make) -> None:
    run = private()
    record = completed(run)
    assert record.epsilon == pytest.approx(TWO_ROUNDS, rel=1e-4)
    assert record.delta == DELTA
    assert not record.evaluations or not any(item.metrics for item in record.evaluations)
    for entry in record.rounds:
        assert set(entry.accepted.values()) == {PATIENTS}
        for metrics in entry.metrics.values():
            assert set(metrics) == {f"train_{n}" for n in ("steps", "seconds", "epsilon", "delta")}
    for site in SITES:
        assert record.sites[site].skipped == {}
        (charge,) = account(run, site)["sets"][0]["charges"]
        assert (charge["steps"], charge["run"]) == (2 * STEPS, record.run_id)
        last = ledger(run, site, "fit")[-1].privacy
        assert (last["run"], last["budget"]) == (pytest.approx(TWO_ROUNDS, rel=1e-4), 20.0)
    card = (run.folder / record.artefacts["final"] / "README.md").read_text(encoding="utf-8")
    assert f"ε = {TWO_ROUNDS:.3g} at δ = 0.1" in card


def test_what_the_hospital_puts_outside_epsilon_leaves(private: Make) -> None:
    record = completed(private(dict.fromkeys(SITES, BUDGET | {"outside": ["validation", "test"]})))
    assert all(item.metrics for item in record.evaluations)
    assert len(record.evaluations) == 3


@pytest.mark.parametrize(
    ("change", "options", "reason"),
    [
        ({}, {"dp": None}, "policy.dp: jobs train with differential privacy here, and this one does not"),
        ({}, {"named": False}, "policy.dp: 6 training records name no patient"),
        ({"delta": 0.2}, {}, "policy.dp: delta is 0.2, more than 1 / 6 training patients"),
        ({"min_patients": 7}, {}, "policy.dp: fewer than 7 training patients"),
        ({"min_noise": 1.5}, {}, "policy.dp: the noise multiplier is 1, at least 1.5"),
        ({"max_sample_rate": 0.1}, {}, "policy.dp: the sample rate is 0.5, at most 0.1"),
        (
            {"epsilon": (ONE_ROUND + TWO_ROUNDS) / 2},
            {},
            "policy.dp: the 2 rounds of this run would bring the epsilon",
        ),
    ],
    ids=["no dp", "no patient", "delta", "few patients", "little noise", "sample rate", "over budget"],
)
def test_a_job_against_the_budget_is_refused_before_it_trains(
    private: Make, change: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    run = private(dict.fromkeys(SITES, BUDGET | change), **options)
    failed(run, reason)
    assert not list(run.root.rglob(ACCOUNT)), "nothing was spent"


def test_a_canary_counts_and_does_not_stand_for_the_rounds_after_it(private: Make) -> None:
    run = private(dict.fromkeys(SITES, BUDGET | {"epsilon": (ONE_ROUND + TWO_ROUNDS) / 2}), canary=True)
    failed(run, "policy.dp: the 2 rounds of this run would bring the epsilon")
    for site in SITES:
        assert [charge["steps"] for charge in account(run, site)["sets"][0]["charges"]] == [1]


def test_a_site_steps_out_where_its_budget_does_not_reach_and_the_run_goes_on(private: Make) -> None:
    tight = BUDGET | {"epsilon": (ONE_ROUND + TWO_ROUNDS) / 2}
    run = private({"site-2": tight}, min_responses=2)
    record = completed(run)
    first, second = record.rounds
    assert set(first.accepted) == {"site-1", "site-3"}
    assert "policy.dp: the 2 rounds of this run" in first.absent["site-2"]
    assert set(second.accepted) == set(SITES), "one round is within it"
    assert account(run, "site-2")["sets"][0]["charges"][0]["steps"] == STEPS


def test_in_mode_async_each_training_that_a_site_was_asked_for_is_counted(private: Make) -> None:
    """Also one whose update no round counted: what was computed on patients is spent."""
    rounds = 3
    run = private(dict.fromkeys(SITES, BUDGET | {"epsilon": 40.0}), mode="async", buffer=2, num_rounds=rounds)
    record = completed(run)
    assert record.epsilon is not None
    for site in SITES:
        sent = [line for line in ledger(run, site, "fit") if line.privacy]
        (charge,) = account(run, site)["sets"][0]["charges"]
        trained = charge["steps"] // STEPS
        counted = sum(site in entry.accepted for entry in record.rounds)
        assert counted <= len(sent) <= trained <= rounds
        spent = epsilon([Mechanism(noise=1.0, rate=0.5, steps=len(sent) * STEPS)], DELTA)
        assert sent[-1].privacy["run"] == pytest.approx(spent, rel=1e-4)
        if counted:
            least = epsilon([Mechanism(noise=1.0, rate=0.5, steps=counted * STEPS)], DELTA)
            assert record.epsilon >= least * (1 - 1e-4)


def test_in_mode_async_no_hospital_passes_its_budget(private: Make) -> None:
    limit = (ONE_ROUND + TWO_ROUNDS) / 2
    run = private({"site-2": BUDGET | {"epsilon": limit}}, mode="async", buffer=2, num_rounds=4)
    completed(run)
    books = [json.loads(file.read_text()) for file in (run.root / "site-2").rglob(ACCOUNT)]
    steps = sum(charge["steps"] for book in books for each in book["sets"] for charge in each["charges"])
    assert steps in (0, STEPS), "two trainings would pass it"
    assert any(not line.privacy for line in ledger(run, "site-2", "fit")), "and it refused others"


def test_records_without_a_patient_train_where_the_site_says_so(private: Make) -> None:
    budgets = dict.fromkeys(SITES, BUDGET | {"without_patient": "record"})
    assert completed(private(budgets, named=False)).epsilon == pytest.approx(TWO_ROUNDS, rel=1e-4)


def test_masked_sums_carry_noise_and_say_what_they_show_of_a_site(federation: Make) -> None:
    dp = {"clip_norm": 0.5, "noise_multiplier": 1.0, "colluding": 1, "delta": 1e-3}
    settings = {"width": 200, "rate": 1e-3}
    rule = {"rule": "weighted_mean", "rule_settings": {"weighting": "uniform"}}
    protected = {"protection": "masking", "num_rounds": 2}
    runs = [
        federation(settings=settings, rule=rule, controller={**protected, "protection_settings": {"dp": dp}})
        for _ in range(2)
    ]
    records = [completed(run) for run in runs]
    privacy = [entry.protection["privacy"] for entry in records[0].rounds]
    assert [facts["unit"] for facts in privacy] == ["site", "site"]
    for rounds, facts in enumerate(privacy, 1):
        done = [Mechanism(noise=1.0, rate=1.0, steps=rounds)]
        assert facts["epsilon"] == pytest.approx(epsilon(done, 1e-3), abs=1e-5)
    one, other = (final(run)[ADAPTER] for run in runs)
    # Each of two rounds' means over three sites has noise of deviation 0.5 · sqrt(3) / 3
    assert (one - other).std().item() == pytest.approx(0.5 / 3**0.5 * 2, rel=0.35)


def test_a_job_whose_weights_depend_on_data_gets_no_noisy_sum(federation: Make) -> None:
    run = federation(controller={"protection": "masking", "protection_settings": {"dp": {}}})
    failed(run, "a weight that depends on data has no noise")
