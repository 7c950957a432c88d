# SPDX-License-Identifier: Apache-2.0
"""Wordings of questions about facts, from wordings.yaml: each split has wordings of its own."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from medflare.core.config import Settings, read_package_data


class SplitWordings(Settings):
    """Wordings of one relation; nobody trains on those of val and test, which so ask for knowledge."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    test: tuple[str, ...]


class Wordings(Settings):
    """Attributes:
    questions: relation -> wordings; "D" is the disease.
    vignettes: openings that some hospitals put before a question.
    """

    questions: dict[str, SplitWordings]
    vignettes: tuple[str, ...]

    def of(self, relation: str, split: str) -> tuple[str, ...]:
        """Return the wordings of a relation in one split."""
        wordings: tuple[str, ...] = getattr(self.questions[relation], split)
        return wordings


@lru_cache(maxsize=1)
def wordings() -> Wordings:
    """Return the wordings, read once."""
    return read_package_data(Wordings, Path(__file__).with_name("wordings.yaml"))
