# SPDX-License-Identifier: Apache-2.0
"""Keyed MinHash signatures: plain (Broder 1997) and by consistent weighted sampling (Ioffe 2010).

Every hash is a block of AES-256 under the sites' key. A triple's keyed BLAKE2b digest x and the number j of
a hash give the block x ⊕ j, which occurs once in a sketch, so the block cipher is a pseudo-random function
there; ECB is nothing but the way to encrypt many single blocks at once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from medflare.core.errors import ConfigError
from medflare.core.sketch import Sketch, SketchKind
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Graph, serialised

HASHES = 1024
"""k; a standard error of 0.0156 at most."""
MOST_HASHES = 2041
"""A sketch fits in 8 kB, header and all."""
PIECE = 1 << 19
"""Bytes of blocks at a time, which stay in a processor's cache."""
_UNIT = 2.0**-32


class Sketcher:
    """Makes the signatures of one site.

    Args:
        kind: "set" takes every triple alike, "weighted" by its confidence.
        k: hashes, even.
    """

    def __init__(self, key: SketchKey, k: int = HASHES, kind: SketchKind = "set") -> None:
        if not 2 <= k <= MOST_HASHES or k % 2:
            raise ConfigError(f"k is {k}; expected an even number from 2 to {MOST_HASHES - 1}.")
        self.k, self.kind = k, kind
        self.fingerprint = key.fingerprint(kind, k)
        self._digest_key = key.derive(f"digests of {kind} {k}")
        self._cipher_key = key.derive(f"hashes of {kind} {k}")

    def sketch(self, graph: Graph) -> Sketch:
        """Return the signature of a graph: of k values whatever its size."""
        if not graph:
            return Sketch(np.zeros(self.k, np.uint32), self.fingerprint, self.kind, empty=True)
        digests = self._digests(graph)
        if self.kind == "set":
            values = self._minima(digests)
        else:
            values = self._samples(digests, np.fromiter(graph.values(), float, len(graph)))
        return Sketch(values, self.fingerprint, self.kind)

    def _digests(self, graph: Graph) -> np.ndarray:
        """Return (n, 2) uint64: 128 bits of each triple."""
        digests = b"".join(
            hashlib.blake2b(serialised(triple), key=self._digest_key, digest_size=16).digest()
            for triple in graph
        )
        return np.frombuffer(digests, "<u8").reshape(-1, 2)

    def _blocks(self, digests: np.ndarray, each: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield (rows, AES blocks (rows, `each`, 2) uint64), piece by piece."""
        cipher = Cipher(algorithms.AES(self._cipher_key), modes.ECB()).encryptor()
        step, numbers = max(1, PIECE // (16 * each)), np.arange(each, dtype="<u8")
        plain = np.empty((step, each, 2), "<u8")
        out = bytearray(plain.nbytes + 15)
        for start in range(0, len(digests), step):
            part = digests[start : start + step]
            plain[: len(part), :, 0] = part[:, :1]
            np.bitwise_xor(part[:, 1:], numbers, out=plain[: len(part), :, 1])
            size = cipher.update_into(plain[: len(part)].data.cast("B"), out)
            blocks = np.frombuffer(out, "<u8", size // 8).reshape(len(part), each, 2)
            yield slice(start, start + len(part)), blocks

    def _minima(self, digests: np.ndarray) -> np.ndarray:
        """Return the low half of each hash's minimum: equal for equal minima, and no count of triples."""
        lowest = np.full(self.k, np.iinfo(np.uint64).max, "<u8")
        for _, blocks in self._blocks(digests, self.k // 2):
            np.minimum(lowest, blocks.reshape(len(blocks), self.k).min(axis=0), out=lowest)
        return (lowest & np.uint64(0xFFFFFFFF)).astype(np.uint32)

    def _samples(self, digests: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return Ioffe's samples (triple, level), each as 32 bits of a keyed digest of it and its position.

        Without the position a sample would have one value wherever it wins, and how many values differ would
        tell how many triples there are.

        With r, c ~ Gamma(2, 1) and β uniform for each triple and hash, t = ⌊ln w / r + β⌋, and the sample is
        the triple with the smallest ln c − r (t − β + 1).
        """
        best = np.full(self.k, np.inf)
        row, level = np.zeros(self.k, np.int64), np.zeros(self.k, np.int64)
        for rows, blocks in self._blocks(digests, 2 * self.k):
            words = blocks.view("<u4").reshape(len(blocks), self.k, 8)
            uniform = [(words[:, :, i] + 0.5) * _UNIT for i in range(5)]
            r, c = -np.log(uniform[0] * uniform[1]), -np.log(uniform[2] * uniform[3])
            t = np.floor(np.log(weights[rows, None]) / r + uniform[4])
            height = np.log(c) - r * (t - uniform[4] + 1)
            at = height.argmin(axis=0)
            lowest = np.take_along_axis(height, at[None], 0)[0]
            won = lowest < best
            best[won], row[won] = lowest[won], at[won] + rows.start
            level[won] = np.take_along_axis(t, at[None], 0)[0][won].astype(np.int64)
        named = np.column_stack(
            [digests[row].view("<i8"), level.astype("<i8"), np.arange(self.k, dtype="<i8")]
        )
        short = [
            hashlib.blake2b(one.tobytes(), key=self._digest_key, digest_size=4).digest() for one in named
        ]
        return np.frombuffer(b"".join(short), "<u4").astype(np.uint32)
