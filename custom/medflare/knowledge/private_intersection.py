# SPDX-License-Identifier: Apache-2.0
"""The exact number of triples that two sites share, without either seeing the other's (6.1; DD-3).

Private set intersection by elliptic-curve Diffie-Hellman, of which only the size is revealed (openmined.psi,
the package behind FLARE's own PSI). It is the exact alternative to sketches: every pair of sites exchanges
messages as long as their graphs, and learns the size of what they share and of each other's graph. The server
passes messages on; it needs the sizes alone. Messages here are bytes, whoever carries them.

Who breaks the protocol is noticed where that can be: counts are as agreed, and elements differ. Nobody can
check that elements are of real triples: who has the key can ask for one triple among made-up ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from medflare.core.arrays import Matrix
from medflare.core.errors import ConfigError, UpdateError
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import Graph, serialised

LEAST = 20
"""Triples below which a site takes no part: of a set of one, the size of what is shared tells membership."""
MOST = 100_000
"""Triples above which a site takes no part: each of its pairs would take minutes and megabytes."""
BYTES = 35
"""Of an encrypted element in a message: a compressed point of P-256, and two that say how long it is."""
_ENVELOPE = 16
_UNUSED_RATE = 1e-9
"""False positives of other forms of the set-up message; the raw form has none."""


def keyed_elements(graph: Graph, key: SketchKey) -> list[str]:
    """Return a keyed digest of each triple, sorted: even a site that breaks the protocol reads no triple."""
    secret = key.derive("elements of intersections")
    digests = (hashlib.blake2b(serialised(t), key=secret, digest_size=32).hexdigest() for t in graph)
    return sorted(digests)


def fingerprint(key: SketchKey) -> str:
    """Return 32 hexadecimal digits, equal for equal key and context: then elements can be compared."""
    return key.derive("fingerprint of intersections", 16).hex()


def message_bytes(count: int) -> int:
    """Return the most bytes that a message of `count` encrypted elements has."""
    return BYTES * count + _ENVELOPE


class IntersectionServer:
    """The side of a pair that answers: one request with a fresh key, and no second one."""

    def __init__(self, items: Sequence[str], least: int = LEAST) -> None:
        self._psi, self._items, self._least = _package(), _enough(items, least), least
        self._side: Any = self._psi.server.CreateWithNewKey(False)
        self._asked = 0

    def setup(self, asked: int) -> bytes:
        """Return the encrypted elements; asked: how many the other side has."""
        self._asked = asked
        form = self._psi.DataStructure.RAW
        message = self._side.CreateSetupMessage(_UNUSED_RATE, asked, self._items, form)
        return bytes(message.SerializeToString())

    def response(self, request: bytes) -> bytes:
        """Return the other side's elements encrypted twice; UpdateError for a request that was not agreed."""
        message = _read(self._psi.Request(), request, "request")
        _check(message.encrypted_elements, self._asked, self._least, "a request")
        if message.reveal_intersection:
            raise UpdateError("the request would reveal which triples are shared, and is not answered.")
        side, self._side, self._asked = self._side, None, 0
        try:
            return bytes(side.ProcessRequest(message).SerializeToString())
        except RuntimeError:
            raise UpdateError("a request of elements that are no encrypted ones; not answered.") from None


class IntersectionClient:
    """The side of a pair that learns the size of what both share."""

    def __init__(self, items: Sequence[str], least: int = LEAST) -> None:
        self._psi, self._items, self._least = _package(), _enough(items, least), least
        self._side = self._psi.client.CreateWithNewKey(False)

    def __len__(self) -> int:
        return len(self._items)

    def request(self) -> bytes:
        """Return the encrypted elements, which say nothing without this side's key."""
        return bytes(self._side.CreateRequest(self._items).SerializeToString())

    def shared(self, setup: bytes, response: bytes, agreed: int | None = None) -> int:
        """Return |g ∩ h|; UpdateError where a message is none, or of other elements than agreed.

        agreed: how many the other side said it has; None for as many as come.
        """
        held = _read(self._psi.ServerSetup(), setup, "set-up")
        answered = _read(self._psi.Response(), response, "response")
        given = held.raw.encrypted_elements
        _check(given, len(given) if agreed is None else agreed, self._least, "a set-up")
        _check(answered.encrypted_elements, len(self), self._least, "a response")
        try:
            return int(self._side.GetIntersectionSize(held, answered))
        except RuntimeError:
            raise UpdateError("a set-up or response of elements that are no encrypted ones.") from None


def shared_size(
    client: IntersectionClient,
    server: IntersectionServer,
    carry: Callable[[bytes], bytes] = lambda message: message,
) -> int:
    """Run the complete exchange of a pair. carry: brings a message to the other side."""
    setup = carry(server.setup(len(client)))
    return client.shared(setup, carry(server.response(carry(client.request()))))


def exact_distances(
    sizes: Mapping[str, int], shared: Mapping[tuple[str, str], int], sites: Sequence[str]
) -> Matrix:
    """Return D = 1 − |g ∩ h| / (|g| + |h| − |g ∩ h|) in the order of `sites`; 1 from an empty graph (DD-3).

    A pair that was not compared is as far apart as the others are on average; so are pairs of a site that
    sent no size.

    Args:
        sizes: triples of each site; shared: of pairs, in either order.

    Raises UpdateError where more is shared than a site has.
    """
    distances = np.full((len(sites), len(sites)), np.nan)
    for i, one in enumerate(sites):
        for j, other in enumerate(sites[:i]):
            both = shared.get((one, other), shared.get((other, one)))
            if one not in sizes or other not in sizes:
                continue
            if sizes[one] == 0 or sizes[other] == 0:
                both = 0
            if both is not None:
                distances[i, j] = distances[j, i] = _distance((one, other), (sizes[one], sizes[other]), both)
    typical = float(np.nanmean(distances)) if not np.all(np.isnan(distances)) else 1.0
    distances[np.isnan(distances)] = typical
    np.fill_diagonal(distances, 0.0)
    return distances


def smallest_eigenvalue(distances: Matrix) -> float:
    """Return the smallest eigenvalue of 1 − D, D: (N, N).

    Jaccard similarities of real graphs have none below 0 (Bouchard, Jousselme and Doré 2013): one clearly
    below comes of sizes that no graphs have, or of pairs that were not compared. Not every lie shows.
    """
    return float(np.linalg.eigvalsh(1 - distances)[0])


def _distance(names: tuple[str, str], sizes: tuple[int, int], both: int) -> float:
    if not 0 <= both <= min(sizes):
        raise UpdateError(
            f"'{names[0]}' and '{names[1]}' are said to share {both} triples, and have {sizes[0]} and "
            f"{sizes[1]}. Compare them again."
        )
    return 1 - both / (sum(sizes) - both) if both else 1.0


def _enough(items: Sequence[str], least: int) -> list[str]:
    chosen = sorted(set(items))
    if len(chosen) < least:
        raise ConfigError(
            f"the graph has {len(chosen)} triples, and a site with fewer than {least} takes no part in exact "
            "comparison: sizes would tell single triples. Use sketches, or a larger graph."
        )
    return chosen


def _check(elements: Sequence[bytes], agreed: int, least: int, what: str) -> None:
    """Raise UpdateError unless there are as many as agreed, not too few, and all different."""
    count = len(elements)
    if count != agreed or count < least:
        raise UpdateError(
            f"{what} of {count} elements where {agreed} were agreed and {least} are the least: it could ask "
            "for single triples, and is not used."
        )
    if len(set(elements)) != count:
        raise UpdateError(f"{what} holds an element twice: it could ask for single triples; not used.")


def _read(message: Any, data: bytes, what: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        message.ParseFromString(data)
    except DecodeError:
        raise UpdateError(f"{len(data)} bytes are no {what} of a private intersection.") from None
    return message


def available() -> bool:
    """Return whether the package for exact comparison can be imported here."""
    try:
        _package()
    except ConfigError:
        return False
    return True


def _package() -> Any:
    try:
        import private_set_intersection.python as package
    except ImportError as error:
        raise ConfigError(
            f"exact comparison needs openmined.psi, which cannot be imported here ({error}). Install it by "
            "`pip install 'medflare[psi]'`, which takes protobuf and TensorBoard back to older versions, or "
            "by `pip install --no-deps 'openmined.psi==2.0.*'`, which computes with the newer ones. Or use "
            "sketches."
        ) from None
    return package
