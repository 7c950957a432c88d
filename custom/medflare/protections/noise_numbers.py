# SPDX-License-Identifier: Apache-2.0
"""The random numbers of a site's noise in masked sums (`secure_aggregation.distributed_noise`).

A sum that was opened may be opened once more over the same sites (`opened_sums`). With new noise each time, a
server that says often enough that it crashed would take the mean of the sums and have one without noise. So
the very same update in the very same sum gets the very same noise, which says nothing new; an update that
differs in one bit gets other noise, since the difference of two with the same noise would be bare.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.core.secure_random import KEY_BYTES, SecureRandom
from medflare.protections.opened_sums import SumOrigin
from medflare.secure_aggregation.round_parameters import RoundParameters
from medflare.wire.durable import sync

FILE = "noise.key"
"""Secret of a kit, beside the memory of opened sums; readable by its user only."""


def noise_numbers(folder: Path, origin: SumOrigin, terms: RoundParameters, values: Tensor) -> SecureRandom:
    """Return the stream of numbers for one update in one sum.

    Args:
        folder: of the kit's secret, which is made where it is missing.
        origin: of the sum; terms: of the round. The number of the round, its attempt and its run stay out.
        values: the packed update, fp32 (P,).

    Raises:
        UpdateError: the secret is damaged.
    """
    facts = (origin.state, origin.weights, *terms.sites, str(terms.threshold))
    text = "\x1f".join(facts).encode() + b"\x1e" + hashlib.sha256(values.numpy().tobytes()).digest()
    return SecureRandom(hmac.new(_secret(folder), text, hashlib.sha256).digest())


def _secret(folder: Path) -> bytes:
    """Return the kit's secret. Two jobs that make it at once end with the same one."""
    file, scratch = folder / FILE, folder / f"{FILE}.{os.getpid()}"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch.unlink(missing_ok=True)
        with open(os.open(scratch, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as out:
            out.write(os.urandom(KEY_BYTES))
        sync(scratch)
        with suppress(FileExistsError):
            os.link(scratch, file)
        scratch.unlink()
        sync(folder)
    secret = file.read_bytes()
    if len(secret) != KEY_BYTES:
        raise UpdateError(
            f"{FILE} of this site's kit is damaged, so it cannot give an update the noise it had before. "
            "This hospital's people may remove it; a new one is made."
        )
    return secret
