# SPDX-License-Identifier: Apache-2.0
"""What secure aggregation does not hide; docs/security.md says so with these facts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from masking_round import LAYOUT, Round, assert_is_plain, make_update, names, plain_mean

from medflare.privacy.errors import MaskingError, TooFewSites
from medflare.privacy.terms import Limits
from medflare.privacy.unmasking import SecureSum


def without(found: SecureSum, colluding: list[str]) -> torch.Tensor:
    """What is left of the mean when sites take their own updates out of it, as one mean over the others."""
    narrow, _, whole = plain_mean(colluding)
    return (found.narrow.double() * found.weight - narrow * whole) / (found.weight - whole)


def test_in_a_sum_of_two_either_site_reads_the_others_update() -> None:
    found = Round(3, limits=Limits(min_sites=2)).run({"mask": {"site-03"}})
    other = LAYOUT.pack(make_update("site-02")[0])[0].double()
    torch.testing.assert_close(without(found, ["site-01"]), other, atol=1e-5, rtol=0)


def test_a_site_that_keeps_the_default_takes_part_in_no_sum_of_two() -> None:
    with pytest.raises(TooFewSites, match="2 of 3 sites sent masked updates, 3 are needed"):
        Round(3, limits=Limits()).run({"mask": {"site-03"}})


def test_a_server_and_all_sites_but_one_of_a_sum_read_that_ones_update() -> None:
    """A server that calls two honest sites dropped out, and the two that collude with it."""
    found = Round(5).run({"advertise": {"site-02", "site-03"}})
    update = LAYOUT.pack(make_update("site-01")[0])[0].double()
    torch.testing.assert_close(without(found, ["site-04", "site-05"]), update, atol=1e-5, rtol=0)


def test_a_threshold_of_four_of_five_leaves_two_honest_sites_in_every_sum_with_two_that_collude() -> None:
    limits = Limits(min_threshold=4)
    with pytest.raises(TooFewSites):
        Round(5, limits=limits, threshold=4).run({"advertise": {"site-02", "site-03"}})
    found = Round(5, limits=limits, threshold=4).run({"advertise": {"site-02"}})
    two = plain_mean(["site-01", "site-03"])[0]
    torch.testing.assert_close(without(found, ["site-04", "site-05"]), two, atol=1e-5, rtol=0)


def test_a_poisoned_update_within_the_bound_is_summed_like_any_other() -> None:
    round_ = Round(3)
    round_.until("mask")
    poison = round_.terms.narrow_ring.most // 16
    for site in round_.members:
        masked = round_.masked(site)
        if site == "site-02":
            masked = replace(masked, narrow=masked.narrow + poison)
        round_.coordinator.add_masked(site, masked)
    round_.confirm()
    round_.reveal()
    found = round_.coordinator.result()
    narrow, _, whole = plain_mean(names(3))
    torch.testing.assert_close(
        found.narrow.double(), narrow + round_.terms.most_weight / whole, atol=1e-5, rtol=0
    )
    assert found.blamed == {}


def test_a_site_that_stays_away_ends_a_round_at_worst_and_the_next_one_begins_afresh() -> None:
    with pytest.raises(MaskingError):
        Round(3).run({"reveal": {"site-01", "site-02"}})
    again = Round(3, round=4)
    assert_is_plain(again.run(), names(3), again.terms)
