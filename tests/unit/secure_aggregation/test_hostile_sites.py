# SPDX-License-Identifier: Apache-2.0
"""A site that does not keep to the protocol costs itself the round, is named, and reads nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from authority import DAY, NOW, Authority, clock, make_key, site_kit, write_kit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from masking_round import Round, assert_is_plain, named, names

from medflare.core.errors import UpdateError
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.masking_errors import BrokenProtocol, MaskingError, UntrustedSite

OTHERS = ["site-01", "site-03", "site-04", "site-05"]


def random_text(size: int) -> str:
    return base64.b64encode(os.urandom(size)).decode()


def suspect(project: Authority, folder: Path, problem: str) -> Identity:
    """Who says that it is site-02 with a certificate that does not show it."""
    if problem == "none":
        return Identity.unsigned("site-02")
    if problem == "expired":
        key = make_key("ec")
        leaf = project.issue("site-02", key, since=-10, until=-1)
        return Identity.from_kit(write_kit(folder, project, key, leaf), lambda: NOW - 5 * DAY)
    name = "site-03" if problem == "wrong name" else "site-02"
    kit = site_kit(folder, Authority() if problem == "foreign" else project, name)
    identity = Identity.from_kit(kit, clock)
    identity.name = "site-02"
    return identity


def certified(people: dict[str, Identity], **changes: Any) -> Round:
    return Round(5, identity=people.__getitem__, **changes)


def test_a_round_of_certified_sites_recovers_from_two_that_drop_out(people: dict[str, Identity]) -> None:
    round_ = certified(people)
    result = round_.run({"mask": {"site-02"}, "confirm": {"site-04"}})
    assert_is_plain(result, ["site-01", "site-03", "site-04", "site-05"], round_.parameters)


# ---- adverts ----


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        ("expired", "the certificate expired on 2026-05-31"),
        ("foreign", "was not issued by this project's authority"),
        ("wrong name", "is made out to 'site-03', expected 'site-02'"),
        ("none", "it sent no certificate"),
    ],
)
def test_a_site_with_a_bad_certificate_is_left_out_and_the_others_go_on(
    project: Authority, people: dict[str, Identity], tmp_path: Path, problem: str, words: str
) -> None:
    stranger = suspect(project, tmp_path, problem)
    round_ = Round(5, identity=lambda name: stranger if name == "site-02" else people[name])
    for site, member in round_.members.items():
        advert = member.advertise(round_.parameters)
        if site == "site-02":
            with pytest.raises(UntrustedSite, match=f"site 'site-02': .*{words}"):
                round_.coordinator.add_advert(site, advert)
        else:
            round_.coordinator.add_advert(site, advert)
    round_.gone = {"site-02"}
    assert_is_plain(round_.finish_from("share"), OTHERS, round_.parameters)


@pytest.mark.parametrize(
    "change",
    [{"round": 4}, {"run_id": "run-2"}, {"threshold": 4}, {"sites": [*names(4), "site-06"]}],
    ids=named,
)
def test_an_advert_of_another_round_run_or_roster_is_refused(
    people: dict[str, Identity], change: dict[str, Any]
) -> None:
    old, new = certified(people), Round(5, identity=lambda n: people.get(n, people["server"]), **change)
    replayed = old.members["site-02"].advertise(old.parameters)
    with pytest.raises(UntrustedSite, match="'site-02': its signature does not belong"):
        new.coordinator.add_advert("site-02", replayed)


def test_a_site_that_copies_anothers_key_is_refused(people: dict[str, Identity]) -> None:
    round_ = Round(5)
    first = round_.members["site-01"].advertise(round_.parameters)
    round_.coordinator.add_advert("site-01", first)
    copied = round_.members["site-02"].advertise(round_.parameters) | {"mask_key": first["mask_key"]}
    with pytest.raises(BrokenProtocol, match="'site-01' and 'site-02' gave the same public key") as found:
        round_.coordinator.add_advert("site-02", copied)
    assert found.value.sites == ("site-01", "site-02")


# ---- shares ----


def test_a_site_that_shares_with_some_only_is_refused() -> None:
    round_ = Round(5)
    round_.advertise()
    message = round_.members["site-02"].share(round_.coordinator.adverts())
    for key in ("held", "sealed"):
        partial = {site: word for site, word in message[key].items() if site != "site-05"}
        with pytest.raises(BrokenProtocol, match="'site-02' did not send sealed shares and commitments"):
            round_.coordinator.add_shares("site-02", message | {key: partial})


def test_shares_that_cannot_be_opened_name_their_dealer_and_cost_the_round_of_their_holder_only() -> None:
    round_ = Round(5)
    round_.advertise()

    def seal_for_another(message: Any) -> Any:
        return message | {"sealed": message["sealed"] | {"site-01": message["sealed"]["site-03"]}}

    round_.share({"site-02": seal_for_another})
    with pytest.raises(BrokenProtocol, match="'site-01' cannot open the shares of 'site-02'") as found:
        round_.masked("site-01")
    assert found.value.sites == ("site-02",)
    round_.gone = {"site-01"}
    assert_is_plain(round_.finish_from("mask"), names(5)[1:], round_.parameters)


# ---- masked updates ----


def ready_to_mask() -> tuple[Round, Masked]:
    round_ = Round(5)
    round_.until("mask")
    return round_, round_.masked("site-01")


def test_a_masked_update_of_another_round_or_run_is_refused() -> None:
    for change in ({"round": 4}, {"run_id": "run-2"}):
        other = Round(5, **change)
        other.until("mask")
        round_, _ = ready_to_mask()
        with pytest.raises(UpdateError, match="'site-01' belongs to another round, run or set of sites"):
            round_.coordinator.add_masked("site-01", other.masked("site-01"))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: replace(m, narrow=m.narrow[:-1]),
        lambda m: replace(m, wide=m.wide[:-1]),
        lambda m: replace(m, narrow=m.narrow.view(4, -1)),
        lambda m: replace(m, narrow=m.narrow.long()),
        lambda m: replace(m, wide=m.wide.double()),
        lambda m: replace(m, narrow=m.wide, wide=m.narrow),
    ],
    ids=["truncated", "without weight", "other shape", "other width", "no integers", "exchanged"],
)
def test_a_truncated_or_misshapen_masked_update_is_refused_and_leaves_the_sum_alone(spoil: Any) -> None:
    round_, masked = ready_to_mask()
    with pytest.raises(UpdateError, match=r"masked update of 'site-01' has torch\.\w+ \("):
        round_.coordinator.add_masked("site-01", spoil(masked))
    round_.gone = {"site-01"}
    assert_is_plain(round_.finish_from("mask"), names(5)[1:], round_.parameters)


def test_a_second_masked_update_and_one_of_a_stranger_are_refused() -> None:
    round_, masked = ready_to_mask()
    round_.coordinator.add_masked("site-01", masked)
    with pytest.raises(UpdateError, match="'site-01' sent a second message"):
        round_.coordinator.add_masked("site-01", masked)
    with pytest.raises(UpdateError, match="'site-99' was not asked, or dropped out before"):
        round_.coordinator.add_masked("site-99", masked)


def test_a_site_that_comes_too_late_is_not_in_the_sum() -> None:
    round_ = Round(5)
    round_.until("confirm", {"mask": {"site-01"}})
    late = round_.masked("site-01")
    round_.coordinator.survivors()
    with pytest.raises(UpdateError, match="'site-01' speaks of 'mask' when the round is at 'confirm'"):
        round_.coordinator.add_masked("site-01", late)
    assert_is_plain(round_.finish_from("confirm"), names(5)[1:], round_.parameters)


@pytest.mark.parametrize("segment", ["narrow", "wide"])
def test_a_vector_that_is_no_masked_update_of_this_round_is_noticed_in_the_sum(segment: str) -> None:
    def noise(masked: Masked) -> Masked:
        old = getattr(masked, segment)
        vector = torch.frombuffer(bytearray(os.urandom(old.nbytes)), dtype=old.dtype)
        return replace(masked, **{segment: vector})

    round_ = Round(5)
    round_.until("mask")
    round_.mask({"site-03": noise})
    with pytest.raises(BrokenProtocol, match=r"One of site-01, .* sent a vector that is no masked update"):
        round_.finish_from("confirm")


def test_an_update_beyond_the_bound_is_noticed_in_the_sum_if_it_leaves_what_all_may_send() -> None:
    def enlarge(masked: Masked) -> Masked:
        masked.narrow[7] += 3 * round_.parameters.narrow_ring.most
        return masked

    round_ = Round(3)
    round_.until("mask")
    round_.mask({"site-03": enlarge})
    with pytest.raises(BrokenProtocol, match=r"the sum of tensor 'adapter\.lora_A' is not what 3 updates"):
        round_.finish_from("confirm")


# ---- confirmations and reveals ----


def test_a_confirmation_signed_by_another_is_refused(people: dict[str, Identity]) -> None:
    round_ = certified(people)
    round_.until("confirm")
    survivors = round_.coordinator.survivors()
    message = round_.members["site-01"].confirm(survivors)
    with pytest.raises(BrokenProtocol, match="'site-02' does not confirm the survivors"):
        round_.coordinator.add_confirmation("site-02", message)


def revealed(round_: Round, liars: dict[str, str]) -> Round:
    """All reveal; `liars`: site -> which secret's shares it makes up."""

    def lie(secret: str) -> Callable[[Any], Any]:
        return lambda message: message | {secret: {dealer: random_text(32) for dealer in message[secret]}}

    round_.until("reveal", {"mask": {"site-02"}})
    round_.reveal({site: lie(secret) for site, secret in liars.items()})
    return round_


@pytest.mark.parametrize("secret", ["self", "mask"])
def test_a_site_that_shows_wrong_shares_is_named_and_the_sum_is_right(secret: str) -> None:
    round_ = revealed(Round(5), {"site-04": secret})
    result = round_.coordinator.result()
    assert_is_plain(result, OTHERS, round_.parameters)
    assert set(result.blamed) == {"site-04"}
    assert "showed another share" in result.blamed["site-04"]


def test_two_of_four_that_show_wrong_shares_end_the_round_with_their_names() -> None:
    round_ = revealed(Round(5), {"site-04": "self", "site-05": "self"})
    with pytest.raises(BrokenProtocol, match=r"2 right shares .* 3 are needed") as found:
        round_.coordinator.result()
    assert found.value.sites == ("site-04", "site-05")


def test_a_dealer_whose_seed_is_not_the_one_it_masked_with_ends_the_round_with_its_name() -> None:
    round_ = Round(5)
    round_.advertise()
    round_.share({"site-03": lambda message: message | {"seed": "0" * 64}})
    with pytest.raises(BrokenProtocol, match="'site-03' dealt wrong shares"):
        round_.finish_from("mask")


def test_a_site_that_shows_shares_of_some_only_is_refused() -> None:
    round_ = Round(5)
    round_.until("reveal")
    message = round_.members["site-01"].reveal(round_.coordinator.confirmations())
    with pytest.raises(BrokenProtocol, match="'site-01' did not show one share of every site's secret"):
        round_.coordinator.add_reveal("site-01", message | {"self": {}})


# ---- anything ----

KEYS = ["share_key", "mask_key", "signature", "certificate", "seed", "held", "sealed", "self", "mask"]
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*KEYS, "survivors", *names(3)]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
MUTANTS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@MUTANTS
@given(st.sampled_from(["advert", "shares", "confirmation", "reveal"]), st.data())
def test_whatever_json_a_site_sends_it_is_the_sites_fault_and_says_so(kind: str, data: st.DataObject) -> None:
    round_ = Round(3)
    round_.until(
        {"advert": "advertise", "shares": "share", "confirmation": "confirm", "reveal": "reveal"}[kind]
    )
    {"shares": round_.coordinator.adverts, "confirmation": round_.coordinator.survivors}.get(kind, dict)()
    if kind == "reveal":
        round_.coordinator.confirmations()
    with pytest.raises(MaskingError) as found:
        getattr(round_.coordinator, {"shares": "add_shares"}.get(kind, f"add_{kind}"))(
            "site-02", data.draw(JSON)
        )
    assert found.value.sites == ("site-02",)


@MUTANTS
@given(st.sampled_from(["share_key", "mask_key", "signature", "certificate"]), JSON)
def test_whatever_stands_in_an_advert_of_certified_sites_is_refused(
    people: dict[str, Identity], key: str, value: Any
) -> None:
    round_ = certified(people)
    advert = round_.members["site-02"].advertise(round_.parameters) | {key: value}
    with pytest.raises(MaskingError) as found:
        round_.coordinator.add_advert("site-02", advert)
    assert found.value.sites == ("site-02",)


def test_the_coordinator_takes_its_steps_in_order() -> None:
    round_ = Round(3)
    with pytest.raises(BrokenProtocol, match="asked to share when the round is at 'advertise'"):
        round_.coordinator.shares_for("site-01")
    round_.run()
    with pytest.raises(BrokenProtocol, match="asked to unmask when the round is at 'over'"):
        round_.coordinator.result()
