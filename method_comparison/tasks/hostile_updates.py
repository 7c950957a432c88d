# SPDX-License-Identifier: Apache-2.0
"""Messages that hostile sites send in place of their update; used by the comparison `attacks`.

An attacker claims half the smallest loss and the largest factor it may: both are its own word (VG-4).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from medflare.core.tensors import State
from medflare.core.update import Update

Attack = Callable[[Mapping[str, Update], Sequence[str], torch.Generator], dict[str, Update]]
"""(what every site would send if honest, who is hostile, randomness) -> what the hostile ones send."""

Z = 1.5
"""Standard deviations by which colluding sites go aside. The largest one that is said to stay hidden,
Baruch's z_max, is 0, 0.25 and 0.67 for one to three of seven sites, and moves next to nothing."""


def each(change: Callable[[State, torch.Generator], State]) -> Attack:
    """Every hostile site changes its own update."""

    def attack(
        honest: Mapping[str, Update], hostile: Sequence[str], generator: torch.Generator
    ) -> dict[str, Update]:
        return {site: replace(honest[site], delta=change(honest[site].delta, generator)) for site in hostile}

    return attack


def scaled(factor: float) -> Attack:
    """The own update times a factor; -1 flips its sign."""
    return each(lambda delta, _: {name: factor * value for name, value in delta.items()})


def gaussian(size: float = 10.0) -> Attack:
    """Noise, `size` times as long as the own update."""

    def change(delta: State, generator: torch.Generator) -> State:
        noise = {name: torch.randn(value.shape, generator=generator) for name, value in delta.items()}
        factor = size * _norm(delta) / _norm(noise)
        return {name: factor * value for name, value in noise.items()}

    return each(change)


def little_is_enough(z: float = Z) -> Attack:
    """All send mean − z · standard deviation of the honest updates, coordinate by coordinate.

    Baruch, Baruch and Goldberg 2019. Theirs estimate both from their own data; these know the honest updates,
    which is the stronger attack and the only one that a single site can make.
    """

    def attack(
        honest: Mapping[str, Update], hostile: Sequence[str], generator: torch.Generator
    ) -> dict[str, Update]:
        rows = [update.delta for site, update in honest.items() if site not in hostile]
        bent = {}
        for name in rows[0]:
            values = torch.stack([row[name] for row in rows])
            bent[name] = values.mean(0) - z * values.std(0)
        return {site: replace(honest[site], delta=dict(bent)) for site in hostile}

    return attack


ATTACKS: dict[str, Attack] = {
    "sign_flip": scaled(-1.0),
    "times_10": scaled(10.0),
    "times_minus_10": scaled(-10.0),
    "gaussian": gaussian(),
    "label_shuffled": each(lambda delta, _: delta),
    "colluding": little_is_enough(),
}
"""`label_shuffled` sends what it learnt; its labels were dealt out at random before."""


def sent(
    name: str,
    honest: Mapping[str, Update],
    hostile: Sequence[str],
    largest_factor: float,
    generator: torch.Generator,
) -> dict[str, Update]:
    """Updates that arrive at the server: honest updates, and those of the hostile with what they claim."""
    if not hostile:
        return dict(honest)
    loss = min(update.metrics["val_loss"] for site, update in honest.items() if site not in hostile)
    false = {
        site: replace(update, metrics={**update.metrics, "val_loss": loss / 2}, factor=largest_factor)
        for site, update in ATTACKS[name](honest, hostile, generator).items()
    }
    return {site: false.get(site, update) for site, update in honest.items()}


def _norm(state: Mapping[str, Tensor]) -> float:
    return float(torch.cat([value.reshape(-1) for value in state.values()]).norm())
