# SPDX-License-Identifier: Apache-2.0
"""Counting matches: spans, one-to-one assignments, links; against brute force and published counts."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medflare.evaluation.extraction_matching import (
    Counts,
    Item,
    Tally,
    duplicates,
    lenient_tally,
    maximum_matching,
    overlaps,
    set_counts,
    strict_tally,
)
from medflare.evaluation.extraction_predictions import EntityMention, Link

TYPES = ("problem", "drug")
MODIFIERS = ("bodyloc", "negation")


def at(start: int, end: int, label: str = "problem") -> EntityMention:
    return EntityMention(label, ((start, end),))


def counts(tally: Tally) -> tuple[Counts, Counts]:
    """Typed (summed over types) and untyped."""
    return Counts(*map(int, tally.typed.sum(axis=0))), Counts(*map(int, tally.untyped))


def pairs_by_hand(graph: np.ndarray) -> int:
    """The most pairs of any one-to-one assignment, by trying all."""
    small = graph if len(graph) <= graph.shape[1] else graph.T
    columns = permutations(range(small.shape[1]), len(small))
    return max((sum(bool(small[i, j]) for i, j in enumerate(chosen)) for chosen in columns), default=0)


def shared_points(a: EntityMention, b: EntityMention) -> bool:
    first, second = ({p for start, end in m.spans for p in range(start, end)} for m in (a, b))
    return bool(first & second)


def near(a: Item, b: Item, typed: bool) -> bool:
    """The lenient rule as a sentence: every part shares a code point and, if asked, every type is equal."""
    parts = [(a, b)] if isinstance(a, EntityMention) else [(a.head, b.head), (a.modifier, b.modifier)]  # type: ignore[union-attr]
    return all(shared_points(x, y) and (not typed or x.label == y.label) for x, y in parts)  # type: ignore[arg-type,union-attr]


SPAN = st.tuples(st.integers(0, 12), st.integers(1, 4)).map(lambda pair: (pair[0], sum(pair)))
SPANS = st.lists(SPAN, min_size=1, max_size=2).map(tuple)
MENTION = st.builds(EntityMention, st.sampled_from(TYPES), SPANS)
LINK = st.builds(Link, MENTION, st.builds(EntityMention, st.sampled_from(MODIFIERS), SPANS))
ITEMS = st.one_of(
    st.tuples(st.lists(MENTION, max_size=6), st.lists(MENTION, max_size=6), st.just(TYPES)),
    st.tuples(st.lists(LINK, max_size=6), st.lists(LINK, max_size=6), st.just(MODIFIERS)),
)


@given(ITEMS)
@settings(max_examples=300, deadline=None)
def test_lenient_true_positives_are_the_most_that_any_assignment_gives(drawn) -> None:
    gold, predicted, types = drawn
    result = counts(lenient_tally(gold, predicted, types))
    first, second = list(dict.fromkeys(gold)), list(dict.fromkeys(predicted))
    for typed, count in zip((True, False), result, strict=True):
        graph = np.array([[near(a, b, typed) for b in second] for a in first], dtype=bool)
        assert count.tp == (pairs_by_hand(graph.reshape(len(first), len(second))) if first and second else 0)


@given(ITEMS)
@settings(max_examples=300, deadline=None)
def test_order_of_the_rules(drawn) -> None:
    """Strict <= lenient, typed <= untyped, and every rule has the same totals."""
    gold, predicted, types = drawn
    strict, lenient = strict_tally(gold, predicted, types), lenient_tally(gold, predicted, types)
    assert (strict.typed[:, 0] <= lenient.typed[:, 0]).all()
    assert strict.untyped[0] <= lenient.untyped[0]
    for typed, untyped in map(counts, (strict, lenient)):
        assert typed.tp <= untyped.tp
        assert (typed.gold, typed.tp + typed.fp) == (len(set(gold)), len(set(predicted)))
        assert (untyped.gold, untyped.tp + untyped.fp) == (len(set(gold)), len(set(predicted)))


@given(ITEMS)
@settings(max_examples=100, deadline=None)
def test_swapping_sides_swaps_precision_and_recall(drawn) -> None:
    gold, predicted, types = drawn
    for tally in (strict_tally, lenient_tally):
        for one, other in zip(
            counts(tally(gold, predicted, types)), counts(tally(predicted, gold, types)), strict=True
        ):
            assert (one.tp, one.fp, one.fn) == (other.tp, other.fn, other.fp)


@given(ITEMS)
@settings(max_examples=100, deadline=None)
def test_gold_scored_against_itself_is_perfect(drawn) -> None:
    gold, _, types = drawn
    for tally in (strict_tally, lenient_tally):
        for found in counts(tally(gold, gold, types)):
            assert found == (len(set(gold)), 0, 0)
            assert found.ratios == ((1, 1, 1) if gold else (0, 0, 0))


@given(st.integers(0, 5), st.integers(0, 5), st.randoms(use_true_random=False))
def test_a_maximum_matching_is_one_to_one_and_uses_edges_only(rows: int, columns: int, random) -> None:
    graph = np.array([random.random() < 0.4 for _ in range(rows * columns)], dtype=bool).reshape(
        rows, columns
    )
    matching = maximum_matching(graph)
    used = [(i, j) for i, j in enumerate(matching) if j >= 0]
    assert all(graph[i, j] for i, j in used)
    assert len({j for _, j in used}) == len(used) == pairs_by_hand(graph)


@pytest.mark.parametrize(
    ("gold", "predicted", "strict", "lenient"),
    [
        ([at(0, 5)], [at(0, 5)], 1, 1),
        ([at(0, 5)], [at(0, 5, "drug")], 0, 0),  # the type must be right
        ([at(0, 5)], [at(4, 9)], 0, 1),  # one code point in common
        ([at(0, 5)], [at(5, 9)], 0, 0),  # adjacent is not overlapping: ends are exclusive
        ([at(0, 5)], [at(0, 2), at(3, 5)], 0, 1),  # one gold span is found once
        ([at(0, 5), at(5, 9)], [at(0, 9)], 0, 1),  # and one prediction finds one
        # First come, first served would give the first prediction the only match of the second.
        ([at(0, 3), at(4, 9)], [at(2, 5), at(0, 2)], 0, 2),
        (
            [EntityMention("problem", ((0, 3), (8, 9)))],
            [at(0, 9)],
            0,
            1,
        ),  # discontinuous: not the same points
        ([EntityMention("problem", ((0, 3), (8, 9)))], [at(4, 7)], 0, 0),  # in the gap
        ([EntityMention("problem", ((4, 8), (0, 4)))], [at(0, 8)], 1, 1),  # fragments that touch are one
        ([at(0, 5)], [at(0, 5), at(0, 5)], 1, 1),
        ([], [], 0, 0),
        ([], [at(0, 1)], 0, 0),
        ([at(0, 1)], [], 0, 0),
    ],
)
def test_examples(
    gold: list[EntityMention], predicted: list[EntityMention], strict: int, lenient: int
) -> None:
    assert strict_tally(gold, predicted, TYPES).typed[:, 0].sum() == strict
    assert lenient_tally(gold, predicted, TYPES).typed[:, 0].sum() == lenient


def test_a_link_needs_head_and_modifier() -> None:
    gold = [Link(at(10, 20), at(12, 15, "bodyloc"))]
    rows = {
        "the same": (Link(at(10, 20), at(12, 15, "bodyloc")), (1, 1)),
        "head overlaps": (Link(at(14, 30), at(12, 15, "bodyloc")), (0, 1)),
        "another head": (Link(at(30, 40), at(12, 15, "bodyloc")), (0, 0)),
        "another head type": (Link(at(10, 20, "drug"), at(12, 15, "bodyloc")), (0, 0)),
        "another modifier type": (Link(at(10, 20), at(12, 15, "negation")), (0, 0)),
    }
    for name, (said, expected) in rows.items():
        matches = [t(gold, [said], MODIFIERS).typed[:, 0].sum() for t in (strict_tally, lenient_tally)]
        assert tuple(matches) == expected, name
    assert strict_tally(gold, [rows["another head type"][0]], MODIFIERS).untyped.tolist() == [1, 0, 0]


def test_a_modifier_of_two_heads_is_two_links() -> None:
    shared = at(0, 3, "negation")
    gold = [Link(at(4, 8), shared), Link(at(9, 12), shared)]
    assert strict_tally(gold, gold[:1], MODIFIERS).typed.tolist() == [[0, 0, 0], [1, 0, 1]]


def test_one_predicted_pain_is_not_credited_to_every_later_pain() -> None:
    """The released code of Fed-MedLoRA credits the prediction to each of them."""
    gold = [at(0, 4), at(10, 14), at(20, 24)]
    assert counts(lenient_tally(gold, [at(0, 4)], TYPES))[0] == (1, 0, 2)


def test_repeated_predictions_count_once_and_are_told() -> None:
    predicted = [at(0, 4), at(0, 4), at(0, 4, "drug")]
    assert duplicates(predicted) == 1
    assert counts(strict_tally([at(0, 4)], predicted, TYPES)) == ((1, 1, 0), (1, 1, 0))


def test_overlaps_of_discontinuous_mentions() -> None:
    gold = [EntityMention("problem", ((0, 2), (6, 8))), at(3, 5)]
    assert overlaps(gold, [at(1, 4), at(7, 9), at(2, 3)]).tolist() == [
        [True, True, False],
        [True, False, False],
    ]


def test_counts_give_ratios_without_dividing_by_nothing() -> None:
    assert Counts(0, 0, 0).ratios == (0, 0, 0)
    assert Counts(1, 1, 3).ratios == pytest.approx((1 / 2, 1 / 4, 1 / 3))


def pubtator(path: Path) -> tuple[set, set, set]:
    """Disease mentions, disease identifiers and chemical-disease relations of all documents of a file.

    A composite mention has several identifiers; -1 is none; the name of the vocabulary is left out.
    """
    mentions, identifiers, relations = set(), set(), set()
    for row in (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()):
        if len(row) >= 4 and row[1] == "CID":
            relations.add((row[0], row[2], row[3]))
        elif len(row) >= 6 and row[4] == "Disease":
            mentions.add((row[0], at(int(row[1]), int(row[2]), "Disease")))
            identifiers |= {(row[0], name.split(":")[-1]) for name in row[5].split("|") if name != "-1"}
    return mentions, identifiers, relations


def test_the_biocreative_v_sample_has_its_published_counts(public_data: Path) -> None:
    """The evaluation kit's own readme: mentions and relations.

    Its readme says 150/56/64 for identifiers, but its program (bc5cdr_eval.jar 0.0.3) prints 149/57/65 for
    these files and for their BioC versions, and so does this.
    """
    folder = public_data / "metric_refs" / "bc5cdr_eval"
    gold, named, linked = (pubtator(folder / f"{n}.PubTator") for n in ("gold", "pred_DNER", "pred_CID"))
    assert set_counts(gold[0], named[0]) == (303, 105, 121)
    assert set_counts(gold[1], named[1]) == (149, 57, 65)
    assert set_counts(gold[2], linked[2]) == (90, 533, 33)


def test_the_biocreative_v_mentions_through_the_strict_tally(public_data: Path) -> None:
    folder = public_data / "metric_refs" / "bc5cdr_eval"
    gold, predicted = (pubtator(folder / f"{name}.PubTator")[0] for name in ("gold", "pred_DNER"))
    total = np.zeros(3)
    for note in {note for note, _ in gold | predicted}:
        sides = [[mention for key, mention in side if key == note] for side in (gold, predicted)]
        total += strict_tally(*sides, ("Disease",)).typed[0]
    assert total.tolist() == [303, 105, 121]
