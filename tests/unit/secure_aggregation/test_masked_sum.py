# SPDX-License-Identifier: Apache-2.0
"""The masked sum is the plain sum, whoever drops out when, as long as a threshold is left (issue 5)."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from masking_round import LAYOUT, PHASES, Round, assert_is_plain, make_update, named, names

from medflare.secure_aggregation.masking_errors import MaskingError, TooFewSites
from medflare.secure_aggregation.round_parameters import Limits

AFTER_MASKING = ("confirm", "reveal")


@pytest.mark.parametrize("count", [2, 3, 4, 5, 10])
def test_nobody_drops_out(count: int) -> None:
    round_ = Round(count)
    assert_is_plain(round_.run(), names(count), round_.parameters)


@pytest.mark.parametrize("drops", [{}, {"mask": {"site-02"}}, {"share": {"site-01", "site-05"}}], ids=named)
def test_a_narrow_ring_of_sixteen_bits_sums_within_its_coarser_error(drops: dict[str, set[str]]) -> None:
    round_ = Round(5, bits=16, bound=4.0)
    result = round_.run(drops)
    gone = {site for sites in drops.values() for site in sites}
    assert_is_plain(result, [site for site in names(5) if site not in gone], round_.parameters)
    assert round_.sent["site-03"].narrow.dtype == torch.int16
    assert round_.parameters.narrow_ring.fraction == 9


GONE = [{"site-01"}, {"site-05"}, {"site-02", "site-03"}, {"site-01", "site-05"}]
DROPS: list[dict[str, set[str]]] = [
    *({phase: gone} for phase in PHASES for gone in GONE),
    *({one: {"site-02"}, two: {"site-04"}} for one, two in itertools.combinations(PHASES, 2)),
]


@pytest.mark.parametrize("drops", DROPS, ids=named)
def test_one_or_two_of_five_dropping_out_at_once_or_one_after_the_other_is_recovered(
    drops: dict[str, set[str]],
) -> None:
    round_ = Round(5)
    result = round_.run(drops)
    lost = {site for phase, gone in drops.items() if phase not in AFTER_MASKING for site in gone}
    assert_is_plain(result, [site for site in names(5) if site not in lost], round_.parameters)
    assert result.blamed == {}


@pytest.mark.parametrize("phase", PHASES)
def test_three_of_five_dropping_out_ends_the_round_with_names(phase: str) -> None:
    with pytest.raises(
        TooFewSites, match=r"2 of 5 sites .*, 3 are needed; missing: site-01, site-03, site-04"
    ) as e:
        Round(5).run({phase: {"site-01", "site-03", "site-04"}})
    assert e.value.phase == phase
    assert e.value.sites == ("site-01", "site-03", "site-04")


@pytest.mark.parametrize("phases", list(itertools.combinations(PHASES, 3)), ids="-".join)
def test_three_of_five_dropping_out_one_after_the_other_ends_the_round(phases: tuple[str, ...]) -> None:
    drops = {phase: {site} for phase, site in zip(phases, ("site-01", "site-02", "site-05"), strict=True)}
    with pytest.raises(TooFewSites) as found:
        Round(5).run(drops)
    assert found.value.phase == phases[-1]


@pytest.mark.parametrize(("count", "threshold", "most_gone"), [(3, 2, 1), (4, 3, 1), (7, 4, 3), (7, 6, 1)])
def test_the_threshold_says_how_many_may_drop_out(count: int, threshold: int, most_gone: int) -> None:
    gone = set(names(count)[:most_gone])
    round_ = Round(count, threshold=threshold)
    assert_is_plain(round_.run({"mask": gone}), names(count)[most_gone:], round_.parameters)
    with pytest.raises(TooFewSites):
        Round(count, threshold=threshold).run({"mask": set(names(count)[: most_gone + 1])})


def test_a_sites_own_minimum_ends_a_round_that_the_threshold_would_let_pass() -> None:
    strict = Round(5, limits=Limits(min_sites=4))
    with pytest.raises(TooFewSites, match="3 of 5 sites sent masked updates, 4 are needed"):
        strict.run({"mask": {"site-01", "site-02"}})


def test_totals_come_back_as_tensors_of_the_layout() -> None:
    result = Round(3).run()
    tensors = LAYOUT.unpack(result.narrow, result.wide)
    counts = sum(make_update(site)[0]["sum:bank.count"].double() for site in names(3))
    assert isinstance(counts, torch.Tensor)
    torch.testing.assert_close(tensors["sum:bank.count"], counts, atol=1e-7, rtol=0)
    assert tensors["adapter.lora_A"].shape == (4, 16)


def test_reports_are_json_and_say_who_is_missing() -> None:
    assert json.loads(json.dumps(Round(3).run().report()))["sites"] == names(3)
    with pytest.raises(MaskingError) as found:
        Round(3).run({"share": {"site-01", "site-02"}})
    facts = json.loads(json.dumps(found.value.to_json()))
    assert facts["kind"] == "TooFewSites"
    assert facts["sites"] == ["site-01", "site-02"]
