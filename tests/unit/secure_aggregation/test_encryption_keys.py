# SPDX-License-Identifier: Apache-2.0
"""Context files: FLARE's own are read, ours are the same, weak or mismatching ones are refused."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import tenseal as ts
import tenseal.sealapi as seal
import torch

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.encryption import Adder, decrypt, encrypt
from medflare.secure_aggregation.encryption_keys import check_alike, read_server_context, read_site_context
from medflare.secure_aggregation.encryption_parameters import (
    SECURE_BITS,
    SERVER_FILE,
    SITE_FILE,
    STANDARD_BITS,
    ContextParameters,
    check_secure,
    make_contexts,
)
from medflare.secure_aggregation.encryption_schemes import HeParameters

SMALL = ContextParameters(poly_modulus_degree=4096, coeff_mod_bit_sizes=(48, 48))


def flare_builds(folder: Path, parameters: ContextParameters) -> None:
    """What `nvflare provision` writes with HEBuilder in project.yml."""
    from nvflare.lighter.impl.he import HEBuilder

    builder = HEBuilder(
        poly_modulus_degree=parameters.poly_modulus_degree,
        coeff_mod_bit_sizes=list(parameters.coeff_mod_bit_sizes),
        scale_bits=parameters.scale_bits,
    )
    builder.initialize(None, None)
    (folder / SITE_FILE).write_bytes(builder.get_serialized_context(is_client=True))
    (folder / SERVER_FILE).write_bytes(builder.get_serialized_context())


@pytest.mark.parametrize(
    "parameters", [ContextParameters(), SMALL, ContextParameters(coeff_mod_bit_sizes=(60, 40, 40))]
)
def test_flares_own_files_are_read(tmp_path: Path, parameters: ContextParameters) -> None:
    flare_builds(tmp_path, parameters)
    site, server = read_site_context(tmp_path / SITE_FILE), read_server_context(tmp_path / SERVER_FILE)
    adder = Adder(server, HeParameters())
    for _ in range(2):
        adder.add(encrypt(site, torch.tensor([0.5, -0.25]), HeParameters()))
    assert decrypt(site, adder.total(), 2, HeParameters()).tolist() == [1.0, -0.5]


def test_our_files_are_what_flare_writes(tmp_path: Path) -> None:
    flare, ours = tmp_path / "flare", tmp_path / "ours"
    flare.mkdir()
    flare_builds(flare, ContextParameters())
    make_contexts(ours, ContextParameters())
    for name in (SITE_FILE, SERVER_FILE):
        one, other = (ts.context_from((folder / name).read_bytes()) for folder in (flare, ours))
        assert one.global_scale == other.global_scale == 2.0**40
        assert one.is_private() == other.is_private() == (name == SITE_FILE)
        assert one.has_relin_keys() == other.has_relin_keys()
        sizes = [(folder / name).stat().st_size for folder in (flare, ours)]
        assert max(sizes) < 1.05 * min(sizes), "keys are random, and SEAL compresses them"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a provision with small parameters, which no test changes."""
    folder = tmp_path_factory.mktemp("kit")
    make_contexts(folder, SMALL)
    return folder


def test_all_sites_of_a_provision_have_one_key(kit: Path, tmp_path: Path) -> None:
    make_contexts(tmp_path, SMALL)
    (tmp_path / "copy").write_bytes((kit / SITE_FILE).read_bytes())
    paths = (kit / SITE_FILE, tmp_path / "copy", tmp_path / SITE_FILE)
    first, copy, other = (read_site_context(path) for path in paths)
    assert first.key_id == copy.key_id != other.key_id
    assert first.fingerprint == copy.fingerprint == other.fingerprint


def test_the_secret_key_is_its_owners_alone(tmp_path: Path) -> None:
    make_contexts(tmp_path, SMALL)
    make_contexts(tmp_path, SMALL)
    assert (tmp_path / SITE_FILE).stat().st_mode & 0o777 == 0o600


def test_the_servers_file_holds_no_secret(kit: Path) -> None:
    assert not read_server_context(kit / SERVER_FILE).secret
    assert read_server_context(kit / SERVER_FILE).facts()["key"] == ""


def test_a_server_with_the_sites_file_and_a_site_with_the_servers_are_refused(kit: Path) -> None:
    with pytest.raises(ConfigError, match="holds the secret key, so the server could read every update"):
        read_server_context(kit / SITE_FILE)
    with pytest.raises(ConfigError, match=f"A site uses {SITE_FILE}"):
        read_site_context(kit / SERVER_FILE)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is missing: .*HEBuilder .*or let the job use masks"):
        read_site_context(tmp_path / SITE_FILE)


@pytest.mark.parametrize("content", [b"", b"not a context", bytes(1000), None], ids=repr)
def test_a_damaged_or_truncated_file_is_refused(kit: Path, tmp_path: Path, content: bytes | None) -> None:
    truncated = (kit / SITE_FILE).read_bytes()[:-100]
    (tmp_path / SITE_FILE).write_bytes(truncated if content is None else content)
    with pytest.raises(ConfigError, match="is no usable TenSEAL context"):
        read_site_context(tmp_path / SITE_FILE)


# ---- before round 1 ----------------------------------------------------------------------------------------


def test_kits_of_one_provision_are_alike(kit: Path) -> None:
    facts = read_site_context(kit / SITE_FILE).facts()
    server, alike = read_server_context(kit / SERVER_FILE), {"site-1": facts, "site-2": dict(facts)}
    check_alike(server, alike)
    with pytest.raises(ConfigError, match="'site-3' holds the key another"):
        check_alike(server, alike | {"site-3": facts | {"key": "another"}})


def test_kits_of_another_provision_are_named_before_round_1(tmp_path: Path) -> None:
    make_contexts(tmp_path / "new", SMALL)
    make_contexts(tmp_path / "old", SMALL)
    make_contexts(tmp_path / "odd", ContextParameters())
    new, old, odd = (read_site_context(tmp_path / name / SITE_FILE).facts() for name in ("new", "old", "odd"))
    server = read_server_context(tmp_path / "new" / SERVER_FILE)
    with pytest.raises(ConfigError) as caught:
        check_alike(server, {"site-1": new, "site-2": old, "site-3": new, "site-4": odd})
    assert f"'site-2' holds the key {old['key']}, most sites {new['key']}" in str(caught.value)
    assert "'site-4' has CKKS 8192 [56, 40, 60]" in str(caught.value)
    assert "'site-1'" not in str(caught.value)


# ---- 128 bits ----------------------------------------------------------------------------------------------


def test_the_table_is_seals_and_ours_is_stricter() -> None:
    for degree, bits in STANDARD_BITS.items():
        assert seal.CoeffModulus.MaxBitCount(degree, seal.SEC_LEVEL_TYPE.TC128) == bits
        assert SECURE_BITS[degree] < bits


@pytest.mark.parametrize(("degree", "bits"), [(4096, 107), (2048, 54), (8192, 215), (512, 20), (5000, 90)])
def test_less_than_128_bits_is_refused(degree: int, bits: int) -> None:
    with pytest.raises(
        ConfigError, match=f"poly_modulus_degree {degree} with a coefficient modulus of {bits}"
    ):
        check_secure(degree, bits, "kit")


def test_weak_parameters_make_no_keys() -> None:
    with pytest.raises(ConfigError, match="below 128-bit security"):
        ContextParameters(poly_modulus_degree=4096, coeff_mod_bit_sizes=(60, 60))


def test_a_kit_that_seal_still_accepts_but_the_newer_table_does_not_is_refused(tmp_path: Path) -> None:
    context = ts.context(
        ts.SCHEME_TYPE.CKKS, 4096, -1, [54, 54], encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC
    )
    (tmp_path / SITE_FILE).write_bytes(context.serialize(save_secret_key=True, save_galois_keys=False))
    with pytest.raises(ConfigError, match="4096 with a coefficient modulus of 108 bits is below 128-bit"):
        read_site_context(tmp_path / SITE_FILE)


def test_a_context_below_the_standard_is_refused(tmp_path: Path) -> None:
    """Made by hand, since TenSEAL makes none: field 1 of its message is SEAL's parameters."""
    weak = seal.EncryptionParameters(seal.SCHEME_TYPE.CKKS)
    weak.set_poly_modulus_degree(2048)
    weak.set_coeff_modulus(seal.CoeffModulus.Create(4096, [60, 60]))
    with tempfile.NamedTemporaryFile() as file:
        weak.save(file.name)
        parameters = Path(file.name).read_bytes()
    length = bytes([len(parameters) & 0x7F | 0x80, len(parameters) >> 7])
    (tmp_path / SERVER_FILE).write_bytes(b"\x0a" + length + parameters + b"\x20\x01")
    with pytest.raises(ConfigError, match="below 128-bit security"):
        read_server_context(tmp_path / SERVER_FILE)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scheme": "TFHE"}, "scheme is 'TFHE'; expected CKKS or BFV"),
        ({"coeff_mod_bit_sizes": (48,)}, "expected two primes or more"),
    ],
)
def test_parameters_are_checked(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ContextParameters(**given)  # type: ignore[arg-type]


def test_primes_that_do_not_exist_are_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="SEAL cannot make keys from"):
        make_contexts(tmp_path, ContextParameters(coeff_mod_bit_sizes=(10, 10)))
