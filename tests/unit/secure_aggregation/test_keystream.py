# SPDX-License-Identifier: Apache-2.0
"""Masks are AES-256-CTR key streams in a ring: what is added comes off again, and keys do not repeat."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from Crypto.Cipher import AES
from Crypto.Hash import SHA256
from Crypto.Protocol.KDF import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.secure_aggregation import key_agreement, keystream
from medflare.secure_aggregation.fixed_point import PIECE
from medflare.secure_aggregation.protocol_bytes import statement

CODES = {torch.int16: "<i2", torch.int32: "<i4", torch.int64: "<i8"}
DTYPES = list(CODES)


def reference_stream(key: bytes, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Another library's AES in counter mode, counter from zero, little endian."""
    code = CODES[dtype]
    cipher = AES.new(key, AES.MODE_CTR, nonce=b"", initial_value=0)
    stream = cipher.encrypt(bytes(size * np.dtype(code).itemsize))
    return torch.from_numpy(np.frombuffer(stream, code).copy())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [0, 1, 5, PIECE - 1, PIECE, 2 * PIECE + 3])
def test_the_mask_is_the_key_stream_of_aes_256_in_counter_mode(dtype: torch.dtype, size: int) -> None:
    vector = torch.zeros(size, dtype=dtype)
    keystream.apply(vector, [bytes(range(32))])
    assert torch.equal(vector, reference_stream(bytes(range(32)), size, dtype))


def test_keys_are_hkdf_sha256() -> None:
    expected = HKDF(b"secret" * 5, 32, b"", SHA256, context=b"what for")
    assert keystream.derive(b"secret" * 5, b"what for") == expected


@settings(deadline=None)
@given(
    st.lists(st.integers(-(2**15), 2**15 - 1), min_size=1, max_size=40),
    st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    st.lists(st.binary(min_size=32, max_size=32), max_size=3),
    st.sampled_from(DTYPES),
)
def test_what_is_added_comes_off_again(
    values: list[int], plus: list[bytes], minus: list[bytes], dtype: torch.dtype
) -> None:
    vector = torch.tensor(values, dtype=dtype)
    keystream.apply(vector, plus, minus)
    keystream.apply(vector, minus, plus)
    assert vector.tolist() == values


def test_two_sites_derive_the_same_pair_of_streams_and_a_third_does_not() -> None:
    one, other, third = key_agreement.KeyPair(), key_agreement.KeyPair(), key_agreement.KeyPair()
    ours = key_agreement.pair_mask_keys(one.agree(other.public), "terms", "a", "b")
    assert ours == key_agreement.pair_mask_keys(other.agree(one.public), "terms", "b", "a")
    assert ours != key_agreement.pair_mask_keys(third.agree(one.public), "terms", "a", "b")


def test_no_two_uses_share_a_key() -> None:
    secret = bytes(32)
    keys = [
        *key_agreement.pair_mask_keys(secret, "round 1", "a", "b"),
        *key_agreement.pair_mask_keys(secret, "round 2", "a", "b"),
        *key_agreement.pair_mask_keys(secret, "round 1", "a", "c"),
        *key_agreement.self_mask_keys(secret, "round 1", "a"),
        *key_agreement.self_mask_keys(secret, "round 1", "b"),
        *key_agreement.self_mask_keys(secret, "round 2", "a"),
    ]
    assert len(set(keys)) == len(keys)


def test_statements_of_different_purposes_or_words_differ() -> None:
    made = [
        statement("a", x="b"),
        statement("ab", x=""),
        statement("a", x=["b"]),
        statement("a", x="b", y=""),
        statement("a", y="b"),
    ]
    assert len(set(made)) == len(made)


def test_a_key_of_small_order_is_refused() -> None:
    with pytest.raises(ValueError):
        key_agreement.KeyPair().agree(bytes(32))
