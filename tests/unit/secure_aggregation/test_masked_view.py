# SPDX-License-Identifier: Apache-2.0
"""What one site sends looks like noise, to the server and to colluding sites, and is new in every round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from masking_round import names
from scipy.stats import chisquare

from medflare.secure_aggregation import key_agreement, keystream
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked, encode
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters

SIZE = 1 << 18
LAYOUT = Layout.of({"w": ((SIZE,), torch.float32)}, {"sum:n": ((SIZE // 8,), torch.float32)})
CONSTANT = (torch.full((SIZE,), 0.25), torch.full((SIZE // 8,), 7.0, dtype=torch.float64))
"""An update that shows any structure a mask would leave."""
ZERO_P = 1e-9
"""Below this, bytes are not uniform; a right mask gets here once in a thousand million runs."""


def make_members(terms: RoundParameters) -> dict[str, Member]:
    limits = Limits(min_sites=2)
    return {site: Member(Identity.unsigned(site), LAYOUT, limits) for site in terms.sites}


def shared_by_all(terms: RoundParameters, members: dict[str, Member]) -> dict[str, dict[str, Any]]:
    adverts = {site: member.advertise(terms) for site, member in members.items()}
    return {site: member.share(adverts) for site, member in members.items()}


def mask(member: Member, shared: dict[str, dict[str, Any]]) -> Masked:
    shares = {
        dealer: {"sealed": message["sealed"][member.name], "held": message["held"][member.name]}
        for dealer, message in shared.items()
        if dealer != member.name
    }
    return member.mask(shares, *CONSTANT, 500)


def masked_by_all(terms: RoundParameters) -> dict[str, Masked]:
    members = make_members(terms)
    shared = shared_by_all(terms, members)
    return {site: mask(member, shared) for site, member in members.items()}


def terms_of(round_number: int = 0, run_id: str = "run-1") -> RoundParameters:
    return RoundParameters.of(LAYOUT, sites=names(5), run_id=run_id, round=round_number, most_weight=1000)


def uniformity(vector: torch.Tensor) -> float:
    """p of the chi-square test that all 256 bytes are equally frequent."""
    counts = torch.bincount(vector.view(torch.uint8).to(torch.int64), minlength=256)
    return float(chisquare(counts.numpy()).pvalue)


@pytest.fixture(scope="module")
def sent() -> dict[str, Masked]:
    return masked_by_all(terms_of())


@pytest.mark.parametrize("segment", ["narrow", "wide"])
@pytest.mark.parametrize("site", names(5))
def test_what_a_site_sends_is_uniform(sent: dict[str, Masked], site: str, segment: str) -> None:
    assert uniformity(getattr(sent[site], segment)) > ZERO_P


def test_the_test_of_uniformity_sees_an_update_that_is_not_masked() -> None:
    clear = encode(terms_of(), LAYOUT, *CONSTANT, 500)
    assert uniformity(clear.narrow) < ZERO_P
    assert uniformity(clear.wide) < ZERO_P


def test_differences_of_two_sites_and_of_neighbouring_values_are_uniform(sent: dict[str, Masked]) -> None:
    """Equal updates under masks of the same key would leave zeros."""
    one, other = sent["site-01"].narrow, sent["site-02"].narrow
    assert uniformity(one - other) > ZERO_P
    assert uniformity(one[1:] - one[:-1]) > ZERO_P


def alike(one: torch.Tensor, other: torch.Tensor) -> float:
    """Share of values that are the same."""
    return (one == other).double().mean().item()


@pytest.mark.parametrize(
    "again", [terms_of(), terms_of(1), terms_of(run_id="run-2")], ids=["same", "round", "run"]
)
def test_the_same_update_looks_different_each_time(sent: dict[str, Masked], again: RoundParameters) -> None:
    later = masked_by_all(again)
    for site, masked in later.items():
        assert alike(masked.narrow, sent[site].narrow) < 1e-4
        assert alike(masked.wide, sent[site].wide) < 1e-4


def test_two_colluding_sites_and_all_self_masks_leave_an_update_masked() -> None:
    """The server knows every survivor's self-mask; site-04 and site-05 tell it their masks with site-01.
    Left are site-01's masks with site-02 and site-03."""
    terms = terms_of()
    members = make_members(terms)
    shared = shared_by_all(terms, members)
    public = members["site-01"]._mask_pair.public
    pairs = {
        site: key_agreement.pair_mask_keys(member._mask_pair.agree(public), terms.digest, site, "site-01")[0]
        for site, member in members.items()
        if site != "site-01"
    }
    self_mask = key_agreement.self_mask_keys(members["site-01"]._seed, terms.digest, "site-01")[0]
    left = mask(members["site-01"], shared).narrow
    keystream.apply(left, [], [self_mask, pairs["site-04"], pairs["site-05"]])
    assert uniformity(left) > ZERO_P
    keystream.apply(left, [], [pairs["site-02"], pairs["site-03"]])
    assert torch.equal(left, encode(terms, LAYOUT, *CONSTANT, 500).narrow)


def test_the_weight_is_masked_too(sent: dict[str, Masked]) -> None:
    clear = encode(terms_of(), LAYOUT, *CONSTANT, 500)
    assert all(masked.wide[-1] != clear.wide[-1] for masked in sent.values())
