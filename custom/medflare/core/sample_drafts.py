# SPDX-License-Identifier: Apache-2.0
"""Samples of what a model writes while it is validated, for whoever looks at the site; nothing of it is sent.

They hold texts of patients, so they stay where these are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import BaseModel, ConfigDict, Field

LONGEST = 4_000
"""Characters of a text that are kept; a page shows no more of it."""


class SampleDraft(BaseModel):
    """A text that a model wrote for one record, and a person's.

    Attributes:
        record: id of the study, note, question or text.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    record: str = Field(max_length=LONGEST)
    reference: str = Field(max_length=LONGEST)
    written: str = Field(max_length=LONGEST)


class SampleDrafts(BaseModel):
    """The samples of one validation.

    Attributes:
        round: counted from 0.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(ge=0)
    drafts: tuple[SampleDraft, ...] = Field(max_length=10)


class _Keeper:
    def __init__(self, most: int) -> None:
        self.most, self.drafts = most, list[SampleDraft]()


_KEEPER: ContextVar[_Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def keeping_drafts(most: int) -> Iterator[list[SampleDraft]]:
    """Provide the list of the first drafts, at most so many, that this thread offers while inside."""
    keeper = _Keeper(most)
    token = _KEEPER.set(keeper)
    try:
        yield keeper.drafts
    finally:
        _KEEPER.reset(token)


def offer_drafts(records: Sequence[str], references: Sequence[str], written: Sequence[str]) -> None:
    """Offer what was written for some records; dropped where nobody keeps it."""
    keeper = _KEEPER.get()
    if keeper is None:
        return
    for texts in zip(records, references, written, strict=True):
        if len(keeper.drafts) == keeper.most:
            return
        record, reference, draft = (text[:LONGEST] for text in texts)
        keeper.drafts.append(SampleDraft(record=record, reference=reference, written=draft))
