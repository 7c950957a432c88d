# SPDX-License-Identifier: Apache-2.0
"""Masks: key streams of AES-256 in counter mode, added to vectors of integers that wrap around.

Every stream has a key of its own, derived by HKDF-SHA256 from a secret and a statement of what it is for, so
that the counter may start at zero. The mask is never in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from medflare.secure_aggregation.fixed_point import PIECE, pieces

KEY = 32
"""Bytes of a key, and of the secrets keys are derived from."""
_COUNTER = bytes(16)


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for one purpose."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY, salt=None, info=purpose).derive(secret)


def apply(vector: Tensor, plus: Sequence[bytes], minus: Sequence[bytes] = ()) -> None:
    """vector += streams of keys in `plus` - streams of keys in `minus`, modulo 2^bits, in place.

    vector: int16, int32 or int64 (N,) on the CPU, contiguous. Piece by piece, so that a piece stays in the
    processor's cache until all streams are in it.
    """
    signed = vector.numpy()
    unsigned = signed.view(np.dtype(f"u{signed.itemsize}"))
    streams = [(_encryptor(key), np.add) for key in plus] + [(_encryptor(key), np.subtract) for key in minus]
    little = unsigned.dtype.newbyteorder("<")
    longest = min(unsigned.nbytes, PIECE * unsigned.itemsize)
    zeros, buffer = memoryview(bytes(longest)), bytearray(longest + 15)
    for piece in pieces(len(unsigned)):
        part = unsigned[piece]
        for encryptor, combine in streams:
            encryptor.update_into(zeros[: part.nbytes], buffer)
            combine(part, np.frombuffer(buffer, little, len(part)), out=part)


def _encryptor(key: bytes) -> CipherContext:
    return Cipher(algorithms.AES(key), modes.CTR(_COUNTER)).encryptor()
