# SPDX-License-Identifier: Apache-2.0
"""What secure aggregation does not hide; docs/explanation/masking_protocol.md says so with these facts."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Any

import pytest
import torch
from masking_round import LAYOUT, Round, assert_is_plain, make_update, names, plain_mean

from medflare.secure_aggregation import key_agreement, keystream, shamir
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masked_update import encode
from medflare.secure_aggregation.masking_errors import MaskingError, TooFewSites
from medflare.secure_aggregation.round_parameters import Limits
from medflare.secure_aggregation.signed_messages import make_confirmation
from medflare.secure_aggregation.unmasking import SecureSum


def without(found: SecureSum, colluding: list[str]) -> torch.Tensor:
    """What is left of the mean when sites take their own updates out of it, as one mean over the others."""
    narrow, _, whole = plain_mean(colluding)
    return (found.narrow.double() * found.weight - narrow * whole) / (found.weight - whole)


def test_in_a_sum_of_two_either_site_reads_the_others_update() -> None:
    result = Round(3, limits=Limits(min_sites=2)).run({"mask": {"site-03"}})
    other = LAYOUT.pack(make_update("site-02")[0])[0].double()
    torch.testing.assert_close(without(result, ["site-01"]), other, atol=1e-5, rtol=0)


def test_a_site_that_keeps_the_default_takes_part_in_no_sum_of_two() -> None:
    with pytest.raises(TooFewSites, match="2 of 3 sites sent masked updates, 3 are needed"):
        Round(3, limits=Limits()).run({"mask": {"site-03"}})


def test_a_server_and_all_sites_but_one_of_a_sum_read_that_ones_update() -> None:
    """A server that calls two honest sites dropped out, and the two that collude with it."""
    result = Round(5).run({"advertise": {"site-02", "site-03"}})
    update = LAYOUT.pack(make_update("site-01")[0])[0].double()
    torch.testing.assert_close(without(result, ["site-04", "site-05"]), update, atol=1e-5, rtol=0)


def test_a_threshold_of_four_of_five_leaves_two_honest_sites_in_every_sum_with_two_that_collude() -> None:
    limits = Limits(min_threshold=4)
    with pytest.raises(TooFewSites):
        Round(5, limits=limits, threshold=4).run({"advertise": {"site-02", "site-03"}})
    result = Round(5, limits=limits, threshold=4).run({"advertise": {"site-02"}})
    two = plain_mean(["site-01", "site-03"])[0]
    torch.testing.assert_close(without(result, ["site-04", "site-05"]), two, atol=1e-5, rtol=0)


def revealed_to_two_faces(
    round_: Round, people: dict[str, Identity], faces: dict[str, list[str]]
) -> dict[str, dict[str, Any]]:
    """What honest sites reveal when the server tells each its own survivors, and site-05 signs all."""
    confirmations = {site: round_.members[site].confirm(told) for site, told in faces.items()}
    out = {}
    for site, told in faces.items():
        same = {other: confirmations[other] for other in faces if faces[other] == told}
        liars_confirmation = {"site-05": make_confirmation(people["site-05"], round_.parameters, told)}
        out[site] = round_.members[site].reveal(same | liars_confirmation)
    return out


def test_a_lying_server_and_one_of_five_sites_read_an_update_at_the_smallest_threshold(
    people: dict[str, Identity],
) -> None:
    """2t = n + 1: two sites confirm that site-01 survived, two that it did not, and site-05 both."""
    round_ = Round(5, identity=people.__getitem__)
    round_.until("confirm")
    here, there = ["site-01", "site-02", "site-05"], ["site-03", "site-04", "site-05"]
    faces = {"site-01": here, "site-02": here, "site-03": there, "site-04": there}
    shown = revealed_to_two_faces(round_, people, faces)
    held = round_.members["site-05"]._shares["site-01"]
    seed, key = (
        shamir.combine(
            {5: held.share(secret)}
            | {round_.parameters.index(s): b64decode(shown[s][secret]["site-01"]) for s in sites}
        )
        for secret, sites in (("self", here[:2]), ("mask", there[:2]))
    )
    self_mask = key_agreement.self_mask_keys(seed, round_.parameters.digest, "site-01")[0]
    pairs = [
        key_agreement.pair_mask_keys(
            key_agreement.KeyPair(key).agree(peer.mask_key), round_.parameters.digest, "site-01", site
        )[0]
        for site, peer in round_.coordinator._peers.items()
        if site != "site-01"
    ]
    read = round_.sent["site-01"].narrow.clone()
    keystream.apply(read, [], [self_mask, *pairs])
    tensors, weight = make_update("site-01")
    assert torch.equal(read, encode(round_.parameters, LAYOUT, *LAYOUT.pack(tensors), weight).narrow)


@pytest.mark.parametrize("split", [1, 2, 3])
def test_at_a_threshold_of_two_thirds_the_same_server_and_site_read_nothing(
    people: dict[str, Identity], split: int
) -> None:
    """Of two sets of survivors, told to some of the honest sites each, at most one has four to confirm it."""
    round_ = Round(5, identity=people.__getitem__, threshold=4)
    round_.until("confirm")
    honest, everyone = names(5)[:4], names(5)
    one, other = honest[:split], honest[split:]
    here, there = ([site for site in everyone if site != gone] for gone in (other[0], one[0]))
    confirmations = {site: round_.members[site].confirm(here if site in one else there) for site in honest}
    answers = 0
    for told, sites in ((here, one), (there, other)):
        liars_confirmation = {"site-05": make_confirmation(people["site-05"], round_.parameters, told)}
        for site in sites:
            try:
                round_.members[site].reveal(
                    {peer: confirmations[peer] for peer in sites} | liars_confirmation
                )
                answers += 1
            except TooFewSites:
                continue
    assert answers == (3 if split in (1, 3) else 0)


def test_a_poisoned_update_within_the_bound_is_summed_like_any_other() -> None:
    round_ = Round(3)
    round_.until("mask")
    poison = round_.parameters.narrow_ring.most // 16
    round_.mask({"site-02": lambda masked: replace(masked, narrow=masked.narrow + poison)})
    result = round_.finish_from("confirm")
    narrow, _, whole = plain_mean(names(3))
    torch.testing.assert_close(
        result.narrow.double(), narrow + round_.parameters.most_weight / whole, atol=1e-5, rtol=0
    )
    assert result.blamed == {}


def test_a_site_that_stays_away_ends_a_round_at_worst_and_the_next_one_begins_afresh() -> None:
    with pytest.raises(MaskingError):
        Round(3).run({"reveal": {"site-01", "site-02"}})
    again = Round(3, round=4)
    assert_is_plain(again.run(), names(3), again.parameters)
