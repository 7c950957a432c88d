# SPDX-License-Identifier: Apache-2.0
"""What a round is agreed on: a majority as threshold, a digest over everything, each site's own limits."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from masking_round import LAYOUT, make_terms, named, names

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masking_errors import BrokenProtocol
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters, default_threshold


@pytest.mark.parametrize(("sites", "threshold"), [(2, 2), (3, 2), (4, 3), (5, 3), (10, 6)])
def test_the_default_threshold_is_the_smallest_majority(sites: int, threshold: int) -> None:
    assert default_threshold(sites) == threshold
    assert make_terms(sites).threshold == threshold


@pytest.mark.parametrize(("sites", "threshold"), [(4, 2), (5, 2), (3, 1), (3, 4), (10, 5)])
def test_a_threshold_that_is_no_majority_is_refused(sites: int, threshold: int) -> None:
    with pytest.raises(ConfigError, match=f"threshold is {threshold} of {sites} sites"):
        make_terms(sites, threshold=threshold)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "run-2"},
        {"round": 4},
        {"sites": names(4)},
        {"sites": [*names(4), "site-06"]},
        {"threshold": 4},
        {"bound": 8.0},
        {"wide_bound": 2.0**20},
        {"bits": 16, "bound": 1.0},
        {"most_weight": 999},
    ],
    ids=named,
)
def test_everything_agreed_is_in_the_digest(changes: dict[str, Any]) -> None:
    assert make_terms(5, **changes).digest != make_terms(5).digest


def test_the_layout_is_in_the_digest() -> None:
    words: dict[str, Any] = {"run_id": "r", "round": 0, "most_weight": 1, "sites": ["a", "b"]}
    one, other = Layout.of({}, {}), Layout.of({"x": ((0,), torch.float32)}, {})
    assert RoundParameters.of(one, **words).digest != RoundParameters.of(other, **words).digest


def test_terms_travel_as_json() -> None:
    terms = make_terms(5, threshold=4)
    result = RoundParameters.from_json(json.loads(json.dumps(terms.to_json())))
    assert result == terms
    assert result.digest == terms.digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sites": ["a"]}, "expected two or more names"),
        ({"sites": ["a", "a", "b"]}, "none twice"),
        ({"bits": 24}, "bits is 24; expected 16 or 32"),
        ({"most_weight": 0}, "most_weight is 0"),
        ({"most_weight": math.nan}, "most_weight is nan"),
        ({"most_weight": 2e9}, "most_weight is 2000000000"),
        ({"bound": 1e7}, "Declare a smaller bound"),
        ({"wide_bound": 1e18}, "Declare a smaller bound"),
    ],
    ids=named,
)
def test_terms_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_terms(5, **changes)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(min_sites=6), "5 sites take part, this site's policy asks for 6"),
        (Limits(partners=frozenset({"site-02", "site-03"})), "site-04, site-05 may not take part"),
        (Limits(min_threshold=4), "the threshold is 3, this site's policy asks for 4"),
    ],
    ids=named,
)
def test_a_site_does_not_agree_to_terms_against_its_own_policy(limits: Limits, words: str) -> None:
    member = Member(Identity.unsigned("site-01"), LAYOUT, limits)
    with pytest.raises(BrokenProtocol, match=f"does not agree to the terms: .*{words}"):
        member.advertise(make_terms(5))


def test_a_site_does_not_agree_to_terms_about_others_or_other_tensors() -> None:
    with pytest.raises(BrokenProtocol, match="'site-09' is not among the sites"):
        Member(Identity.unsigned("site-09"), LAYOUT).advertise(make_terms(5))
    with pytest.raises(BrokenProtocol, match="other tensors than those this site declared"):
        Member(Identity.unsigned("site-01"), Layout.of({"x": ((1,), torch.float32)}, {})).advertise(
            make_terms(5)
        )
