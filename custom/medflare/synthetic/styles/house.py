# SPDX-License-Identifier: Apache-2.0
"""House styles: which words, sentences and layout a hospital uses, and those of house_styles.yaml."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from medflare.core.config import read_package_table
from medflare.synthetic.styles.layouts import LAYOUTS
from medflare.synthetic.styles.schools import ABNORMAL, schools


@dataclass(frozen=True, slots=True, kw_only=True)
class HouseStyle:
    """Writing style of one hospital.

    Attributes:
        name: for captions and manifests.
        frames: name of a school, whose sentences are used; layout: key of LAYOUTS.
        vocabulary: name of a school, whose words are used for every condition not named in `borrowed`.
        borrowed: condition -> other vocabulary.
        negatives: absent conditions this house likes to mention; fewer the more there is to say.
        opening: fixed first sentence, "" for none.
        variety: probability that a reporter leaves the habitual wording of one sentence.
    """

    name: str
    frames: str
    vocabulary: str
    layout: str
    negatives: tuple[str, ...]
    borrowed: Mapping[str, str] = field(default_factory=dict)
    opening: str = ""
    variety: float = 0.3

    def __post_init__(self) -> None:
        choices: list[tuple[str, str, Iterable[str]]] = [
            ("frames", self.frames, schools()),
            ("layout", self.layout, LAYOUTS),
            *(("vocabulary", words, schools()) for words in (self.vocabulary, *self.borrowed.values())),
        ]
        for key, value, table in choices:
            if value not in table:
                raise ValueError(f"style {self.name!r}: {key} is {value!r}; choose one of {', '.join(table)}")
        if unknown := sorted({*self.negatives, *self.borrowed} - set(ABNORMAL)):
            known = ", ".join(ABNORMAL)
            raise ValueError(f"style {self.name!r}: {unknown} are not conditions; choose from {known}")

    def words(self, condition: str) -> str:
        """Return the vocabulary this house uses for a condition."""
        return self.borrowed.get(condition, self.vocabulary)


_STYLES = read_package_table(tuple[HouseStyle, ...], Path(__file__).with_name("house_styles.yaml"))
STYLES: Mapping[str, HouseStyle] = {style.name: style for style in _STYLES}
