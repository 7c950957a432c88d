# SPDX-License-Identifier: Apache-2.0
"""One name for one thing at all sites: heads, tails and relations of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from medflare.knowledge.nearest_concept import NearestConcept
from medflare.knowledge.rule_extraction import ordered
from medflare.knowledge.triple_parsing import known_relation
from medflare.knowledge.triples import Triple, canonical
from medflare.knowledge.vocabulary import Vocabulary

Relate = Callable[[str], tuple[str, bool] | None]
"""Words of a relation -> (our relation, whether head and tail change places), None for none of ours."""


def representatives(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return canonical name -> the first in alphabet of all names that the pairs equate.

    It depends on the pairs alone, not on their order: sites with the same pairs choose the same names.
    """
    above: dict[str, str] = {}

    def root(name: str) -> str:
        while above.setdefault(name, name) != name:
            above[name] = above[above[name]]
            name = above[name]
        return name

    for pair in pairs:
        one, other = (root(canonical(name)) for name in pair)
        above[max(one, other)] = min(one, other)
    return {name: root(name) for name in list(above)}


class Naming:
    """Concepts for the names of triples, and our relations for their words.

    A name goes first to its representative, then to the concept that has it, then to the nearest one. Where
    there is none it stays, in one spelling. So does a relation that is none of ours.

    Args:
        same: as `representatives` makes it; an alias counts as what its representative counts.
        near: None where only exact names count.
        relate: maps the words of a relation to one of ours.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        same: Mapping[str, str] | None = None,
        near: NearestConcept | None = None,
        relate: Relate = known_relation,
    ) -> None:
        self.vocabulary, self.same, self.near, self.relate = vocabulary, dict(same or {}), near, relate
        self._sources: dict[str, list[str]] = {}
        for name, first in self.same.items():
            self._sources.setdefault(first, []).append(name)

    def named(self, triples: Iterable[tuple[Triple, float]]) -> Iterator[tuple[Triple, float]]:
        """Yield triples of concepts; head and tail of symmetric relations are in the order of their names.

        The confidence is multiplied by the cosine of every name that was only near.
        """
        given = [(triple, confidence) for triple, confidence in triples]
        resolved = self._resolved({name for triple, _ in given for name in (triple.head, triple.tail)})
        for triple, confidence in given:
            (head, first), (tail, second) = resolved[triple.head], resolved[triple.tail]
            relation, turned = self.relate(triple.relation) or (triple.relation, False)
            renamed = Triple(tail, relation, head) if turned else Triple(head, relation, tail)
            yield ordered(renamed), confidence * first * second

    def _resolved(self, names: set[str]) -> dict[str, tuple[str, float]]:
        resolved, unknown = dict[str, tuple[str, float]](), list[str]()
        for name in sorted(names):
            first = self.same.get(canonical(name), canonical(name))
            aliases = [name, first, *sorted(self._sources.get(first, ()))]
            concept = next((key for alias in aliases if (key := self.vocabulary.lookup(alias))), None)
            resolved[name] = (concept or first, 1.0)
            if concept is None and self.near is not None:
                unknown.append(name)
        near = self.near.resolve(resolved[name][0] for name in unknown) if self.near else {}
        return resolved | {
            name: answer for name in unknown if (answer := near[resolved[name][0]]) is not None
        }
