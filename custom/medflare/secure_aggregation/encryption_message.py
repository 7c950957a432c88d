# SPDX-License-Identifier: Apache-2.0
"""One packed message: a header, SEAL's ciphertexts one behind the other, and a SHA-256 over both.

No context and no key travels. The digest finds truncated and damaged messages; it is no signature: who sent
a message is known from its TLS connection.
"""

from __future__ import annotations

import hashlib
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import tenseal.sealapi as seal
import torch
from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.secure_aggregation.encryption_keys import Keys
from medflare.secure_aggregation.encryption_schemes import Slots

MAGIC = b"MFHE\x01"
_HEAD = struct.Struct("<5s16s16sQIddII")
_LENGTH = struct.Struct("<I")
_DIGEST = 32


@dataclass(frozen=True, kw_only=True)
class Header:
    """Facts of a message that must agree before ciphertexts are added or read.

    Attributes:
        parameters: `Keys.fingerprint`.
        key: `Keys.key_id` of the sites.
        size: values, P.
        added: site messages that are summed; 1 from a site.
        bound, step, additions: of `HeParameters`, with the step in use.
        count: ciphertexts.
    """

    parameters: bytes
    key: bytes
    size: int
    added: int
    bound: float
    step: float
    additions: int
    count: int


def pack(header: Header, ciphertexts: Iterable[bytes]) -> Tensor:
    """Return (bytes,) uint8 of `header.count` ciphertexts."""
    out = bytearray(_HEAD.pack(MAGIC, *astuple(header)))
    for part in ciphertexts:
        out += _LENGTH.pack(len(part))
        out += part
    out += hashlib.sha256(out).digest()
    return torch.frombuffer(out, dtype=torch.uint8)


def unpack(message: Tensor) -> tuple[Header, list[memoryview]]:
    """Return the header and the ciphertexts' bytes, which are views of the message.

    Raises UpdateError for what is no such message, or was truncated or changed on its way.
    """
    if message.dtype != torch.uint8 or message.dim() != 1:
        raise UpdateError(
            f"an encrypted message has dtype {message.dtype} and shape {tuple(message.shape)}; expected a "
            "vector of uint8."
        )
    data = message.detach().cpu().contiguous().numpy().data
    if len(data) < _HEAD.size + _DIGEST or data[: len(MAGIC)] != MAGIC:
        raise UpdateError(
            f"{len(data)} bytes that begin with {bytes(data[:5])!r} are no encrypted message of this "
            "version; sites and server must run the same release of medflare."
        )
    body = data[:-_DIGEST]
    if hashlib.sha256(body).digest() != data[-_DIGEST:]:
        raise UpdateError(
            f"an encrypted message of {len(data)} bytes was truncated or changed on its way; send it again."
        )
    _, parameters, key, size, added, bound, step, additions, count = _HEAD.unpack(body[: _HEAD.size])
    header = Header(
        parameters=parameters,
        key=key,
        size=size,
        added=added,
        bound=bound,
        step=step,
        additions=additions,
        count=count,
    )
    return header, _parts(body, count)


def _parts(body: memoryview, count: int) -> list[memoryview]:
    parts, at = [], _HEAD.size
    while at + _LENGTH.size <= len(body):
        (length,) = _LENGTH.unpack(body[at : at + _LENGTH.size])
        at += _LENGTH.size + length
        parts.append(body[at - length : at])
    if at != len(body) or len(parts) != count:
        raise UpdateError(
            f"an encrypted message announces {count} ciphertexts; its {len(body)} bytes hold {len(parts)} "
            "and do not end with one. It was made wrongly."
        )
    return parts


class Shuttle:
    """SEAL's ciphertexts to bytes and back, by a file, since its Python binding knows nothing else.

    A new file each time: writing over one makes ext4 flush it to the disk (5 ms).
    """

    def __init__(self, file: Path, keys: Keys, slots: Slots) -> None:
        self._file, self._context, self._slots = file, keys.seal, slots

    def out(self, ciphertext: Any) -> bytes:
        """With the seed in place of the random half, where the ciphertext is fresh."""
        ciphertext.save(str(self._file))
        content = self._file.read_bytes()
        self._file.unlink()
        return content

    def back(self, data: memoryview) -> Any:
        """Return a ciphertext that is valid for the keys and parameters; raises UpdateError for any other."""
        self._file.write_bytes(data)
        ciphertext = seal.Ciphertext()
        try:
            ciphertext.load(self._context, str(self._file))
        except (RuntimeError, ValueError) as error:
            raise UpdateError(
                f"a ciphertext cannot be read ({error}): its message was made wrongly."
            ) from error
        finally:
            self._file.unlink()
        if ciphertext.size() != 2 or not self._slots.fits(ciphertext):
            raise UpdateError(
                "a ciphertext has another size, level or scale than all have: it was made wrongly."
            )
        return ciphertext


@contextmanager
def shuttle(keys: Keys, slots: Slots) -> Iterator[Shuttle]:
    """A shuttle over a temporary file, in which nothing but ciphertexts is ever written."""
    with tempfile.TemporaryDirectory(prefix="medflare-") as folder:
        yield Shuttle(Path(folder) / "ciphertext", keys, slots)
