# SPDX-License-Identifier: Apache-2.0
"""A server that wants what one site measures, under a protection: it gets sums over sites, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import allow
from lying_server import LyingServer
from masked_lies import ADAPTER, FOUR, Make, MaskedLies, Refused, Round, in_another_job

from medflare.core.metrics import MetricNames
from medflare.core.summed_metrics import TEST, VALIDATION, exchange_specs, read_totals
from medflare.core.tensor_names import SUM_PREFIX
from medflare.core.tensors import SharedSpec, State

SPECS = exchange_specs(MetricNames(validation=["loss"], tested={"generic": ["loss"]}))
ADDED: dict[str, Any] = {"terms": {"weighing": "uniform", "most_weight": 1.0}}
VALIDATED: dict[str, Any] = {
    **{"task": "evaluate", "sums": SPECS[VALIDATION], "options": {"split": "val"}},
    **ADDED,
}
TESTED: dict[str, Any] = {"task": "finish", "sums": SPECS[TEST], "number": 5, **ADDED}
AGAIN: dict[str, Any] = {"run_id": "again", "job": "again"}
ROWS = {site: 12 + 4 * place for place, site in enumerate(FOUR, start=1)}
"""Examples of the toys, in each split."""
REFUSED = "has helped to open another sum of updates from this very state"


@pytest.fixture
def lies(lying_server: Make) -> MaskedLies:
    return MaskedLies(lying_server(sites=FOUR, protection="masking"))


def totals_of(sums: State) -> State:
    return {name.removeprefix(SUM_PREFIX): value for name, value in sums.items()}


def refusal(lies: MaskedLies, lie: Round) -> str:
    """Return why sites refused a sum; fails where they gave it."""
    with pytest.raises(Refused) as refused:
        lies.sum_of(lie)
    return str(refused.value)


def losses(lying_server: Make) -> dict[str, float]:
    """What each site measures on the first state, as it tells a server without a protection."""
    plain = lying_server(sites=FOUR)
    plain.prepare()
    state = plain.initial_state()
    answers = {site: plain.send(site, "evaluate", state, options={"split": "val"}) for site in FOUR}
    return {site: answer.facts["metrics"]["loss"] for site, answer in answers.items()}


# ---- the old way -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protection", ["masking", "he"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_no_site_tells_its_own_numbers_of_a_split(
    lying_server: Make,
    he_kits: Callable[[LyingServer], None],
    monkeypatch: pytest.MonkeyPatch,
    protection: str,
    split: str,
) -> None:
    allow(monkeypatch)
    server = lying_server(protection=protection)
    he_kits(server)
    server.prepare()
    state = server.initial_state()
    for number, hints in enumerate([{}, {"loss_only": True}, {"probe": 10}]):
        plan = {"round": number, "rounds": 5, "hints": hints}
        answer = server.send("site-1", "evaluate", state, round=number, plan=plan, options={"split": split})
        assert answer.refused
        assert not answer.facts


def test_no_site_tells_its_own_final_test(lying_server: Make, he_kits: Callable[[LyingServer], None]) -> None:
    masked = lying_server(protection="masking")
    masked.prepare()
    answer = masked.send("site-1", "finish", masked.initial_state(), round=5)
    assert "'finish' of round 6 came without 'keys' before it" in answer.text
    encrypted = lying_server(protection="he")
    he_kits(encrypted)
    encrypted.prepare()
    state = encrypted.initial_state()
    options = {"card": card()}
    answer = encrypted.send("site-1", "finish", state, round=5, options=options)
    assert answer.facts["evaluations"] == []
    assert not answer.tensors
    evaluations = encrypted.root / "site-1" / "job" / "result" / "evaluations.json"
    assert '"loss"' in evaluations.read_text(encoding="utf-8")


def card() -> dict[str, Any]:
    """The model card that a site writes of an encrypted run."""
    names = ("job", "method", "run_id", "base_model", "fingerprint")
    return {**dict.fromkeys(names, "toy"), "sites": 3, "rounds": 5, "metrics": {}}


@pytest.fixture
def he_kits() -> Callable[[LyingServer], None]:
    """Gives a server's sites the keys of encryption, where its jobs need them."""
    from medflare.secure_aggregation.encryption_parameters import ContextParameters, make_contexts

    def make(server: LyingServer) -> None:
        if server.protection == "he":
            make_contexts(server.root / "startup", ContextParameters())

    return make


# ---- in a sum ----------------------------------------------------------------------------------------------


def test_what_a_site_sends_is_masked_and_the_sum_is_the_mean(lies: MaskedLies, lying_server: Make) -> None:
    measured = read_totals(totals_of(lies.sum_of(Round(**VALIDATED))), VALIDATION)
    site_losses = losses(lying_server)
    mean = sum(site_losses[site] * ROWS[site] for site in FOUR) / sum(ROWS.values())
    assert (measured.examples, measured.sites) == (sum(ROWS.values()), 4)
    assert measured.means["loss"] == pytest.approx(mean, abs=1e-8)
    for answer in lies.answers.values():
        assert answer.facts["metrics"] == {}
        assert set(answer.facts) == {"metrics", "seconds", "secure_sum"}
        assert set(answer.tensors) == {"masked:narrow", "masked:wide"}
        assert (answer.tensors["masked:wide"].double().abs() > 2.0**40).float().mean() > 0.5


def test_the_final_test_too(lies: MaskedLies) -> None:
    measured = read_totals(totals_of(lies.sum_of(Round(**TESTED))), "test:generic")
    assert (measured.examples, measured.sites, set(measured.means)) == (sum(ROWS.values()), 4, {"loss"})
    assert all(answer.facts["evaluations"] == [] for answer in lies.answers.values())


@pytest.mark.parametrize("lie", [VALIDATED, TESTED], ids=["validation", "test"])
def test_two_sums_over_other_sites_do_not_differ_by_one_sites_numbers(
    lies: MaskedLies, lie: dict[str, Any]
) -> None:
    lies.sum_of(Round(**lie))
    in_another_job(lies, "again")
    assert REFUSED in refusal(lies, Round(**AGAIN, **lie, sites=FOUR[:3]))


def test_nor_with_a_limit_that_leaves_a_few_examples_out(lies: MaskedLies) -> None:
    """The same sites over other examples: the difference would be of one example at each."""
    lies.sum_of(Round(**VALIDATED))
    in_another_job(lies, "again")
    assert f"{REFUSED}, with other weights" in refusal(lies, Round(**AGAIN, **VALIDATED, plan={"limit": 15}))
    in_another_job(lies, "third")
    third = {"run_id": "third", "job": "third"}
    assert REFUSED in refusal(lies, Round(**third, **VALIDATED, plan={"limit": 15}, sites=FOUR[:3]))


def test_a_sum_of_numbers_does_not_keep_sites_from_training_on_the_state(lies: MaskedLies) -> None:
    """With one memory for both, a validation that one site missed would end the run."""
    lies.sum_of(Round(**VALIDATED))
    assert lies.sum_of(Round(number=1, sites=FOUR[:3]))[ADAPTER].any()
    assert lies.sum_of(Round(**{**TESTED, "sites": FOUR[1:]}))


def test_a_sum_is_joined_once(lies: MaskedLies) -> None:
    lies.sum_of(Round(**VALIDATED))
    assert "were asked for again" in refusal(lies, Round(**VALIDATED, sites=FOUR[:3]))


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ({**VALIDATED, "options": {"split": "test"}}, "is for the sum 'test', and the terms"),
        ({**VALIDATED, "options": {"split": "train"}}, "is for the sum 'train', and the terms"),
        ({**VALIDATED, "sums": SPECS[TEST]}, "is for the sum 'val', and the terms"),
        ({"task": "evaluate", "options": {"split": "val"}}, "are of the sum 'update'"),
        ({"task": "finish", "number": 5}, "are of the sum 'update'"),
        ({**VALIDATED, "task": "fit", "options": {}}, "is for the sum 'update', and the terms"),
        ({**VALIDATED, "plan": {"hints": {"probe": 10}}}, "rules probe 'train' alone"),
        ({**VALIDATED, "plan": {"hints": {"loss_only": True}}}, "under a protection"),
        (
            {**VALIDATED, "terms": {**ADDED["terms"], "canary": True}},
            "in which nothing is measured",
        ),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_request_gets_the_sum_it_names_and_no_other(
    lies: MaskedLies, lie: dict[str, Any], reason: str
) -> None:
    assert reason in refusal(lies, Round(**{**lie, "sums": lie.get("sums")}))


def test_other_names_than_declared_are_not_summed(lies: MaskedLies) -> None:
    more: SharedSpec = {**SPECS[VALIDATION], "val:notes": ((2,), torch.float64)}
    assert "other tensors than those this site declared" in refusal(
        lies, Round(**{**VALIDATED, "sums": more})
    )


def test_a_site_with_too_few_examples_adds_zeros_and_nobody_can_tell(
    lying_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    lies = MaskedLies(lying_server(sites=FOUR, protection="masking"))
    allow(monkeypatch, min_examples=ROWS["site-1"] + 1)
    measured = read_totals(totals_of(lies.sum_of(Round(**VALIDATED))), VALIDATION)
    assert (measured.examples, measured.sites) == (sum(ROWS.values()) - ROWS["site-1"], 3)
    assert {tuple(sorted(answer.facts)) for answer in lies.answers.values()} == {
        ("metrics", "seconds", "secure_sum")
    }


def test_a_policy_that_tells_no_metric_adds_zeros(
    lying_server: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, metrics="none")
    lies = MaskedLies(lying_server(sites=FOUR, protection="masking"))
    measured = read_totals(totals_of(lies.sum_of(Round(**VALIDATED))), VALIDATION)
    assert (measured.examples, measured.sites, measured.means) == (0, 0, {})


# ---- made-up states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("task", ["fit", "finish"])
def test_the_state_that_is_measured_is_the_one_that_comes_next(lies: MaskedLies, task: str) -> None:
    made_up = {name: 7 * value + 1 for name, value in lies.state.items()}
    assert lies.sum_of(Round(**VALIDATED), made_up), "a site cannot know yet"
    honest = {"fit": Round(number=1), "finish": Round(**{**TESTED, "number": 1})}[task]
    assert "is not the one this site evaluated at the end of round 1" in refusal(lies, honest)
    assert "does nothing more in this job" in refusal(lies, Round(**{**VALIDATED, "number": 2}))
    for site in FOUR:
        lies.server.restart(site)
    lies.prepare()
    assert "does nothing more in this job" in refusal(lies, Round(**{**VALIDATED, "number": 3}))


def test_a_split_is_measured_once_in_a_round(lies: MaskedLies) -> None:
    """Keys of a later round do not make it another one: the site counts what it measured."""
    lies.sum_of(Round(**{**VALIDATED, "number": 3}))

    def again(number: int) -> str:
        plan = {"round": number, "rounds": 5}
        answer = lies.server.send(
            "site-1", "evaluate", lies.state, round=number, plan=plan, options={"split": "val"}
        )
        return answer.text

    assert "was asked for more than once" in again(3)
    assert "Rounds do not go backwards" in again(2)
