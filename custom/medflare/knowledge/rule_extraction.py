# SPDX-License-Identifier: Apache-2.0
"""From a site's texts to its knowledge graph by rules, without a language model.

Texts, sentences and graph stay at the site; a sketch is what leaves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from medflare.data.notes.sentences import sentences
from medflare.knowledge.triples import Triple, canonical, graph_of
from medflare.knowledge.vocabulary import ConceptMention, Vocabulary
from medflare.labelling.negation import Status, negation_status


class RelationPattern(NamedTuple):
    """Words between two concepts, and what they say; `turned`: the second concept is the head."""

    relation: str
    pattern: re.Pattern[str]
    turned: bool = False


def _rule(relation: str, words: str, turned: bool = False) -> RelationPattern:
    return RelationPattern(relation, re.compile(rf"\b(?:{words})\b", re.IGNORECASE), turned)


_SUPPLY = r"(?:is |are |was |were |be |been )?"
RULES: tuple[RelationPattern, ...] = (
    _rule("causes", rf"{_SUPPLY}(?:due to|caused by|secondary to|because of|resulting from)", turned=True),
    _rule(
        "causes",
        r"caus(?:es?|ed|ing)|leads? to|led to|results? in|resulted in|resulting in|induces?|produces?",
    ),
    _rule(
        "treats", rf"{_SUPPLY}(?:treated with|treated by|managed with|relieved by|responds? to)", turned=True
    ),
    _rule("treats", r"treats?|relieves?|cures?|(?:is )?(?:used|indicated|given|prescribed) for"),
    _rule("has symptom", r"presents? with|presented with|presenting with|manifests? as|characteri[sz]ed by"),
    _rule("has symptom", rf"{_SUPPLY}(?:symptoms?|signs?|features?|manifestations?) of", turned=True),
    _rule("complicates", r"complicates?|(?:is )?(?:a )?complications? of"),
    _rule("complicates", r"complicated by", turned=True),
    _rule("is a", r"is an? (?:kind|type|form) of|is an?"),
    _rule("associated with", rf"{_SUPPLY}(?:associated with|accompanied by|linked to|related to)"),
)
"""In order of trust: the first rule whose words stand between two concepts speaks."""
RELATIONS: tuple[str, ...] = tuple(dict.fromkeys(rule.relation for rule in RULES))
SYMMETRIC = frozenset({"associated with", "occurs with"})
PATIENT = "patient"
STATED = {Status.AFFIRMED: "has", Status.NEGATED: "is without", Status.POSSIBLE: "may have"}
_APART = re.compile(r"[,;:()\[\]]")
"""Marks after which words belong to something else: lists, asides."""
REACH = 60
"""Characters that the words of a rule and what surrounds them may take between two concepts."""
DOUBTED = 0.5
"""Confidence of what a text only supposes."""


def chunks(text: str) -> list[str]:
    """Return paragraphs, which blank lines separate. A question with its answer is one chunk as it is."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


class RuleExtractor:
    """Triples of concepts that the vocabulary knows.

    Args:
        together: confidence of "occurs with" for two concepts of one sentence that no rule links; 0 leaves
            these out.
    """

    def __init__(self, vocabulary: Vocabulary, together: float = 0.3) -> None:
        if not 0 <= together <= 1:
            raise ValueError(f"together is {together}; expected 0 to 1.")
        self.vocabulary, self.together = vocabulary, together

    def graph(
        self, texts: Iterable[str], least: float = 0.0, *, of_patients: bool = True
    ) -> dict[Triple, float]:
        """Return the graph of many texts.

        Args:
            least: triples with a smaller confidence are left out.
            of_patients: whether the texts speak of patients, as `triples`.
        """
        triples = (
            scored
            for text in texts
            for part in chunks(text)
            for scored in self.triples(part, of_patient=of_patients)
        )
        return graph_of(triples, least)

    def triples(self, chunk: str, *, of_patient: bool = True) -> Iterator[tuple[Triple, float]]:
        """Yield (triple, confidence) of every sentence of a chunk.

        Args:
            of_patient: whether the chunk speaks of a patient; only then is a mention something that a patient
                has, has not or may have (DD-13).
        """
        for start, end in sentences(chunk):
            sentence = chunk[start:end]
            mentions = self.vocabulary.mentions(sentence)
            statuses = [negation_status(sentence, (mention.start, mention.end)) for mention in mentions]
            if of_patient:
                for mention, status in zip(mentions, statuses, strict=True):
                    yield Triple(PATIENT, STATED[status], mention.concept), 1.0
            yield from self._links(sentence, mentions, statuses)

    def _links(
        self, sentence: str, mentions: list[ConceptMention], statuses: list[Status]
    ) -> Iterator[tuple[Triple, float]]:
        """Yield the triples of neighbouring concepts with their confidence; a denied concept has none."""
        stated = [(m, s) for m, s in zip(mentions, statuses, strict=True) if s is not Status.NEGATED]
        for (one, first), (other, second) in pairwise(stated):
            if one.concept == other.concept:
                continue
            sure = DOUBTED if Status.POSSIBLE in (first, second) else 1.0
            rule = _speaking(sentence[one.end : other.start])
            if rule is not None:
                yield _stated(rule, one.concept, other.concept), sure
            elif self.together:
                yield ordered(Triple(one.concept, "occurs with", other.concept)), sure * self.together


def _speaking(between: str) -> RelationPattern | None:
    """Return the rule whose words stand in what is between two concepts of a sentence."""
    if len(between) > REACH:
        return None
    if _APART.search(between):
        return None
    return next((rule for rule in RULES if rule.pattern.search(between)), None)


def _stated(rule: RelationPattern, one: str, other: str) -> Triple:
    """Return the triple that a rule states about two concepts, given in the order of the text."""
    head, tail = (other, one) if rule.turned else (one, other)
    return ordered(Triple(head, rule.relation, tail))


def ordered(triple: Triple) -> Triple:
    """Return head and tail of a symmetric relation in alphabet, so that both directions are one triple.

    Only names that are the same at all sites may be ordered: of two synonyms each has a place of its own.
    """
    if canonical(triple.relation) in SYMMETRIC and canonical(triple.tail) < canonical(triple.head):
        return Triple(triple.tail, triple.relation, triple.head)
    return triple
