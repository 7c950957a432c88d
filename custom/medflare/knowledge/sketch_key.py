# SPDX-License-Identifier: Apache-2.0
"""The key of the sketches, which the sites share and the server never sees.

With the key anyone can test whether a triple is in a graph behind a signature; without it a signature is as
good as random numbers, of which equal ones say that two sites agree.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from medflare.core.errors import ConfigError

SECRET = 32
"""Bytes of the secret: no words that somebody could guess."""
_ALL_KINDS = b"medflare ddcs sketch, version 1: "
_LATER = {"weighted": "weighted, version 2"}
"""Kinds whose values are not those of version 1, in which a weighted sample had one value everywhere."""
VOCABULARY = 8
"""Bytes of a vocabulary's digest."""


class SketchKey:
    """Keys derived by HKDF-SHA256 from one secret of the sites and a public context.

    Args:
        secret: 32 random bytes or more, the same at every site.
        context: what the sketches are for, such as the project's name; sketches of two contexts cannot be
            compared.
    """

    def __init__(self, secret: bytes, context: str) -> None:
        if len(secret) < SECRET:
            raise ConfigError(
                f"the sketch key has {len(secret)} bytes; expected {SECRET} or more, drawn at random. Make "
                "one with `SketchKey.new_secret()` and give it to all sites, never to the server."
            )
        self._secret, self.context = secret, context

    @staticmethod
    def new_secret() -> bytes:
        """Return a fresh secret from the operating system's generator."""
        return secrets.token_bytes(SECRET)

    @classmethod
    def read(cls, file: Path, context: str) -> SketchKey:
        """Read a file that holds the secret as hexadecimal digits; ConfigError that names the file."""
        try:
            secret = bytes.fromhex(file.read_text(encoding="ascii").strip())
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{file}: cannot be read as a sketch key ({type(error).__name__}). Expected one line of "
                f"{2 * SECRET} hexadecimal digits, the same file at every site."
            ) from None
        try:
            return cls(secret, context)
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from None

    def derive(self, purpose: str, length: int = 32) -> bytes:
        """Return a key for one purpose, from which neither the secret nor another key can be found."""
        kdf = HKDF(
            algorithm=SHA256(), length=length, salt=self.context.encode(), info=_ALL_KINDS + purpose.encode()
        )
        return kdf.derive(self._secret)

    def fingerprint(self, kind: str, k: int) -> bytes:
        """Return 16 bytes that are equal where signatures can be compared: same key, context, kind and k."""
        return self.derive(f"fingerprint of {_LATER.get(kind, kind)} {k}", 16)

    def vocabulary_digest(self, files: Iterable[Path], align: bool) -> str:
        """Return 16 hexadecimal digits, alike where contents and order of the files are, and `align`.

        Keyed, so that nobody without the key can test which ontology a hospital has. ConfigError that names a
        file that cannot be read.
        """
        total = hashlib.blake2b(key=self.derive("digests of vocabularies"), digest_size=VOCABULARY)
        total.update(bytes([align]))
        for file in files:
            try:
                total.update(hashlib.sha256(file.read_bytes()).digest())
            except OSError as error:
                raise ConfigError(
                    f"{file}: the vocabulary cannot be read ({type(error).__name__}). Mend "
                    "knowledge.vocabulary of site.yaml."
                ) from None
        return total.hexdigest()
