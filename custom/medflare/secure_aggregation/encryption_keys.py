# SPDX-License-Identifier: Apache-2.0
"""Opened context files of a startup kit, and whether those of several sites belong together.

`client_context.tenseal` holds the secret key, the same at every site of a provision;
`server_context.tenseal` holds parameters only, with which one can add.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import tenseal as ts
import tenseal.sealapi as seal
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.encryption_parameters import SERVER_FILE, SITE_FILE, check_secure


@dataclass(frozen=True)
class Keys:
    """An opened context.

    Attributes:
        context: TenSEAL's.
        path: the file it was read from.
    """

    context: ts.Context
    path: Path

    @property
    def secret(self) -> bool:
        """True if it can encrypt and decrypt (a site's), False if it can only add (the server's)."""
        return bool(self.context.is_private())

    @cached_property
    def seal(self) -> Any:
        """SEAL's context."""
        return self.context.seal_context().data

    @cached_property
    def scheme(self) -> str:
        """CKKS or BFV."""
        return str(self.seal.key_context_data().parms().scheme()).rpartition(".")[2]

    @cached_property
    def degree(self) -> int:
        """N, of the ring's polynomials."""
        return int(self.seal.key_context_data().parms().poly_modulus_degree())

    @cached_property
    def moduli(self) -> tuple[int, ...]:
        """Primes of the coefficient modulus; the last is SEAL's own."""
        return tuple(m.value() for m in self.seal.key_context_data().parms().coeff_modulus())

    @cached_property
    def plain_modulus(self) -> int:
        """BFV's; 0 for CKKS."""
        return int(self.seal.key_context_data().parms().plain_modulus().value())

    @cached_property
    def fingerprint(self) -> bytes:
        """16 bytes over scheme, degree and moduli."""
        scheme = f"{self.scheme} {self.degree} {self.moduli} {self.plain_modulus}"
        return hashlib.sha256(scheme.encode()).digest()[:16]

    @cached_property
    def key_id(self) -> bytes:
        """16 bytes that are equal for equal secret keys and tell nothing about them (HKDF-SHA256).

        Empty at the server, whose file has no part that depends on the sites' key.
        """
        if not self.secret:
            return b""
        key = self.context.secret_key().data
        words = key.data()  # a reference into `key`, which must outlive it
        material = b"".join(words[i].to_bytes(8, "little") for i in range(self.degree))
        return HKDF(SHA256(), length=16, salt=None, info=b"medflare encryption key id").derive(material)

    def encryptor(self) -> Any:
        """SEAL's symmetric encryptor; raises ConfigError with the server's file."""
        return seal.Encryptor(self.seal, self.secret_key("encrypt"))

    def decryptor(self) -> Any:
        """SEAL's decryptor; raises ConfigError with the server's file."""
        return seal.Decryptor(self.seal, self.secret_key("decrypt"))

    def secret_key(self, verb: str) -> Any:
        """SEAL's secret key for what `verb` says; raises ConfigError with the server's file."""
        if not self.secret:
            raise ConfigError(
                f"{self.path} holds no secret key: nobody can {verb} with it. A site uses {SITE_FILE} of "
                "its startup kit."
            )
        return self.context.secret_key().data

    def facts(self) -> dict[str, Any]:
        """Return the facts that a site tells the server before round 1: JSON types, nothing secret."""
        return {
            "scheme": self.scheme,
            "degree": self.degree,
            "modulus_bits": [m.bit_length() for m in self.moduli],
            "parameters": self.fingerprint.hex(),
            "key": self.key_id.hex(),
        }


def read_site_context(path: Path) -> Keys:
    """Read a site's file; raise ConfigError if it is missing, damaged, weak or without the secret key."""
    keys = _read(path)
    keys.secret_key("encrypt")
    return keys


def read_server_context(path: Path) -> Keys:
    """Return the server's file; raises ConfigError also when it holds a secret key."""
    keys = _read(path)
    if keys.secret:
        raise ConfigError(
            f"{path} holds the secret key, so the server could read every update. Expected {SERVER_FILE} of "
            "the server's startup kit; delete this file there, and provision again for a new key."
        )
    return keys


def _read(path: Path) -> Keys:
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing: this startup kit was made without keys for homomorphic encryption. Add "
            "HEBuilder to provisioning/project.yml and provision again, or let the job use masks instead."
        )
    try:
        keys = Keys(ts.context_from(path.read_bytes(), n_threads=1), path)
        degree, moduli = keys.degree, keys.moduli
    except (ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{path} is no usable TenSEAL context ({error}): it is damaged, or its parameters are below "
            "128-bit security. Replace it with the one of the startup kit."
        ) from error
    check_secure(degree, sum(m.bit_length() for m in moduli), str(path))
    return keys


def check_alike(server: Keys, sites: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse kits that do not belong together, before round 1.

    `sites`: site -> its `Keys.facts()`. Raises ConfigError with each site whose parameters differ from the
    server's or whose key differs from the one that most sites hold.
    """
    at_server, keys = server.facts(), [str(facts.get("key")) for facts in sites.values()]
    common = max(sorted(set(keys)), key=keys.count, default="")
    wrong = [
        f"'{site}' has {facts.get('scheme')} {facts.get('degree')} {facts.get('modulus_bits')}"
        for site, facts in sorted(sites.items())
        if facts.get("parameters") != at_server["parameters"]
    ]
    wrong += [
        f"'{site}' holds the key {facts.get('key')}, most sites {common}"
        for site, facts in sorted(sites.items())
        if str(facts.get("key")) != common
    ]
    if wrong:
        raise ConfigError(
            f"startup kits of different provisions meet: {'; '.join(wrong)}. The server has "
            f"{at_server['scheme']} {at_server['degree']} {at_server['modulus_bits']}. Each provision makes "
            f"a new key: put {SITE_FILE} and {SERVER_FILE} of one provision everywhere."
        )
