# SPDX-License-Identifier: Apache-2.0
"""Parameters of homomorphic encryption, their security, and fresh context files for a simulator.

A provisioned federation has its files from FLARE's `HEBuilder`; `make_contexts` writes the same two.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tenseal as ts
import tenseal.sealapi as seal

from medflare.core.errors import ConfigError

SITE_FILE = "client_context.tenseal"
SERVER_FILE = "server_context.tenseal"
STANDARD_BITS = {1024: 27, 2048: 54, 4096: 109, 8192: 218, 16384: 438, 32768: 881}
"""Degree -> most bits of the coefficient modulus at 128-bit classical security, ternary secrets
(HomomorphicEncryption.org, Security Standard, 2018, table 1); what SEAL itself enforces."""
SECURE_BITS = {1024: 26, 2048: 53, 4096: 106, 8192: 214, 16384: 430, 32768: 868}
"""The same after newer attacks (Bossuat et al., Security Guidelines for Implementing Homomorphic
Encryption, 2024, ternary secrets, noise deviation 3.19): what is asked for here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextParameters:
    """Arguments of `HEBuilder` in project.yml, and for BFV one more. Raises ConfigError below 128 bits.

    Attributes:
        scheme: CKKS (FLARE's own builder) or BFV (half the bytes; its builder must set a plain modulus).
        poly_modulus_degree: N; 4096 or 8192 suffice for additions.
        coeff_mod_bit_sizes: of the primes. CKKS ciphertexts here have the first alone; SEAL keeps the last
            for switching keys; those between serve stock FLARE's filters.
        scale_bits: what stock FLARE's filters encode with; our scale follows from `HeParameters`.
        plain_bits: size of BFV's plain modulus, a prime.
    """

    scheme: str = "CKKS"
    poly_modulus_degree: int = 8192
    coeff_mod_bit_sizes: tuple[int, ...] = (56, 40, 60)
    scale_bits: int = 40
    plain_bits: int = 39

    def __post_init__(self) -> None:
        if self.scheme not in ("CKKS", "BFV"):
            raise ConfigError(f"scheme is '{self.scheme}'; expected CKKS or BFV.")
        if len(self.coeff_mod_bit_sizes) < 2:
            raise ConfigError(
                f"coeff_mod_bit_sizes is {list(self.coeff_mod_bit_sizes)}; expected two primes or more, "
                "since SEAL keeps the last for itself."
            )
        check_secure(self.poly_modulus_degree, sum(self.coeff_mod_bit_sizes), "HEBuilder's arguments")


def check_secure(degree: int, bits: int, where: str) -> None:
    """Raise ConfigError where degree and modulus give less than 128-bit security."""
    if bits > SECURE_BITS.get(degree, 0):
        known = ", ".join(f"{n}: {most}" for n, most in SECURE_BITS.items())
        raise ConfigError(
            f"{where}: poly_modulus_degree {degree} with a coefficient modulus of {bits} bits is below "
            f"128-bit security; expected at most (degree: bits) {known}. Change HEBuilder's arguments in "
            "provisioning/project.yml and provision again."
        )


PRESETS = {
    "CKKS": ContextParameters(),
    "BFV": ContextParameters(scheme="BFV", poly_modulus_degree=4096, coeff_mod_bit_sizes=(52, 52)),
}
"""Scheme -> recommended parameters; stock FLARE's filters work with those of CKKS too."""


def make_contexts(folder: Path, parameters: ContextParameters) -> None:
    """Write both files as `HEBuilder` does, with a new key; the site's is readable by its owner alone.

    Raises ConfigError when SEAL finds no primes of those sizes.
    """
    try:
        context = _fresh(parameters)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"SEAL cannot make keys from {asdict(parameters)}: {error}.") from error
    folder.mkdir(parents=True, exist_ok=True)
    for name, private, mode in ((SITE_FILE, True, 0o600), (SERVER_FILE, False, 0o644)):
        content = context.serialize(
            save_public_key=private, save_secret_key=private, save_galois_keys=False, save_relin_keys=True
        )
        _write(folder / name, content, mode)


def _fresh(parameters: ContextParameters) -> ts.Context:
    degree, plain = parameters.poly_modulus_degree, {}
    if parameters.scheme == "BFV":
        plain["plain_modulus"] = seal.PlainModulus.Batching(degree, parameters.plain_bits).value()
    context: Any = ts.context(
        ts.SCHEME_TYPE[parameters.scheme],
        poly_modulus_degree=degree,
        coeff_mod_bit_sizes=list(parameters.coeff_mod_bit_sizes),
        encryption_type=ts.ENCRYPTION_TYPE.SYMMETRIC,
        n_threads=1,
        **plain,
    )
    context.generate_relin_keys()
    if parameters.scheme == "CKKS":
        context.global_scale = 2**parameters.scale_bits
    return context


def _write(path: Path, content: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
