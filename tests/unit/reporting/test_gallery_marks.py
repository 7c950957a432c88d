# SPDX-License-Identifier: Apache-2.0
"""Marks in a note: every mention once, the text unharmed, kinds told in words."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from page_reader import macro_html

from medflare.evaluation.extraction_matching import set_counts
from medflare.evaluation.extraction_predictions import EntityMention
from medflare.evaluation.mention_pairs import MentionPair, pair_mentions
from medflare.reporting.galleries.marks import MEANINGS, SIGNS, key_of_signs, mark_text, title_of

TEXT = "No chest pain & <fever> after aspirin 81 mg."
CHEST_PAIN = EntityMention("problem", ((3, 13),))
PAIN = EntityMention("problem", ((9, 13),))
FEVER = EntityMention("problem", ((17, 22),))
ASPIRIN = EntityMention("drug", ((30, 37),))


def as_(label: str, mention: EntityMention) -> EntityMention:
    return EntityMention(label, mention.spans)


@pytest.mark.parametrize(
    ("gold", "predicted", "kinds"),
    [
        ([PAIN], [PAIN], ["agree"]),
        ([PAIN], [], ["missed"]),
        ([], [PAIN], ["invented"]),
        ([CHEST_PAIN], [PAIN], ["border"]),
        ([ASPIRIN], [as_("treatment", ASPIRIN)], ["type"]),
        ([CHEST_PAIN], [as_("test", PAIN)], ["type"]),
        ([CHEST_PAIN, PAIN], [PAIN], ["missed", "agree"]),
        ([CHEST_PAIN], [PAIN, as_("test", CHEST_PAIN)], ["type", "invented"]),
        ([PAIN, PAIN], [PAIN], ["agree"]),
        ([PAIN], [ASPIRIN], ["missed", "invented"]),
        ([PAIN, as_("test", PAIN)], [as_("test", PAIN)], ["missed", "agree"]),
    ],
)
def test_each_mention_is_judged_once(
    gold: list[EntityMention], predicted: list[EntityMention], kinds: list[str]
) -> None:
    assert [pair.verdict for pair in pair_mentions(gold, predicted)] == kinds


class Shown(HTMLParser):
    """The note's own words, and kind and words of every stretch that is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.inside: list[tuple[str, str]] = []
        self.text = ""
        self.marked: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        assert self.inside.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        tags = [tag for tag, _ in self.inside]
        if "small" in tags:
            return
        self.text += data
        if tags == ["mark"]:
            self.marked.append((self.inside[0][1], data))


def marked(text: str, pairs: list[MentionPair]) -> str:
    return macro_html("cards.html", "marked", mark_text(text, pairs))


def shown(text: str, gold: list[EntityMention], predicted: list[EntityMention]) -> Shown:
    reader = Shown()
    reader.feed(marked(text, pair_mentions(gold, predicted)))
    reader.close()
    return reader


def test_a_wrong_border_shows_what_is_lacking_and_what_is_common() -> None:
    assert shown(TEXT, [CHEST_PAIN], [PAIN]).marked == [("m missed", "chest "), ("m border", "pain")]


def test_of_overlapping_marks_the_shorter_is_the_ground_and_the_longer_a_line_above() -> None:
    marks = shown(TEXT, [CHEST_PAIN, as_("test", PAIN)], [as_("test", PAIN)]).marked
    assert marks == [("m missed", "chest "), ("m agree over o-missed", "pain")]


def test_a_mention_with_a_gap_leaves_the_gap_alone() -> None:
    apart = EntityMention("problem", ((3, 8), (17, 22)))
    assert shown(TEXT, [apart], [apart]).marked == [("m agree", "chest"), ("m agree", "fever")]
    assert marked(TEXT, pair_mentions([apart], [apart])).count("<small") == 1
    assert (
        title_of(pair_mentions([apart], [])[0], TEXT) == "problem “chest … fever”: annotated, not extracted"
    )


def test_titles_tell_both_sides() -> None:
    title = title_of(pair_mentions([CHEST_PAIN], [as_("test", PAIN)])[0], TEXT)
    assert title == "annotated as problem “chest pain”, extracted as test “pain”"


def test_text_and_types_are_escaped() -> None:
    text = marked(TEXT, pair_mentions([FEVER, EntityMention("<b>", ((0, 2),))], []))
    assert "<b>" not in text
    assert "&amp; &lt;" in text
    assert shown(TEXT, [FEVER], []).text == TEXT


def test_the_key_has_all_signs_and_their_meaning() -> None:
    key = macro_html("cards.html", "key_of_signs", key_of_signs())
    for kind, words in MEANINGS.items():
        assert SIGNS[kind] in key
        assert words in key
    assert len(set(SIGNS.values())) == len(MEANINGS) == 5


SPANS = st.tuples(st.integers(0, 60), st.integers(1, 25)).map(lambda s: (s[0], s[0] + s[1]))
MENTIONS = st.lists(
    st.builds(EntityMention, st.sampled_from(["problem", "drug"]), st.lists(SPANS, min_size=1, max_size=2)),
    max_size=6,
)


@given(text=st.text(alphabet="ab <&>\n'é", min_size=50, max_size=60), gold=MENTIONS, said=MENTIONS)
def test_any_marks_leave_the_text_as_it_is(
    text: str, gold: list[EntityMention], said: list[EntityMention]
) -> None:
    assert shown(text, gold, said).text == text


@given(gold=MENTIONS, said=MENTIONS)
def test_agreeing_marks_are_the_strict_true_positives(
    gold: list[EntityMention], said: list[EntityMention]
) -> None:
    pairs, counts = pair_mentions(gold, said), set_counts(gold, said)
    assert sum(pair.verdict == "agree" for pair in pairs) == counts.tp
    assert sum(pair.gold is not None for pair in pairs) == counts.gold
    assert sum(pair.predicted is not None for pair in pairs) == counts.tp + counts.fp
