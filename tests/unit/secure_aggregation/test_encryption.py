# SPDX-License-Identifier: Apache-2.0
"""Encrypted sums: exact on the declared grid, unread by the server, closed to what does not belong."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tenseal.sealapi as seal
import torch
from torch import Tensor

from medflare.core.errors import ConfigError, RunError, UpdateError
from medflare.secure_aggregation.encryption import Adder, decrypt, encrypt, error_bound, step_of
from medflare.secure_aggregation.encryption_keys import Keys, read_server_context, read_site_context
from medflare.secure_aggregation.encryption_message import pack, shuttle, unpack
from medflare.secure_aggregation.encryption_parameters import (
    PRESETS,
    SERVER_FILE,
    SITE_FILE,
    ContextParameters,
    make_contexts,
)
from medflare.secure_aggregation.encryption_schemes import NOISE_VARIANCE, CkksSlots, HeParameters, slots_of
from medflare.secure_aggregation.layout import Layout

PARAMETERS = {
    "ckks": PRESETS["CKKS"],
    "ckks-4096": ContextParameters(poly_modulus_degree=4096, coeff_mod_bit_sizes=(48, 48)),
    "ckks-60-bits": ContextParameters(coeff_mod_bit_sizes=(60, 40, 60)),
    "bfv": PRESETS["BFV"],
}
TERMS = HeParameters(bound=1.0, additions=256)


@dataclass(frozen=True)
class Kits:
    """Both files of one provision, opened."""

    site: Keys
    server: Keys


def kits_in(folder: Path, parameters: ContextParameters) -> Kits:
    make_contexts(folder, parameters)
    return Kits(read_site_context(folder / SITE_FILE), read_server_context(folder / SERVER_FILE))


@pytest.fixture(scope="module", params=sorted(PARAMETERS))
def kits(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return kits_in(tmp_path_factory.mktemp("kits"), PARAMETERS[request.param])


@pytest.fixture(scope="module")
def ckks(tmp_path_factory: pytest.TempPathFactory) -> Kits:
    return kits_in(tmp_path_factory.mktemp("ckks"), PARAMETERS["ckks-4096"])


def values(size: int, seed: int = 0) -> Tensor:
    """Uniform within the bound, in fp64, so that no grid holds them."""
    return torch.rand(size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def total(kits: Kits, vectors: list[Tensor], terms: HeParameters = TERMS) -> Tensor:
    adder = Adder(kits.server, terms)
    for vector in vectors:
        adder.add(encrypt(kits.site, vector, terms))
    return adder.total()


def rebuilt(message: Tensor, change: Callable[[bytearray], None]) -> Tensor:
    """A message changed by someone who also mends its digest."""
    data = bytearray(message.numpy().tobytes()[:-32])
    change(data)
    return torch.frombuffer(data + hashlib.sha256(data).digest(), dtype=torch.uint8)


# ---- what a total is ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2047, 2048, 2049, 4096, 10_000])
def test_one_message_comes_back_within_half_a_step(kits: Kits, size: int) -> None:
    result = decrypt(kits.site, encrypt(kits.site, values(size), TERMS), size, TERMS)
    assert result.shape == (size,)
    assert result.dtype == torch.float64
    assert (result - values(size)).abs().max() <= error_bound(kits.site, TERMS, 1)


def test_a_total_is_the_exact_sum_of_rounded_values(kits: Kits) -> None:
    step, vectors = step_of(kits.site, TERMS), [values(5000, seed) for seed in range(5)]
    result = decrypt(kits.site, total(kits, vectors), 5000, TERMS)
    assert torch.equal(result, sum((v / step).round() for v in vectors) * step)


def test_the_error_is_below_a_millionth_of_the_bound_at_the_defaults(kits: Kits) -> None:
    assert error_bound(kits.site, TERMS, 1) < 1e-6 * TERMS.bound
    assert error_bound(kits.server, TERMS, 1) == error_bound(kits.site, TERMS, 1)


def test_as_many_additions_as_declared_do_not_overflow_at_the_bound(kits: Kits) -> None:
    vector = torch.tensor([TERMS.bound, -TERMS.bound, 0.5, 0.0] * 8, dtype=torch.float64)
    adder = Adder(kits.server, TERMS)
    for _ in range(TERMS.additions):
        adder.add(encrypt(kits.site, vector, TERMS))
    assert adder.room == 0
    assert torch.equal(decrypt(kits.site, adder.total(), 32, TERMS), vector * TERMS.additions)
    with pytest.raises(UpdateError, match="256 messages are summed; 1 more would pass the declared 256"):
        adder.add(encrypt(kits.site, vector, TERMS))


def test_totals_of_rounds_add_up_like_messages(kits: Kits) -> None:
    rounds = [[values(300, 10 * r + s) for s in range(3)] for r in range(4)]
    grown = Adder(kits.server, TERMS)
    for each in rounds:
        grown.add(total(kits, each))
    at_once = total(kits, [vector for each in rounds for vector in each])
    assert grown.added == 12
    assert torch.equal(decrypt(kits.site, grown.total(), 300, TERMS), decrypt(kits.site, at_once, 300, TERMS))


def test_adding_goes_on_after_a_total(kits: Kits) -> None:
    adder = Adder(kits.server, TERMS)
    for count in (1, 2, 3):
        adder.add(encrypt(kits.site, torch.full((3,), 0.25), TERMS))
        assert decrypt(kits.site, adder.total(), 3, TERMS).tolist() == [0.25 * count] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrower_dtypes_and_numpy_are_taken(ckks: Kits, dtype: torch.dtype) -> None:
    vector = torch.tensor([0.5, -0.25, 1.0], dtype=dtype)
    assert decrypt(ckks.site, encrypt(ckks.site, vector, TERMS), 3, TERMS).tolist() == [0.5, -0.25, 1.0]
    array = vector.float().numpy().astype(np.float32)
    assert decrypt(ckks.site, encrypt(ckks.site, array, TERMS), 3, TERMS).tolist() == [0.5, -0.25, 1.0]


def test_counts_too_large_for_one_number_travel_in_digits(kits: Kits) -> None:
    terms = HeParameters(bound=2.0**40, additions=64, step=2.0**-10)
    wide = torch.tensor([2.0**40, -(2.0**40), -1.0, 123_456_789.25, 2.0**-10], dtype=torch.float64)
    assert step_of(kits.site, terms) == 2.0**-10
    assert decrypt(kits.site, total(kits, [wide, wide, -wide, wide], terms), 5, terms).tolist() == [
        2 * value for value in wide.tolist()
    ]


def test_noise_is_as_large_as_is_provided_for(ckks: Kits) -> None:
    """A slot's deviation is sqrt(N/2 * 10.58), so that MARGIN deviations are what the spacing holds."""
    slots = CkksSlots(ckks.site, TERMS)
    sealed = ckks.site.encryptor().encrypt_symmetric(slots.write(np.zeros(slots.width, np.int64)))
    with shuttle(ckks.site, slots) as carrier:
        ciphertext = carrier.back(memoryview(carrier.out(sealed)))
    plain = seal.Plaintext()
    ckks.site.decryptor().decrypt(ciphertext, plain)
    noise = np.asarray(seal.CKKSEncoder(ckks.site.seal).decode_double(plain)) * slots.scale
    assert noise.std() == pytest.approx(np.sqrt(4096 / 2 * NOISE_VARIANCE), rel=0.06)
    assert np.abs(noise).max() < 6 * noise.std()


def test_the_largest_sums_survive_doubles(tmp_path: Path) -> None:
    """60 bits are more than a double's 53: what its rounding adds stays within what is provided for it."""
    kits, terms = kits_in(tmp_path, PARAMETERS["ckks-60-bits"]), HeParameters(additions=1)
    vector = values(4096).sign()
    assert torch.equal(decrypt(kits.site, encrypt(kits.site, vector, terms), 4096, terms), vector)
    flat = torch.ones(4096, dtype=torch.float64)
    assert torch.equal(decrypt(kits.site, encrypt(kits.site, flat, terms), 4096, terms), flat)


# ---- what the server and others learn ----------------------------------------------------------------------


def test_the_server_can_neither_decrypt_nor_encrypt(kits: Kits) -> None:
    message = encrypt(kits.site, values(5), TERMS)
    with pytest.raises(ConfigError, match="holds no secret key: nobody can decrypt"):
        decrypt(kits.server, message, 5, TERMS)
    with pytest.raises(ConfigError, match="nobody can encrypt"):
        encrypt(kits.server, values(5), TERMS)


def test_any_site_reads_any_other_sites_message(kits: Kits, tmp_path: Path) -> None:
    """The scheme's limit: one secret key for all."""
    (tmp_path / SITE_FILE).write_bytes(kits.site.path.read_bytes())
    other = read_site_context(tmp_path / SITE_FILE)
    message = encrypt(kits.site, torch.full((3,), 0.5), TERMS)
    assert decrypt(other, message, 3, TERMS).tolist() == [0.5] * 3


def test_equal_values_make_different_ciphertexts(kits: Kits) -> None:
    first, second = (unpack(encrypt(kits.site, torch.zeros(10), TERMS))[1][0] for _ in range(2))
    same = np.frombuffer(first[200:4000], np.uint8) == np.frombuffer(second[200:4000], np.uint8)
    assert same.mean() < 0.3


def test_length_does_not_depend_on_the_values(kits: Kits) -> None:
    sizes = [len(encrypt(kits.site, vector, TERMS)) for vector in (torch.zeros(9000), values(9000))]
    assert max(sizes) < 1.01 * min(sizes)


def test_a_message_carries_neither_context_nor_key(kits: Kits) -> None:
    message = encrypt(kits.site, values(1), TERMS).numpy().tobytes()
    assert len(message) < 90_000 < kits.server.path.stat().st_size
    key = kits.site.secret_key("test")
    words = key.data()
    for start in range(0, 64, 4):
        assert struct.pack("<4Q", *(words[start + k] for k in range(4))) not in message


def test_a_seed_replaces_half_of_what_a_site_sends(kits: Kits) -> None:
    up = encrypt(kits.site, values(20_000), TERMS)
    assert len(up) < 0.52 * len(total(kits, [values(20_000)]))


def test_decrypted_values_hold_no_noise(kits: Kits) -> None:
    """Noise that is seen gives the key away (Li and Micciancio 2021): equal values must come back equal."""
    totals = [decrypt(kits.site, total(kits, [values(3000)] * 7), 3000, TERMS) for _ in range(2)]
    assert torch.equal(*totals)


# ---- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1.5, -1.0001])
def test_values_that_are_not_within_the_bound_are_named(ckks: Kits, bad: float) -> None:
    vector = values(10)
    vector[7] = bad
    with pytest.raises(UpdateError, match=r"tensor 'vector' has .* beyond the declared bound 1\.") as found:
        encrypt(ckks.site, vector, TERMS)
    assert f"Value 7 of 10 is {bad:g}" in found.value.__notes__[0]  # stays in the site's log


def test_a_refusal_names_the_tensor(ckks: Kits) -> None:
    layout = Layout.of({"a": ((2,), torch.float32), "b.lora_B": ((3,), torch.float32)}, {})
    flat, _ = layout.pack({"a": torch.zeros(2), "b.lora_B": torch.tensor([0.0, 7.0, 0.0])})
    with pytest.raises(UpdateError, match=r"tensor 'b\.lora_B' has values"):
        encrypt(ckks.site, flat, TERMS, layout.narrow.name_at)


@pytest.mark.parametrize("vector", [torch.zeros(0), torch.zeros(2, 2)])
def test_only_vectors_are_encrypted(ckks: Kits, vector: Tensor) -> None:
    with pytest.raises(UpdateError, match="expected \\(P,\\) with P of 1 or more"):
        encrypt(ckks.site, vector, TERMS)


def test_another_provisions_key_is_noticed(kits: Kits, tmp_path: Path) -> None:
    parameters = next(p for p in PARAMETERS.values() if _same(p, kits.site))
    other = kits_in(tmp_path, parameters)
    message = encrypt(other.site, values(5), TERMS)
    with pytest.raises(UpdateError, match=r"this site holds .*its startup kit is of another provision"):
        decrypt(kits.site, message, 5, TERMS)
    adder = Adder(kits.server, TERMS)
    adder.add(encrypt(kits.site, values(5), TERMS))
    with pytest.raises(UpdateError, match=r"the site's startup kit is of another provision"):
        adder.add(message)
    assert adder.added == 1


def test_a_key_id_that_lies_is_noticed_by_the_noise(kits: Kits, tmp_path: Path) -> None:
    parameters = next(p for p in PARAMETERS.values() if _same(p, kits.site))
    other = kits_in(tmp_path, parameters)
    header, parts = unpack(encrypt(other.site, values(5), TERMS))
    forged = pack(replace(header, key=kits.site.key_id), [bytes(part) for part in parts])
    with pytest.raises(UpdateError, match="is no sum of updates"):
        decrypt(kits.site, forged, 5, TERMS)


def _same(parameters: ContextParameters, keys: Keys) -> bool:
    actual = (parameters.scheme, parameters.poly_modulus_degree, parameters.coeff_mod_bit_sizes)
    return actual == (keys.scheme, keys.degree, tuple(m.bit_length() for m in keys.moduli))


def test_other_parameters_are_noticed(ckks: Kits, tmp_path: Path) -> None:
    other = kits_in(tmp_path, ContextParameters())
    message = encrypt(other.site, values(5), TERMS)
    for refuse in (Adder(ckks.server, TERMS).add, lambda m: decrypt(ckks.site, m, 5, TERMS)):
        with pytest.raises(UpdateError, match="encrypted with other parameters"):
            refuse(message)


def flipped(message: Tensor, at: int) -> Tensor:
    message[at] ^= 1
    return message


def spoil(data: bytearray) -> None:
    data[120:160] = bytes(40)


def lengthen(data: bytearray) -> None:
    data.extend(b"rest")


def shorten(data: bytearray) -> None:
    del data[-10:]


Refused = Callable[[Tensor], Tensor]
REFUSED: dict[str, tuple[HeParameters, Refused, str]] = {
    **{f"bit {at}": (TERMS, partial(flipped, at=at), "truncated or changed") for at in (20, 100, 3000, -1)},
    "nothing": (TERMS, lambda message: message[:0], "no encrypted message"),
    "50 bytes": (TERMS, lambda message: message[:50], "no encrypted"),
    "9000 bytes": (TERMS, lambda message: message[:9000], "trunc"),
    "a ciphertext spoilt": (TERMS, lambda message: rebuilt(message, spoil), "a ciphertext cannot be read"),
    "more than announced": (TERMS, lambda message: rebuilt(message, lengthen), "announces 1 ciphertexts"),
    "less than announced": (TERMS, lambda message: rebuilt(message, shorten), "announces 1 ciphertexts"),
    **{
        str(terms): (terms, lambda message: message, "made for bound, additions and step")
        for terms in (
            HeParameters(bound=2.0, additions=256),
            HeParameters(bound=1.0, additions=128),
            HeParameters(additions=256, step=2.0**-12),
        )
    },
}  # fmt: skip
"""Case -> the terms of the site, what becomes of its message, what the server says."""


@pytest.mark.parametrize(("terms", "change", "reason"), REFUSED.values(), ids=REFUSED)
def test_a_message_that_was_changed_or_made_for_other_terms_is_refused(
    ckks: Kits, terms: HeParameters, change: Refused, reason: str
) -> None:
    with pytest.raises(UpdateError, match=reason):
        Adder(ckks.server, TERMS).add(change(encrypt(ckks.site, values(5), terms)))


def test_other_lengths_are_noticed(ckks: Kits) -> None:
    adder = Adder(ckks.server, TERMS)
    adder.add(encrypt(ckks.site, values(3000), TERMS))
    for size in (2999, 5000):
        with pytest.raises(UpdateError, match=f"a message holds {size} values"):
            adder.add(encrypt(ckks.site, values(size), TERMS))
    with pytest.raises(UpdateError, match="holds 3000 values in 2 ciphertexts; expected 3001"):
        decrypt(ckks.site, adder.total(), 3001, TERMS)


def test_what_is_no_message_is_refused(ckks: Kits) -> None:
    with pytest.raises(UpdateError, match=r"begin with b'.*are no encrypted message"):
        decrypt(ckks.site, torch.arange(200, dtype=torch.uint8), 5, TERMS)
    with pytest.raises(UpdateError, match=r"dtype torch.float32 and shape \(3,\)"):
        decrypt(ckks.site, torch.zeros(3), 5, TERMS)


def test_a_refused_message_leaves_the_sum_as_it_was(ckks: Kits) -> None:
    adder, vector = Adder(ckks.server, TERMS), values(5000)
    adder.add(encrypt(ckks.site, vector, TERMS))
    header, parts = unpack(encrypt(ckks.site, vector, TERMS))
    broken = pack(header, [bytes(parts[0]), bytes(parts[1]), bytes(500)])
    with pytest.raises(UpdateError, match="ciphertext 2 of a message cannot be added"):
        adder.add(broken)
    adder.add(encrypt(ckks.site, vector, TERMS))
    assert adder.added == 2
    result = decrypt(ckks.site, adder.total(), 5000, TERMS)
    assert (result - 2 * vector).abs().max() <= error_bound(ckks.site, TERMS, 2)


def test_a_message_is_taken_off_again(ckks: Kits) -> None:
    adder = Adder(ckks.server, TERMS)
    first, second = (encrypt(ckks.site, torch.full((5000,), value), TERMS) for value in (0.5, 0.25))
    adder.add(first)
    adder.add(second)
    adder.remove(first)
    assert adder.added == 1
    assert decrypt(ckks.site, adder.total(), 5000, TERMS).unique().tolist() == [0.25]
    adder.remove(second)
    with pytest.raises(RunError, match="no encrypted message was added"):
        adder.total()
    with pytest.raises(UpdateError, match="never added"):
        adder.remove(second)


def test_a_sum_that_claims_too_few_messages_is_refused(ckks: Kits) -> None:
    header, parts = unpack(total(ckks, [torch.ones(4)] * 3))
    with pytest.raises(UpdateError, match="is no sum of updates"):
        decrypt(ckks.site, pack(replace(header, added=2), [bytes(p) for p in parts]), 4, TERMS)


# ---- terms -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bound": 0.0}, "bound is 0.0; expected a positive"),
        ({"bound": float("inf")}, "bound is inf"),
        ({"additions": 0}, "additions is 0; expected 1 or more"),
        ({"step": 0.3}, "step is 0.3; expected a power of two"),
        ({"step": 2.0}, "at most 1"),
    ],
)
def test_terms_are_checked(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HeParameters(**given)  # type: ignore[arg-type]


def test_more_additions_than_the_modulus_holds_are_refused_before_anything_is_sent(kits: Kits) -> None:
    with pytest.raises(ConfigError, match=r"leaves (room for )?\d+ (levels|additions)"):
        Adder(kits.server, HeParameters(additions=10**8))


def test_sums_beyond_62_bits_are_refused(kits: Kits) -> None:
    with pytest.raises(ConfigError, match="more than 62 bits"):
        step_of(kits.site, HeParameters(bound=2.0**50, step=2.0**-10))


def test_more_additions_round_coarser(kits: Kits) -> None:
    few, many = (slots_of(kits.site, HeParameters(additions=n)).levels for n in (16, 1024))
    assert few > 32 * many
