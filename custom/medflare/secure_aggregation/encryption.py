# SPDX-License-Identifier: Apache-2.0
"""Homomorphic encryption of flat vectors: sites encrypt, the server adds unread, sites decrypt the total.

Only additions are needed, so a ciphertext has one small prime, and from a site it travels with the seed of
its random half in place of that half (SEAL's symmetric encryption). All lattice arithmetic is SEAL's, by
`tenseal.sealapi`. A total is exact: the sum of the values as the sites rounded them to `step_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tenseal.sealapi as seal
import torch
from numpy.typing import NDArray
from torch import Tensor

from medflare.core.errors import RunError, UpdateError
from medflare.secure_aggregation.encryption_keys import Keys
from medflare.secure_aggregation.encryption_message import Header, Shuttle, pack, shuttle, unpack
from medflare.secure_aggregation.encryption_schemes import Digits, HeParameters, slots_of, spoilt


def step_of(keys: Keys, parameters: HeParameters) -> float:
    """Return the step to which values are rounded; ConfigError if the keys leave no room for any."""
    return Digits.of(slots_of(keys, parameters), parameters).step


def error_bound(keys: Keys, parameters: HeParameters, messages: int) -> float:
    """Return the largest difference between a total of so many messages and the sum of what was encrypted."""
    return messages * step_of(keys, parameters) / 2


def encrypt(
    keys: Keys,
    values: Tensor | NDArray[Any],
    parameters: HeParameters,
    name_at: Callable[[int], str] = lambda place: "vector",
) -> Tensor:
    """Return one message, uint8, from a vector (P,) of any floating dtype.

    `name_at` gives the tensor of a place, for the message of a refusal (`Segment.name_at`). Raises
    UpdateError for the first value that is not finite or beyond the bound; ConfigError with the server's
    keys, or where these leave no room for the parameters.
    """
    flat = _checked(values, parameters.bound, name_at)
    slots = slots_of(keys, parameters)
    digits, encryptor = Digits.of(slots, parameters), keys.encryptor()
    numbers = digits.apart(flat)
    starts = range(0, len(numbers), slots.width)
    header = Header(
        parameters=keys.fingerprint,
        key=keys.key_id,
        size=len(flat),
        added=1,
        bound=parameters.bound,
        step=digits.step,
        additions=parameters.additions,
        count=len(starts),
    )
    plain = (slots.write(numbers[start : start + slots.width]) for start in starts)
    with shuttle(keys, slots) as carrier:
        return pack(header, (carrier.out(encryptor.encrypt_symmetric(each)) for each in plain))


def _checked(
    values: Tensor | NDArray[Any], bound: float, name_at: Callable[[int], str]
) -> NDArray[np.float64]:
    """Return the vector (P,) as fp64 on the CPU; UpdateError that names a tensor beyond the bound."""
    flat: NDArray[np.float64] = torch.as_tensor(values).detach().to("cpu", torch.float64).numpy()
    if flat.ndim != 1 or not len(flat):
        raise UpdateError(f"a vector to encrypt has shape {flat.shape}; expected (P,) with P of 1 or more.")
    beyond = ~(np.abs(flat) <= bound)
    if beyond.any():
        k = int(beyond.argmax())
        error = UpdateError(
            f"tensor '{name_at(k)}' has values that are not finite or beyond the declared bound {bound:g}. "
            "Nothing was sent. Whoever submits the job sets a smaller learning rate, or a larger "
            "protection_settings.bound, which makes the rounding coarser."
        )
        error.add_note(f"Value {k} of {len(flat)} is {flat[k]:g}; in all {int(beyond.sum())} are beyond.")
        raise error
    return flat


def check(header: Header, keys: Keys, parameters: HeParameters) -> None:
    """Refuse a message of other keys or parameters; the UpdateError names both."""
    if header.parameters != keys.fingerprint:
        raise UpdateError(
            f"a message was encrypted with other parameters ({header.parameters.hex()}) than those of "
            f"{keys.path} ({keys.fingerprint.hex()}: {keys.scheme}, degree {keys.degree}); all need kits of "
            "one provision."
        )
    stated = (header.bound, header.additions, header.step)
    wanted = (parameters.bound, parameters.additions, step_of(keys, parameters))
    if stated != wanted:
        raise UpdateError(
            f"a message was made for bound, additions and step {stated}; here they are {wanted}. They belong "
            "to the job and must be the same everywhere."
        )
    if not 1 <= header.added <= parameters.additions:
        raise UpdateError(
            f"a message tells that it sums {header.added}; expected 1 to {parameters.additions}."
        )


class Adder:
    """A running sum of messages at the server, which cannot read it; memory of one sum.

    A site's message and an earlier `total()` are added alike, so that totals of rounds with the same divisor
    become one over many rounds.

    Attributes:
        added: site messages in the sum.
    """

    def __init__(self, keys: Keys, parameters: HeParameters) -> None:
        self._slots = slots_of(keys, parameters)
        self._keys, self._parameters = keys, parameters
        self._evaluator = seal.Evaluator(keys.seal)
        self._sums: list[Any] = []
        self._first: Header | None = None
        self.added = 0

    @property
    def room(self) -> int:
        """Site messages that may still be added before a new total must begin."""
        return self._parameters.additions - self.added

    def add(self, message: Tensor) -> None:
        """Add one message; one that is refused changes nothing.

        Raises UpdateError for a damaged message, other keys, parameters or lengths, and beyond `room`.
        """
        header, parts = unpack(message)
        check(header, self._keys, self._parameters)
        self._check_fits(header)
        with shuttle(self._keys, self._slots) as carrier:
            if self._first is None:
                self._sums = [carrier.back(part) for part in parts]
                self._first = header
            else:
                self._add_all(parts, carrier)
        self.added += header.added

    def remove(self, message: Tensor) -> None:
        """Take off what `add` took, for an update of which another part was refused.

        Raises UpdateError for a damaged message, and for one that cannot have been added.
        """
        header, parts = unpack(message)
        if self._first is None or replace(header, added=self.added) != replace(self._first, added=self.added):
            raise UpdateError("a message was never added to this total, so it cannot be taken off.")
        self.added -= header.added
        if not self.added:
            self._sums, self._first = [], None
            return
        with shuttle(self._keys, self._slots) as carrier:
            for old, part in zip(self._sums, parts, strict=True):
                self._evaluator.sub_inplace(old, carrier.back(part))

    def _add_all(self, parts: list[memoryview], carrier: Shuttle) -> None:
        """Ciphertext by ciphertext; what was added of a message is taken off when the rest cannot be."""
        for k, part in enumerate(parts):
            try:
                self._evaluator.add_inplace(self._sums[k], carrier.back(part))
            except (UpdateError, ValueError, RuntimeError) as error:
                for old, earlier in zip(self._sums, parts[:k], strict=False):
                    self._evaluator.sub_inplace(old, carrier.back(earlier))
                raise UpdateError(f"ciphertext {k} of a message cannot be added: {error}") from error

    def _check_fits(self, header: Header) -> None:
        first = self._first or header
        if header.added > self.room:
            raise UpdateError(
                f"{self.added} messages are summed; {header.added} more would pass the declared "
                f"{self._parameters.additions} additions. Begin a new total, or declare more (rounds "
                "coarser)."
            )
        if header.key != first.key:
            raise UpdateError(
                f"a message is encrypted with the key {header.key.hex()}, those before with "
                f"{first.key.hex()}: the site's startup kit is of another provision."
            )
        if (header.size, header.count) != (first.size, first.count):
            raise UpdateError(
                f"a message holds {header.size} values in {header.count} ciphertexts, those before hold "
                f"{first.size} in {first.count}."
            )

    def total(self) -> Tensor:
        """Return the sum as a message; adding may go on after it. RunError before the first message."""
        if self._first is None:
            raise RunError("no encrypted message was added, so there is no total to send.")
        with shuttle(self._keys, self._slots) as carrier:
            return pack(replace(self._first, added=self.added), (carrier.out(each) for each in self._sums))


def decrypt(keys: Keys, message: Tensor, size: int, parameters: HeParameters) -> Tensor:
    """Return (P,) fp64 sums of what sites encrypted; see `error_bound`.

    Raises UpdateError for a damaged message, another key, other parameters, another length than
    `size`, and totals that no sum of values within the bound reaches; ConfigError with the server's keys.
    """
    header, parts = unpack(message)
    slots = slots_of(keys, parameters)
    digits, decryptor = Digits.of(slots, parameters), keys.decryptor()
    check(header, keys, parameters)
    if header.key != keys.key_id:
        raise UpdateError(
            f"a message is encrypted with the key {header.key.hex()}, this site holds {keys.key_id.hex()} "
            f"({keys.path}): its startup kit is of another provision."
        )
    length = size * digits.count
    if header.size != size or len(parts) != -(-length // slots.width):
        raise UpdateError(
            f"a message holds {header.size} values in {len(parts)} ciphertexts; expected {size} in "
            f"{-(-length // slots.width)}."
        )
    with shuttle(keys, slots) as carrier:
        numbers = [slots.read(decryptor, carrier.back(part), header.added) for part in parts]
    values = digits.together(np.concatenate(numbers)[:length])
    if np.abs(values).max() > header.added * (parameters.bound + digits.step / 2):
        raise spoilt()
    return torch.from_numpy(values)
