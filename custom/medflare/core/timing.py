# SPDX-License-Identifier: Apache-2.0
"""The time that one site took for one round."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds of one site in one round."""

    compute: float
    transfer: float

    @property
    def total(self) -> float:
        return self.compute + self.transfer
