# SPDX-License-Identifier: Apache-2.0
"""The site that comes first by name does not choose the values that a run begins with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fed_harness import Federation, completed, events, failed, final
from lying_server import LyingServer
from lying_site import Lie, claiming, lying, scaled, without

from medflare.wire.first_values import describe_values

ADAPTER = "adapter.base_model.model.layer.lora_A.weight"
HEAD = "head.weight"
LIAR = "site-1"
Make = Callable[..., Federation]
SERVER = Callable[..., LyingServer]


def backdoored(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
    """Change one value a little, so that every norm stays nearly the same."""
    tensors[ADAPTER] = tensors[ADAPTER].clone()
    tensors[ADAPTER][0, 0] += 0.01


def all_zero(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
    for name, value in tensors.items():
        tensors[name] = torch.zeros_like(value)


def saying(factor: float) -> Lie:
    """The lie that says in 'prepare' what the lie `scaled(factor)` sends in 'initialise'."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        facts = reply["facts"]["first_values"]
        reply["facts"]["first_values"] = {
            name: {"sha256": "0" * 64, "norm": entry["norm"] * factor} for name, entry in facts.items()
        }

    return lie


LIES: dict[str, dict[str, Lie]] = {
    "a thousand times too large": {"initialise": scaled(1e3)},
    "one value changed": {"initialise": backdoored},
    "all zero": {"initialise": all_zero},
    "announced": {"prepare": saying(1e3), "initialise": scaled(1e3)},
    "announced with the right norm": {"prepare": saying(1.0), "initialise": backdoored},
    "not announced": {"prepare": without("first_values"), "initialise": scaled(1e3)},
}


@pytest.mark.parametrize("uplink", ["float32", "bfloat16"])
@pytest.mark.parametrize("lies", LIES.values(), ids=list(LIES))
def test_first_values_of_one_site_alone_begin_no_run(
    federation: Make, lies: dict[str, Lie], uplink: str
) -> None:
    options: dict[str, Any] = {"controller": {"uplink": uplink}}
    run = federation(tamper=lying(LIAR, lies), **options)
    record, expected = completed(run), final_of_honest_sites(federation, **options)
    state = final(run)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert record.preparation["first_values"]["taken_from"] == "site-2"
    assert all(len(entry.accepted) == 3 for entry in record.rounds), "its updates count as before"


def final_of_honest_sites(federation: Make, **options: Any) -> dict[str, torch.Tensor]:
    run = federation(**options)
    completed(run)
    return final(run)


def test_where_all_agree_the_first_is_asked(federation: Make) -> None:
    reported = completed(federation()).preparation["first_values"]
    assert reported == {"taken_from": "site-1", "differing": {}, "compared_by_norm": []}


def test_a_site_that_announces_other_values_is_named_and_not_asked_first(federation: Make) -> None:
    run = federation(tamper=lying(LIAR, {"prepare": saying(1.0)}))
    reported = completed(run).preparation["first_values"]
    assert "its first values of 2 of 2 tensors are not those of most sites" in reported["differing"][LIAR]
    assert [event["site"] for event in events(run, "first values differ")] == [LIAR]
    assert events(run, "no initial state") == []


def test_a_site_that_sends_other_values_than_most_is_named(federation: Make) -> None:
    run = federation(tamper=lying(LIAR, {"initialise": backdoored}))
    completed(run)
    (event,) = events(run, "no initial state")
    assert event["site"] == LIAR
    assert f"are not those of most sites: '{ADAPTER}' has other values" in event["reason"]


def nearly(site: str) -> Lie:
    """Bits of its own, as a site of another precision makes them; the norm is nearly the same."""

    def lie(reply: dict[str, Any], tensors: dict[str, Any]) -> None:
        facts = reply["facts"]["first_values"]
        digest = f"{int(site[-1]):064x}"
        other_norm = {"sha256": digest, "norm": facts[ADAPTER]["norm"] * (1 + int(site[-1]) / 100)}
        reply["facts"]["first_values"] = {**facts, ADAPTER: other_norm}

    return lie


def every_site(lies: Callable[[str], dict[str, Lie]]) -> Any:
    """Let every site lie."""
    each = [lying(site, lies(site)) for site in ("site-1", "site-2", "site-3")]
    return lambda site, task, reply: next((o for lie in each if (o := lie(site, task, reply))), None)


def test_sites_of_different_precisions_begin_with_values_of_a_usual_norm(federation: Make) -> None:
    def lies(site: str) -> dict[str, Lie]:
        first = {"initialise": scaled(1e3)} if site == LIAR else {}
        return {"prepare": nearly(site), **first}

    record = completed(federation(tamper=every_site(lies)))
    reported = record.preparation["first_values"]
    assert reported == {"taken_from": "site-2", "differing": {}, "compared_by_norm": [ADAPTER]}


def test_two_sites_of_which_one_lies_begin_no_run(federation: Make) -> None:
    lies = {"prepare": saying(1e3), "initialise": scaled(1e3)}
    run = federation(sites=("site-1", "site-2"), controller={"min_responses": 1}, tamper=lying(LIAR, lies))
    record = failed(run, "no initial state", "not those of most sites", "has norm")
    assert not record.rounds


@pytest.mark.parametrize(
    "value",
    [
        3,
        {ADAPTER: 3},
        {ADAPTER: {"sha256": "0" * 64}},
        {ADAPTER: {"sha256": "x", "norm": 1.0}},
        {ADAPTER: {"sha256": "0" * 64, "norm": float("nan")}},
        {ADAPTER: {"sha256": "0" * 64, "norm": -1.0}},
        {"": {"sha256": "0" * 64, "norm": 1.0}},
    ],
)
def test_what_is_no_digest_and_norm_costs_its_site_the_run(federation: Make, value: Any) -> None:
    run = federation(
        controller={"min_responses": 2}, tamper=lying(LIAR, {"prepare": claiming(first_values=value)})
    )
    record = completed(run)
    assert sorted(record.sites) == ["site-2", "site-3"]
    assert "first_values" in record.rounds[0].absent[LIAR]


# ---- what leaves -------------------------------------------------------------------------------------------


def test_a_site_says_of_its_first_values_what_it_sends(lying_server: SERVER) -> None:
    server = lying_server()
    declared = {
        site: answer.facts["first_values"] for site, answer in server.prepare(uplink="bfloat16").items()
    }
    sent = server.send("site-3", "initialise", uplink="bfloat16").tensors
    expected = describe_values(sent, "bfloat16")
    for name, entry in expected.items():
        assert declared["site-3"][name]["sha256"] == entry["sha256"]
        assert declared["site-3"][name]["norm"] == pytest.approx(entry["norm"], rel=1e-5)
    assert declared["site-1"] == declared["site-2"] == declared["site-3"]


@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_is_said_of_values_once_the_site_has_learned(lying_server: SERVER, restarted: bool) -> None:
    server = lying_server()
    server.prepare()
    assert not server.send("site-1", "fit", server.initial_state()).refused
    if restarted:
        server.restart("site-1")
    again = server.send("site-1", "prepare")
    assert not again.refused
    assert "first_values" not in again.facts
