# SPDX-License-Identifier: Apache-2.0
"""The shared tensors before round 1: whose are taken, and what keeps one site from choosing them.

Every site says in 'prepare' what it would send (`wire.first_values`). A tensor must have the digest that more
than half of the sites name. Where no digest has so many, because sites of several precisions or processors
make nearly the same values, its norm must be within a factor of two of what more than half of them name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from medflare.core.errors import UpdateError
from medflare.wire.first_values import FACT, NORM, SHA256, tensor_digest, tensor_norm

FACTOR = 2.0
"""Largest ratio of two norms that count as the same, where sites make different bits."""


@dataclass(frozen=True, slots=True)
class FirstValues:
    """Statements of a run's sites about their first values.

    Attributes:
        sites: that take part, in the run's order.
        digests: tensor -> the digest that more than half of them name; tensors without one are missing.
        norms: tensor -> the norms that sites name.
        differing: site -> what it named otherwise than more than half of the sites, or not at all.
    """

    sites: tuple[str, ...]
    digests: dict[str, str]
    norms: dict[str, list[float]]
    differing: dict[str, str]

    @classmethod
    def of(
        cls, facts: Mapping[str, Mapping[str, Any]], names: Mapping[str, Any], sites: list[str]
    ) -> FirstValues:
        """Compare the facts of all sites that take part.

        Args:
            facts: site -> facts of its reply to 'prepare'.
            names: of the shared tensors.
            sites: in the order in which they will be asked.
        """
        present = [site for site in sites if site in facts]
        named = {site: facts[site].get(FACT) or {} for site in present}
        digests, norms = dict[str, str](), dict[str, list[float]]()
        for name in names:
            entries = [values[name] for values in named.values() if name in values]
            norms[name] = [float(entry[NORM]) for entry in entries]
            usual = Counter(entry[SHA256] for entry in entries).most_common(1)
            if usual and 2 * usual[0][1] > len(present):
                digests[name] = usual[0][0]
        differing = {}
        for site, values in named.items():
            other = [n for n, digest in digests.items() if values.get(n, {}).get(SHA256) != digest]
            if other:
                differing[site] = (
                    f"its first values of {len(other)} of {len(names)} tensors are not those of most sites, "
                    f"for instance '{sorted(other)[0]}'"
                )
        return cls(tuple(present), digests, norms, differing)

    def candidates(self) -> list[str]:
        """Return all sites in the order in which they are asked, those that agree with most first."""
        return sorted(self.sites, key=lambda site: site in self.differing)

    def check(self, state: Mapping[str, Tensor], site: str) -> None:
        """Check first values that came from a site.

        Args:
            state: as it travelled, in the dtypes of the message.

        Raises:
            UpdateError: they are not what most sites make; it names the first tensors that differ.
        """
        problems = [problem for name in sorted(state) if (problem := self._problem(name, state[name]))]
        if problems:
            more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
            raise UpdateError(
                f"initial tensors of site '{site}' are not those of most sites: "
                f"{'; '.join(problems[:3])}{more}. Give every site the same base model, the same encoder "
                "weights and the same version of medflare."
            )

    def _problem(self, name: str, value: Tensor) -> str:
        """Return why a tensor is not what most sites make; empty where it is."""
        if name in self.digests:
            return "" if tensor_digest(name, value) == self.digests[name] else f"'{name}' has other values"
        norm, others = tensor_norm(value), self.norms.get(name, [])
        near = sum(max(norm, other) <= FACTOR * min(norm, other) for other in others)
        if 2 * near > len(self.sites):
            return ""
        return f"'{name}' has norm {norm:.3g}, which {near} of {len(self.sites)} sites come near"

    def report(self, taken_from: str) -> dict[str, Any]:
        """Return what the record says of them.

        Args:
            taken_from: the site whose values the run began with.
        """
        by_norm = sorted(set(self.norms) - set(self.digests))
        return {"taken_from": taken_from, "differing": dict(self.differing), "compared_by_norm": by_norm}
