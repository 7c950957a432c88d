# SPDX-License-Identifier: Apache-2.0
"""A whole round of secure aggregation in one process, step by step, for tests that disturb it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch

from medflare.core.tensors import SharedSpec, State
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters
from medflare.secure_aggregation.unmasking import SecureSum

SHARED: SharedSpec = {
    "adapter.lora_A": ((4, 16), torch.float32),
    "adapter.lora_B": ((16, 4), torch.float32),
    "adapter.steps": ((3,), torch.int64),
}
SUMS: SharedSpec = {"sum:bank.count": ((5,), torch.float32)}
LAYOUT = Layout.of(SHARED, SUMS)
MOST_WEIGHT = 1000
PHASES = ("advertise", "share", "mask", "confirm", "reveal")


def names(count: int) -> list[str]:
    return [f"site-{k:02d}" for k in range(1, count + 1)]


def make_terms(count: int, **changes: Any) -> RoundParameters:
    words: dict[str, Any] = {"run_id": "run-1", "round": 3, "most_weight": MOST_WEIGHT, "sites": names(count)}
    return RoundParameters.of(LAYOUT, **{**words, **changes})


def make_update(site: str) -> tuple[State, int]:
    """(differences and sums, weight) of a site; the same for the same name."""
    generator = torch.Generator().manual_seed(sum(site.encode()))
    tensors: State = {}
    for name, (shape, dtype) in LAYOUT.spec.items():
        value = torch.randn(shape, generator=generator)
        tensors[name] = value.clamp(-4, 4) if dtype.is_floating_point else (value * 50).long()
    return tensors, 100 + int(torch.randint(0, 900, (), generator=generator))


def plain_mean(sites: list[str]) -> tuple[torch.Tensor, torch.Tensor, float]:
    """What a server in the clear would have, in fp64: (mean of narrow, wide, sum of weights)."""
    packed = [(LAYOUT.pack(tensors), weight) for tensors, weight in map(make_update, sites)]
    total_weight = float(sum(weight for _, weight in packed))
    narrow = sum(vectors[0].double() * weight for vectors, weight in packed)
    means = sum(vectors[1][: LAYOUT.weighted] * weight for vectors, weight in packed)
    sums = sum(vectors[1][LAYOUT.weighted :] for vectors, _ in packed)
    assert isinstance(narrow, torch.Tensor)
    assert isinstance(means, torch.Tensor)
    assert isinstance(sums, torch.Tensor)
    return narrow / total_weight, torch.cat([means / total_weight, sums]), total_weight


def through_json(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as it arrives after travelling."""
    found: dict[str, Any] = json.loads(json.dumps(message))
    return found


Changes = Mapping[str, Callable[[Any], Any]]
"""Site -> what becomes of the message that it would send."""


def change(changed: Changes | None, site: str, message: Any) -> Any:
    return (changed or {}).get(site, lambda sent: sent)(message)


class Round:
    """Members and coordinator; each step is taken by all but the sites in `gone`, and returns the answers."""

    def __init__(
        self,
        count: int,
        identity: Callable[[str], Identity] = Identity.unsigned,
        limits: Limits | None = None,
        **changes: Any,
    ) -> None:
        self.parameters = make_terms(count, **changes)
        limits = limits or Limits(min_sites=2)
        self.members = {site: Member(identity(site), LAYOUT, limits) for site in self.parameters.sites}
        self.coordinator = Coordinator(self.parameters, LAYOUT, identity("server"))
        self.gone: set[str] = set()
        self.sent: dict[str, Masked] = {}

    @property
    def present(self) -> dict[str, Member]:
        return {site: member for site, member in self.members.items() if site not in self.gone}

    def advertise(self) -> None:
        for site, member in self.present.items():
            self.coordinator.add_advert(site, through_json(member.advertise(self.parameters)))

    def share(self, changed: Changes | None = None) -> None:
        adverts = self.coordinator.adverts()
        for site, member in self.present.items():
            message = change(changed, site, member.share(adverts))
            self.coordinator.add_shares(site, through_json(message))

    def masked(self, site: str) -> Masked:
        tensors, weight = make_update(site)
        shares = self.coordinator.shares_for(site)
        return self.members[site].mask(shares, *LAYOUT.pack(tensors), weight)

    def mask(self, changed: Changes | None = None) -> None:
        for site in self.present:
            self.sent[site] = change(changed, site, self.masked(site))
            self.coordinator.add_masked(site, self.sent[site])

    def confirm(self) -> None:
        survivors = self.coordinator.survivors()
        for site, member in self.present.items():
            self.coordinator.add_confirmation(site, through_json(member.confirm(survivors)))

    def reveal(self, changed: Changes | None = None) -> None:
        confirmations = self.coordinator.confirmations()
        for site, member in self.present.items():
            message = change(changed, site, member.reveal(confirmations))
            self.coordinator.add_reveal(site, through_json(message))

    def until(self, phase: str, drops: Mapping[str, set[str]] | None = None) -> None:
        """Every phase before `phase`; `drops`: phase -> who is gone from then on."""
        for step in PHASES[: PHASES.index(phase)] if phase in PHASES else PHASES:
            self.gone |= (drops or {}).get(step, set())
            getattr(self, step)()

    def finish_from(self, phase: str) -> SecureSum:
        """`phase` and every one after it."""
        for step in PHASES[PHASES.index(phase) :]:
            getattr(self, step)()
        return self.coordinator.result()

    def run(self, drops: Mapping[str, set[str]] | None = None) -> SecureSum:
        self.until("result", drops)
        return self.coordinator.result()


def assert_is_plain(found: SecureSum, sites: list[str], terms: RoundParameters) -> None:
    """The masked sum is the plain one over these sites, within the declared quantisation error."""
    narrow, wide, whole = plain_mean(sites)
    mean_error, counter_error, sum_error = terms.errors(whole)
    assert list(found.sites) == sites
    assert found.weight == whole
    torch.testing.assert_close(found.narrow.double(), narrow, atol=mean_error, rtol=2**-23)
    means = LAYOUT.weighted
    torch.testing.assert_close(found.wide[:means], wide[:means], atol=counter_error, rtol=2**-50)
    torch.testing.assert_close(found.wide[means:], wide[means:], atol=sum_error, rtol=2**-50)


def named(value: object) -> str:
    """The id of a parameter, the same in every process: sets in order."""
    if isinstance(value, set | frozenset):
        return "+".join(sorted(map(str, value)))
    if isinstance(value, dict):
        return ",".join(f"{key}:{named(item)}" for key, item in value.items()) or "nobody"
    if dataclasses.is_dataclass(value):
        return ",".join(
            f"{field.name}:{named(getattr(value, field.name))}" for field in dataclasses.fields(value)
        )
    return str(value)
