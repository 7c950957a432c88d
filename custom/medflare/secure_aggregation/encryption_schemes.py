# SPDX-License-Identifier: Apache-2.0
"""Whole numbers in the slots of SEAL's plaintexts, so far apart that noise never changes one.

CKKS is an approximate scheme: whoever sees decrypted values with their noise can compute the secret key
(Li and Micciancio, Eurocrypt 2021), and a trained model is seen by many. So values are rounded to whole
numbers before encryption and again after decryption: what `read` returns depends on the plaintexts alone,
as in an exact scheme, unless noise of ten standard deviations occurs (2e-23 for one value). BFV is exact by
itself and holds twice as many numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tenseal.sealapi as seal
from numpy.typing import NDArray

from medflare.core.errors import ConfigError, UpdateError
from medflare.secure_aggregation.encryption_keys import Keys

Whole = NDArray[np.int64]
MARGIN = 10.0
"""Standard deviations of noise that are provided for."""
NOISE_VARIANCE = 10.5 + 1 / 12
"""Of a coefficient of a fresh ciphertext: SEAL's centred binomial of 21 bits, and rounding on encoding."""
DOUBLES = 2.0**-50
"""Largest error, relative to the largest sum, that CKKS's encoding by doubles adds to a slot."""
LEAST_LEVELS = 2**12


@dataclass(frozen=True, slots=True, kw_only=True)
class HeParameters:
    """Parameters on which the sites and the server agree before round 1. Raises ConfigError.

    Attributes:
        bound: no value's magnitude is larger.
        additions: messages that one total may hold, over all sites and rounds that it sums.
        step: a power of two to which values are rounded; None: the finest with one number for each value.
            Finer steps take several numbers, and bytes and time grow with them.
    """

    bound: float = 1.0
    additions: int = 256
    step: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.bound) and self.bound > 0):
            raise ConfigError(f"bound is {self.bound}; expected a positive number.")
        if self.additions < 1:
            raise ConfigError(f"additions is {self.additions}; expected 1 or more.")
        if self.step is not None and not (0 < self.step <= self.bound and math.frexp(self.step)[0] == 0.5):
            raise ConfigError(f"step is {self.step}; expected a power of two, at most {self.bound:g}.")


class Slots(Protocol):
    """A scheme's way to hold whole numbers.

    Attributes:
        width: numbers in one ciphertext.
        levels: largest magnitude of a number, such that all additions together cannot overflow.
    """

    width: int
    levels: int

    def write(self, numbers: Whole) -> Any:
        """SEAL's plaintext of up to `width` numbers."""
        ...

    def fits(self, ciphertext: Any) -> bool:
        """Return whether a ciphertext has the level and scale that all of them have."""
        ...

    def read(self, decryptor: Any, ciphertext: Any, added: int) -> Whole:
        """Return (width,) sums of `added` numbers; UpdateError if the noise is not that of such sums."""
        ...


def spoilt() -> UpdateError:
    """Return the error of a decrypted total that cannot be a sum of updates."""
    return UpdateError(
        "a decrypted total is no sum of updates: its message was tampered with, or was encrypted with "
        "another key than this site's. Compare the `key` that each site told in the prepare step."
    )


class CkksSlots:
    """N/2 numbers in a ciphertext of one prime q, at the last level of the chain.

    In a slot the noise's variance is N/2 times that of a coefficient. The scale puts numbers 2 MARGIN of its
    deviations apart after all additions, and twice what doubles lose; levels keep coefficients, which are no
    larger than the largest slot, below q/2.
    """

    def __init__(self, keys: Keys, parameters: HeParameters) -> None:
        self._encoder = seal.CKKSEncoder(keys.seal)
        self._level = keys.seal.last_parms_id()
        self._deviation = math.sqrt(keys.degree / 2 * NOISE_VARIANCE)
        self._lost = keys.moduli[0] / 2 * DOUBLES
        self.width = keys.degree // 2
        self.scale = 2 * self._noise(parameters.additions)
        encoder_takes = 2.0 ** (keys.moduli[0].bit_length() - 2) / self.scale
        all_take = (keys.moduli[0] / 2 / self.scale - 1) / parameters.additions
        self.levels = max(0, int(min(encoder_takes, all_take)))

    def _noise(self, added: int) -> float:
        return MARGIN * self._deviation * math.sqrt(added) + self._lost

    def write(self, numbers: Whole) -> Any:
        plain = seal.Plaintext()
        self._encoder.encode(numbers.astype(np.float64).tolist(), self._level, self.scale, plain)
        return plain

    def fits(self, ciphertext: Any) -> bool:
        return bool(ciphertext.parms_id() == self._level and ciphertext.scale == self.scale)

    def read(self, decryptor: Any, ciphertext: Any, added: int) -> Whole:
        plain = seal.Plaintext()
        decryptor.decrypt(ciphertext, plain)
        values = np.asarray(self._encoder.decode_double(plain))
        rounded = np.rint(values)
        if np.abs(values - rounded).max() > self._noise(added) / self.scale:
            raise spoilt()
        return rounded.astype(np.int64)


class BfvSlots:
    """N numbers in a ciphertext, modulo the plain modulus t; noise is kept below q / 4t."""

    def __init__(self, keys: Keys, parameters: HeParameters) -> None:
        self._encoder = seal.BatchEncoder(keys.seal)
        self._level = keys.seal.first_parms_id()
        self.width = keys.degree
        self.levels = (keys.plain_modulus - 1) // 2 // parameters.additions
        primes = keys.seal.first_context_data().parms().coeff_modulus()
        room = math.prod(m.value() for m in primes) / (4 * keys.plain_modulus)
        most = int((room / MARGIN) ** 2 / NOISE_VARIANCE)
        if parameters.additions > most:
            raise ConfigError(
                f"{keys.path} leaves room for {most} additions; {parameters.additions} were asked for. "
                "Provision "
                "with fewer plain bits or a larger first prime, or begin a new total more often."
            )

    def write(self, numbers: Whole) -> Any:
        plain = seal.Plaintext()
        self._encoder.encode(numbers.tolist(), plain)
        return plain

    def fits(self, ciphertext: Any) -> bool:
        return bool(ciphertext.parms_id() == self._level)

    def read(self, decryptor: Any, ciphertext: Any, added: int) -> Whole:
        if decryptor.invariant_noise_budget(ciphertext) == 0:
            raise spoilt()
        plain = seal.Plaintext()
        decryptor.decrypt(ciphertext, plain)
        return np.asarray(self._encoder.decode_int64(plain), dtype=np.int64)


def slots_of(keys: Keys, parameters: HeParameters) -> Slots:
    """Return how numbers are held with these keys; raises ConfigError where these leave too little room."""
    slots: Slots = CkksSlots(keys, parameters) if keys.scheme == "CKKS" else BfvSlots(keys, parameters)
    if slots.levels < LEAST_LEVELS:
        raise ConfigError(
            f"{keys.path} leaves {slots.levels} levels for values of which {parameters.additions} may be "
            "added; "
            f"expected {LEAST_LEVELS} or more. Declare fewer additions, or provision with a larger first "
            "prime."
        )
    return slots


@dataclass(frozen=True, slots=True)
class Digits:
    """Values as multiples of `step`, each in `count` balanced digits of `bits` bits.

    A sum of digits is the digit of the sum: nothing carries before decryption.
    """

    step: float
    bits: int
    count: int

    @classmethod
    def of(cls, slots: Slots, parameters: HeParameters) -> Digits:
        """Return one digit where the step allows; ConfigError if 62 bits do not hold the largest sum."""
        step = parameters.step or 2.0 ** math.ceil(math.log2(parameters.bound / slots.levels))
        bits, largest = int(math.log2(slots.levels)), parameters.bound / step
        if largest * parameters.additions >= 2.0**62:
            raise ConfigError(
                f"{parameters.additions} values up to {parameters.bound:g} in steps of {step:g} take more "
                "than 62 "
                "bits; expected a coarser step or a smaller bound."
            )
        one = round(largest) <= slots.levels
        return cls(step, bits, 1 if one else math.ceil((math.log2(largest) + 2) / bits))

    def apart(self, values: NDArray[np.float64]) -> Whole:
        """Split (P,) values into (count * P,) numbers, all lowest digits first."""
        rest = np.rint(values / self.step).astype(np.int64)
        half, rows = 1 << (self.bits - 1), []
        for _ in range(self.count - 1):
            digit = ((rest + half) & ((1 << self.bits) - 1)) - half
            rows.append(digit)
            rest = (rest - digit) >> self.bits
        return np.concatenate([*rows, rest])

    def together(self, numbers: Whole) -> NDArray[np.float64]:
        """Join (count * P,) sums of numbers into (P,) sums of values."""
        rows = numbers.reshape(self.count, -1)
        total = np.zeros_like(rows[0])
        for k, row in enumerate(rows):
            total += row << (self.bits * k)
        return total.astype(np.float64) * self.step
