# SPDX-License-Identifier: Apache-2.0
"""Any threshold of shares gives a secret back, fewer say nothing; who shows or deals wrong ones is named."""

from __future__ import annotations

import itertools
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from masking_round import make_terms, named

from medflare.secure_aggregation import secret_sharing, shamir
from medflare.secure_aggregation.masking_errors import BrokenProtocol
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.secure_aggregation.share_recovery import Recovered, recover

TERMS = make_terms(5)
SEED = os.urandom(32)


@settings(max_examples=20, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.data())
def test_every_threshold_of_shares_gives_the_secret_back(secret: bytes, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    threshold = data.draw(st.integers(1, count))
    shares = shamir.split(secret, threshold, count)
    for some in itertools.combinations(shares, threshold):
        assert shamir.combine({index: shares[index] for index in some}) == secret


def test_fewer_shares_fit_every_secret() -> None:
    shares = shamir.split(SEED, 3, 5)
    assert shamir.combine({index: shares[index] for index in (1, 4)}) != SEED
    forged = {shamir.combine({1: shares[1], 4: shares[4], 5: os.urandom(32)}) for _ in range(50)}
    assert len(forged) == 50


@pytest.mark.parametrize(
    ("secret", "threshold"), [(b"short", 2), (bytes(33), 2), (bytes(32), 0), (bytes(32), 4)]
)
def test_impossible_sizes_are_errors(secret: bytes, threshold: int) -> None:
    with pytest.raises(ValueError, match="expected 32 bytes, 1 <= t <= n"):
        shamir.split(secret, threshold, 3)


def dealt(terms: RoundParameters = TERMS) -> dict[str, secret_sharing.HolderShares]:
    return secret_sharing.split_secrets(terms, bytes(32), SEED, terms.sites)


def recovered(
    shown: dict[str, bytes], committed: dict[str, secret_sharing.HolderShares], terms: RoundParameters = TERMS
) -> Recovered:
    """The seed of site-01, where its dealer committed itself to `committed`."""
    held = {site: secret_sharing.commitments(terms, "site-01", site, one) for site, one in committed.items()}
    return recover(terms, "site-01", "self", held, shown, lambda secret: secret == SEED)


def test_honest_shares_blame_nobody() -> None:
    shares = dealt()
    assert recovered({site: one.self_ for site, one in shares.items()}, shares) == Recovered(SEED)


@pytest.mark.parametrize("liars", [{"site-02"}, {"site-02", "site-05"}], ids=named)
def test_holders_that_show_other_shares_are_named_and_the_rest_is_enough(liars: set[str]) -> None:
    shares = dealt()
    shown = {site: os.urandom(32) if site in liars else one.self_ for site, one in shares.items()}
    secret = recovered(shown, shares)
    assert secret.secret == SEED
    assert set(secret.blamed) == liars


def test_too_many_holders_that_lie_end_the_round_with_their_names() -> None:
    shares = dealt()
    liars = ("site-02", "site-03", "site-05")
    shown = {site: os.urandom(32) if site in liars else one.self_ for site, one in shares.items()}
    with pytest.raises(BrokenProtocol, match=r"2 right shares of 'site-01' came back, 3 are needed") as found:
        recovered(shown, shares)
    assert found.value.sites == liars


@pytest.mark.parametrize("wrong", [{"site-01"}, {"site-01", "site-03"}], ids=named)
def test_a_dealer_that_deals_some_wrong_shares_is_named_and_the_rest_is_enough(wrong: set[str]) -> None:
    shares = {
        site: secret_sharing.HolderShares(one.mask, os.urandom(32)) if site in wrong else one
        for site, one in dealt().items()
    }
    secret = recovered({site: one.self_ for site, one in shares.items()}, shares)
    assert secret.secret == SEED
    assert set(secret.blamed) == {"site-01"}


def test_a_dealer_without_enough_right_shares_ends_the_round_with_its_name() -> None:
    shares = {site: secret_sharing.HolderShares(one.mask, os.urandom(32)) for site, one in dealt().items()}
    with pytest.raises(BrokenProtocol, match="'site-01' dealt wrong shares") as found:
        recovered({site: one.self_ for site, one in shares.items()}, shares)
    assert found.value.sites == ("site-01",)


def test_no_message_holds_a_share_or_secret() -> None:
    shares = dealt()
    shown = {site: os.urandom(32) for site in shares}
    with pytest.raises(BrokenProtocol) as found:
        recovered(shown, shares)
    assert not any(share.hex() in str(found.value) for share in [*shown.values(), SEED])


def test_sealed_shares_open_for_their_holder_in_their_round_only() -> None:
    one = dealt()["site-02"]
    agreed = os.urandom(32)
    held = secret_sharing.commitments(TERMS, "site-01", "site-02", one)
    sealed = secret_sharing.seal(TERMS, "site-01", "site-02", one, agreed)
    assert len(sealed) == secret_sharing.SEALED
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-02", sealed, held, agreed) == one
    other_round = make_terms(5, round=4)
    assert secret_sharing.open_sealed(other_round, "site-01", "site-02", sealed, held, agreed) is None
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-03", sealed, held, agreed) is None
    assert secret_sharing.open_sealed(TERMS, "site-03", "site-02", sealed, held, agreed) is None
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-02", sealed, held[::-1], agreed) is None
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-02", sealed, held, os.urandom(32)) is None
    cut = sealed[:-1] + bytes([sealed[-1] ^ 1])
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-02", cut, held, agreed) is None


def test_a_dealer_that_seals_another_share_than_it_commits_to_is_found_by_the_holder() -> None:
    one, other = dealt()["site-02"], dealt()["site-02"]
    agreed = os.urandom(32)
    committed = secret_sharing.commitments(TERMS, "site-01", "site-02", other)
    words = secret_sharing._words(TERMS, "site-01", "site-02", committed)
    key = secret_sharing.derive(agreed, words)
    sealed = bytes(12) + secret_sharing.AESGCM(key).encrypt(bytes(12), one.mask + one.self_, words)
    assert secret_sharing.open_sealed(TERMS, "site-01", "site-02", sealed, committed, agreed) is None
