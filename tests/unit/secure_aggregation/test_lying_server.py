# SPDX-License-Identifier: Apache-2.0
"""A server that lies to sites gets a refusal from each of them, not an update (Bonawitz et al. 2017, 6.2)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from masking_round import LAYOUT, Round, assert_is_plain, make_update, names

from medflare.secure_aggregation import key_agreement, keystream, secret_sharing
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masked_update import encode
from medflare.secure_aggregation.masking_errors import (
    BrokenProtocol,
    MaskingError,
    TooFewSites,
    UntrustedSite,
)
from medflare.secure_aggregation.protocol_bytes import encode_bytes
from medflare.secure_aggregation.signed_messages import make_advert, make_confirmation

FIVE = names(5)


@pytest.fixture
def round_(people: dict[str, Identity]) -> Round:
    return Round(5, identity=people.__getitem__)


# ---- keys in the middle ----


@pytest.mark.parametrize("key", ["share_key", "mask_key"])
def test_a_key_the_server_exchanges_is_refused_by_every_site(round_: Round, key: str) -> None:
    round_.advertise()
    adverts = round_.coordinator.adverts()
    adverts["site-02"] = {**adverts["site-02"], key: encode_bytes(key_agreement.KeyPair().public)}
    for site in ("site-01", "site-03", "site-04", "site-05"):
        with pytest.raises(UntrustedSite, match="'site-02': its signature does not belong"):
            round_.members[site].share(adverts)
    with pytest.raises(MaskingError):
        round_.members["site-02"].share(adverts)


def test_an_advert_the_server_signs_itself_is_refused(round_: Round, people: dict[str, Identity]) -> None:
    round_.advertise()
    advert = make_advert(
        people["server"], round_.parameters, key_agreement.KeyPair().public, key_agreement.KeyPair().public
    )
    adverts = round_.coordinator.adverts() | {"site-02": advert}
    with pytest.raises(UntrustedSite, match="'site-02': the certificate is made out to 'server'"):
        round_.members["site-01"].share(adverts)


def test_an_advert_without_certificate_is_refused_by_certified_sites(round_: Round) -> None:
    round_.advertise()
    bare = make_advert(
        Identity.unsigned("site-02"),
        round_.parameters,
        key_agreement.KeyPair().public,
        key_agreement.KeyPair().public,
    )
    with pytest.raises(UntrustedSite, match="'site-02': it sent no certificate"):
        round_.members["site-01"].share(round_.coordinator.adverts() | {"site-02": bare})


def test_a_site_that_does_not_find_its_own_keys_goes_no_further() -> None:
    round_ = Round(5)
    round_.advertise()
    adverts = round_.coordinator.adverts()
    other = Round(5)
    other.advertise()
    exchanged = adverts | {"site-01": other.coordinator.adverts()["site-01"]}
    left_out = {site: advert for site, advert in adverts.items() if site != "site-02"}
    for site, given in (("site-01", exchanged), ("site-02", left_out)):
        with pytest.raises(BrokenProtocol, match=f"'{site}' does not find the keys it gave"):
            round_.members[site].share(given)


def test_sites_the_terms_do_not_name_cannot_be_slipped_in(round_: Round) -> None:
    round_.advertise()
    adverts = round_.coordinator.adverts()
    with pytest.raises(BrokenProtocol, match="knows nothing of site-06"):
        round_.members["site-01"].share(adverts | {"site-06": adverts["site-02"]})


def test_fewer_keys_or_shares_than_the_threshold_end_a_sites_round(round_: Round) -> None:
    round_.advertise()
    adverts = round_.coordinator.adverts()
    two = {site: adverts[site] for site in ("site-01", "site-02")}
    with pytest.raises(TooFewSites, match="2 of 5 sites gave their keys, 3 are needed"):
        round_.members["site-01"].share(two)
    for site in ("site-02", "site-03", "site-04", "site-05"):
        round_.coordinator.add_shares(site, round_.members[site].share(adverts))
    one = dict(list(round_.coordinator.shares_for("site-02").items())[:1])
    tensors, weight = make_update("site-02")
    with pytest.raises(TooFewSites, match="2 of 5 sites shared their secrets, 3 are needed"):
        round_.members["site-02"].mask(one, *LAYOUT.pack(tensors), weight)


@pytest.mark.parametrize("change", [{"round": 4}, {"run_id": "run-2"}], ids=str)
def test_shares_of_another_round_or_run_are_not_opened(
    round_: Round, people: dict[str, Identity], change: dict[str, Any]
) -> None:
    other = Round(5, identity=people.__getitem__, **change)
    round_.until("mask")
    other.until("mask")
    shares = round_.coordinator.shares_for("site-01") | {
        "site-02": other.coordinator.shares_for("site-01")["site-02"]
    }
    tensors, weight = make_update("site-01")
    with pytest.raises(
        BrokenProtocol, match="cannot open the shares of 'site-02': they are of another round"
    ):
        round_.members["site-01"].mask(shares, *LAYOUT.pack(tensors), weight)


# ---- who survived ----


def told(round_: Round, survivors: Mapping[str, list[str]]) -> dict[str, dict[str, Any]]:
    """Every site confirms what it is told, and what it said."""
    return {site: round_.members[site].confirm(named) for site, named in survivors.items()}


def test_sites_told_of_different_survivors_reveal_nothing(round_: Round) -> None:
    round_.until("confirm")
    lies = dict(zip(FIVE, (FIVE[:4], FIVE[:4], FIVE[:3], FIVE[1:], FIVE[1:]), strict=True))
    confirmations = told(round_, lies)
    for site in FIVE:
        with pytest.raises(
            TooFewSites, match=r"[12] of 5 sites confirm the survivors this site was told, 3 are"
        ):
            round_.members[site].reveal(confirmations)


def test_telling_each_site_of_other_drop_outs_would_give_a_sum_of_two_and_gives_nothing(
    round_: Round,
) -> None:
    """Without confirmations, a threshold of shares of three mask keys would come back: the masks between
    those sites and the other two would come off, and the sum of two would lie open."""
    round_.until("confirm")
    dropped = {
        "site-01": {"site-02", "site-03"},
        "site-02": {"site-01", "site-03"},
        "site-03": {"site-01", "site-02"},
        "site-04": {"site-01", "site-02"},
        "site-05": {"site-03"},
    }
    claims = {site: sum(site in gone for gone in dropped.values()) for site in FIVE}
    assert claims == {"site-01": 3, "site-02": 3, "site-03": 3, "site-04": 0, "site-05": 0}
    survivors = {site: [name for name in FIVE if name not in gone] for site, gone in dropped.items()}
    confirmations = told(round_, survivors)
    for site in FIVE:
        with pytest.raises(TooFewSites, match="confirm the survivors this site was told"):
            round_.members[site].reveal(confirmations)


def test_a_forged_confirmation_does_not_count(round_: Round, people: dict[str, Identity]) -> None:
    round_.until("confirm", {"mask": {"site-04", "site-05"}})
    survivors = tuple(round_.coordinator.survivors())
    confirmations = {"site-01": round_.members["site-01"].confirm(survivors)}
    forged = {
        site: make_confirmation(people["server"], round_.parameters, survivors)
        for site in ("site-02", "site-03")
    }
    with pytest.raises(TooFewSites, match=r"1 of 5 sites confirm .*, 3 are needed; missing: site-02"):
        round_.members["site-01"].reveal(confirmations | forged)


@pytest.mark.parametrize("change", [{"round": 4}, {"run_id": "run-2"}], ids=str)
def test_confirmations_of_another_round_or_run_do_not_count(
    round_: Round, people: dict[str, Identity], change: dict[str, Any]
) -> None:
    other = Round(5, identity=people.__getitem__, **change)
    other.until("reveal")
    round_.until("confirm")
    told(round_, {"site-01": FIVE})
    with pytest.raises(TooFewSites, match="0 of 5 sites confirm"):
        round_.members["site-01"].reveal(other.coordinator.confirmations())


@pytest.mark.parametrize(
    ("survivors", "kind", "words"),
    [
        (FIVE[1:], BrokenProtocol, "'site-01' sent its masked update, and the server says it did not"),
        (FIVE[:2], TooFewSites, "2 of 5 sites sent masked updates, 3 are needed"),
        ([*FIVE[:2], *FIVE[:2]], TooFewSites, "2 of 5 sites sent masked updates, 3 are needed"),
        ([*FIVE, "site-06"], BrokenProtocol, "knows nothing of site-06"),
    ],
    ids=["left out", "too few", "named twice", "a stranger"],
)
def test_impossible_survivors_are_not_confirmed(
    round_: Round, survivors: list[str], kind: type[MaskingError], words: str
) -> None:
    round_.until("confirm")
    with pytest.raises(kind, match=words):
        round_.members["site-01"].confirm(survivors)


def test_a_site_that_shared_nothing_is_no_survivor(round_: Round) -> None:
    round_.until("confirm", {"share": {"site-05"}})
    with pytest.raises(BrokenProtocol, match="knows nothing of site-05"):
        round_.members["site-01"].confirm(FIVE)


# ---- asking again, and for more ----


def test_a_site_confirms_and_reveals_once(round_: Round) -> None:
    round_.until("reveal")
    member = round_.members["site-01"]
    confirmations = round_.coordinator.confirmations()
    with pytest.raises(BrokenProtocol, match="asked to confirm out of turn; expected: reveal"):
        member.confirm(FIVE[:3])
    member.reveal(confirmations)
    for again in (lambda: member.reveal(confirmations), lambda: member.confirm(FIVE[:3])):
        with pytest.raises(BrokenProtocol, match="expected: nothing more in this round"):
            again()


def test_a_refusal_to_reveal_is_final(round_: Round) -> None:
    round_.until("reveal")
    member, confirmations = round_.members["site-01"], round_.coordinator.confirmations()
    with pytest.raises(TooFewSites):
        member.reveal({})
    with pytest.raises(BrokenProtocol, match="expected: nothing more in this round"):
        member.reveal(confirmations)


def test_both_shares_of_one_site_are_never_revealed(round_: Round) -> None:
    round_.until("reveal", {"mask": {"site-02"}})
    confirmations = round_.coordinator.confirmations()
    for member in round_.present.values():
        shares = member.reveal(confirmations)
        assert set(shares["mask"]) == {"site-02"}
        assert set(shares["self"]) == {"site-01", "site-03", "site-04", "site-05"}


def test_steps_out_of_turn_are_refused_and_forgiven() -> None:
    round_ = Round(3)
    member = round_.members["site-01"]
    for step in (lambda: member.share({}), lambda: member.confirm(FIVE), lambda: member.reveal({})):
        with pytest.raises(BrokenProtocol, match="out of turn; expected: advertise"):
            step()
    assert_is_plain(round_.run(), names(3), round_.parameters)


# ---- what the server knows ----


def without(
    vector: torch.Tensor, plus: list[key_agreement.MaskKeys], minus: list[key_agreement.MaskKeys], place: int
) -> torch.Tensor:
    result = vector.clone()
    keystream.apply(result, [keys[place] for keys in minus], [keys[place] for keys in plus])
    return result


def test_a_late_update_stays_masked_although_its_pairwise_masks_are_known(round_: Round) -> None:
    """The reason for the second mask: site-02 sent, but the server said that it did not."""
    round_.until("mask")
    shares = {site: round_.coordinator.shares_for(site) for site in FIVE}
    private, seed = round_.members["site-02"]._mask_pair, round_.members["site-02"]._seed
    late = round_.masked("site-02")
    round_.gone = {"site-02"}
    round_.finish_from("mask")
    pairs = {
        site: key_agreement.pair_mask_keys(
            private.agree(round_.coordinator._peers[site].mask_key), round_.parameters.digest, "site-02", site
        )
        for site in shares["site-02"]
    }
    plus = [keys for site, keys in pairs.items() if site > "site-02"]
    minus = [keys for site, keys in pairs.items() if site < "site-02"]
    tensors, weight = make_update("site-02")
    clear = encode(round_.parameters, LAYOUT, *LAYOUT.pack(tensors), weight)
    left = without(late.narrow, plus, minus, 0)
    assert (left == clear.narrow).float().mean() < 0.02
    self_masks = key_agreement.self_mask_keys(seed, round_.parameters.digest, "site-02")
    assert torch.equal(without(left, [self_masks], [], 0), clear.narrow), "nothing else hides it"


def test_all_shares_that_a_threshold_less_one_holds_give_no_secret(round_: Round) -> None:
    """t - 1 colluding sites and the server: every guess of the missing share gives another seed."""
    round_.until("confirm")
    held = {site: member._shares["site-01"] for site, member in round_.members.items()}
    enough = {round_.parameters.index(site): held[site].self_ for site in FIVE[:3]}
    seed = secret_sharing.shamir.combine(enough)
    published = round_.coordinator._shares["site-01"]["seed"]
    assert secret_sharing.seed_commitment(round_.parameters, "site-01", seed) == published
    for some in itertools.combinations(FIVE[1:], round_.parameters.threshold - 1):
        found = {
            secret_sharing.shamir.combine(
                {round_.parameters.index(site): held[site].self_ for site in some} | {1: bytes([k]) * 32}
            )
            for k in range(1, 20)
        }
        assert len(found) == 19
