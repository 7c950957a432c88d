# SPDX-License-Identifier: Apache-2.0
"""Constrained copying (ML-16): an answer can only copy the next word, open a type that is not open, or close.

The answer is a path through a small grammar of bytes, tokens are edges over it, and the score of each is the
model's. So an answer can always be read, and it is the one of free decoding wherever that is well-formed and
copies. As most of an answer is copied, it is drafted and checked in bulk.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from medflare.data.notes.word_offsets import WordOffsets
from medflare.models.text_backbone import TextBackbone
from medflare.models.token_table import TokenTable


class DraftLengths(NamedTuple):
    """Tokens drafted at a time beside the prompt, and later outside and inside a mark: marks are short."""

    first: int
    outside: int
    inside: int


CHEAP_TOKENS = DraftLengths(sys.maxsize, 12, 5)
"""For GPUs and small models, where a token costs little beside a pass."""
DEAR_TOKENS = DraftLengths(4, 4, 4)
"""For large models on processors: little may be drafted in vain."""
LARGE = 30_000_000
"""Parameters of a model whose tokens are dear on a processor."""
GLUED, SPACED, MARKED = range(3)
"""Context before a place between words: a word, a space, or a mark, where a space may follow or not."""


class Place(NamedTuple):
    """A place between words.

    Attributes:
        words: how many are copied; before: GLUED, SPACED or MARKED.
        stack: open types, each with the words before it; marks: how many were opened.
    """

    words: int
    before: int
    stack: tuple[tuple[int, int], ...] = ()
    marks: int = 0


class CopyPath(NamedTuple):
    """A way that the answer may be on: the bytes that are left up to the next place."""

    left: bytes
    place: Place


CopyState = tuple[CopyPath, ...] | None
"""All ways that an answer may be on; None for free decoding that left the grammar."""


CLOSING = b"</span>"


class CopyGuide:
    """Content that an answer about one text may hold, for `models.greedy_decoding`.

    Args:
        source: the text; types: that may be opened, the likeliest first.
        free: the model may write what it likes; copies are drafted as long as it copies.
    """

    def __init__(
        self, words: CopyWords, source: WordOffsets, types: Sequence[str], *, free: bool = False
    ) -> None:
        self.words, self.free = words, free
        self.copied = [words.as_written(word) for word in source.words]
        self.opening = [f'<span class="{name}">'.encode() for name in types]
        self.most_marks = len(self.copied)
        self.start: CopyState = (CopyPath(b"", Place(0, MARKED)),)
        self._known: dict[CopyPath, dict[int, tuple[CopyPath, ...]]] = {}

    # ---- the grammar -------------------------------------------------------------------------------------

    def edges(self, place: Place) -> Iterator[CopyPath]:
        """Yield what may come next at a place."""
        words, before, stack, marks = place
        if words < len(self.copied):
            if before != GLUED:
                yield CopyPath(self.copied[words], Place(words + 1, GLUED, stack, marks))
            if before != SPACED:
                yield CopyPath(b" ", Place(words, SPACED, stack, marks))
            if marks < self.most_marks:
                taken = {kind for kind, _ in stack}
                for kind, opening in enumerate(self.opening):
                    if kind not in taken:
                        yield CopyPath(opening, Place(words, MARKED, (*stack, (kind, words)), marks + 1))
        if stack and before != SPACED and words > stack[-1][1]:
            yield CopyPath(CLOSING, Place(words, MARKED, stack[:-1], marks))

    def is_end(self, place: Place) -> bool:
        """Return whether an answer may end at a place: all is copied and closed."""
        return place.words == len(self.copied) and not place.stack

    def _tokens(self, path: CopyPath) -> dict[int, tuple[CopyPath, ...]]:
        """Return token -> the ways that the answer may be on after it, from one way."""
        if path not in self._known:
            found: dict[int, dict[CopyPath, None]] = {}
            self._walk(path, b"", found)
            if not path.left and self.is_end(path.place):
                found[self.words.end] = {path: None}
            self._known[path] = {token: tuple(paths) for token, paths in found.items()}
        return self._known[path]

    def _walk(self, path: CopyPath, before: bytes, found: dict[int, dict[CopyPath, None]]) -> None:
        """Collect the tokens that begin with the bytes `before` and go on along a way."""
        table = self.words.table
        if not path.left:
            for edge in self.edges(path.place):
                self._walk(edge, before, found)
            return
        for size in range(1, len(path.left) + 1):
            text = before + path.left[:size]
            if (token := table.tokens.get(text)) is not None:
                found.setdefault(token, {})[CopyPath(path.left[size:], path.place)] = None
            if not table.begins_a_token(text):
                return
        self._walk(CopyPath(b"", path.place), before + path.left, found)

    # ---- of a guide --------------------------------------------------------------------------------------

    def allowed(self, state: CopyState) -> Collection[int] | None:
        if self.free or state is None:
            return None
        return {token for path in state for token in self._tokens(path)}

    def after(self, state: CopyState, token: int) -> CopyState:
        return self._ways(state, token)

    def _ways(self, state: CopyState, token: int) -> CopyState:
        """Return the ways after a token; None where there is none."""
        paths = dict.fromkeys(way for path in state or () for way in self._tokens(path).get(token, ()))
        return tuple(paths) or None

    def draft(self, state: CopyState, first: bool) -> list[int]:
        """Return what comes next of the text as if nothing more were marked."""
        if state is None:
            return []
        path = state[0]
        lengths = self.words.lengths
        ahead = lengths.first if first else lengths.inside if path.place.stack else lengths.outside
        tokens = self._plain_copy(path, ahead)
        if path.place.words + ahead >= len(self.copied):
            tokens = [*tokens, self.words.end]
        return self._possible(state, tokens[:ahead])

    def _possible(self, state: CopyState, tokens: Sequence[int]) -> list[int]:
        """Return tokens as far as the grammar has a way for them."""
        kept: list[int] = []
        for token in tokens:
            state = self._ways(state, token)
            if state is None:
                break
            kept.append(token)
        return kept

    def ending(self, state: CopyState) -> list[int]:
        """Return the rest of the text without further marks, open ones closed at once."""
        if state is None or self.free:
            return []
        path = state[0]
        return [*self._plain_copy(path, len(self.copied), close=True), self.words.end]

    def _plain_copy(self, path: CopyPath, ahead: int, close: bool = False) -> list[int]:
        """Return tokens of the bytes that a way has left, and of the next `ahead` words as plain copies.

        Open marks are closed at the end of the text, or with `close` as soon as they hold a word.
        """
        text, place = b"", path.place
        last = min(place.words + ahead, len(self.copied))
        while place.words < last or (place.words == len(self.copied) and place.stack):
            edges = list(self.edges(place))
            closing = [edge for edge in edges if len(edge.place.stack) < len(place.stack)]
            copying = [edge for edge in edges if edge.place.marks == place.marks and edge not in closing]
            edge = (closing if closing and (close or not copying) else copying)[0]
            text, place = text + edge.left, edge.place
        return [*self.words.spelled(path.left), *self.words.token_ids(text)]


class CopyWords:
    """Tokens of a model by their bytes, made once for a model.

    Attributes:
        lengths: of drafts, what is fastest with this model where it is.
    """

    def __init__(self, model: TextBackbone, table: TokenTable) -> None:
        self.model, self.table, self.end = model, table, model.end
        dear = model.device.type == "cpu" and model.parameter_count() > LARGE
        self.lengths = DEAR_TOKENS if dear else CHEAP_TOKENS

    def as_written(self, word: str) -> bytes:
        """Return a word as the model's tokens write it: normalisers may change it."""
        tokens = self.model.token_ids([word])[0]
        return b"".join(self.table.bytes_of.get(token, b"") for token in tokens).strip() or word.encode()

    def token_ids(self, text: bytes) -> list[int]:
        """Return the tokens of a text as the tokenizer cuts it."""
        return self.model.token_ids([text.decode()])[0] if text else []

    def spelled(self, text: bytes) -> list[int]:
        """Return the tokens of part of a word or mark, the longest first: tokenizers take it for a word."""
        tokens = []
        while text:
            size = next(n for n in range(len(text), 0, -1) if text[:n] in self.table.tokens)
            tokens.append(self.table.tokens[text[:size]])
            text = text[size:]
        return tokens

    def guide(self, source: WordOffsets, types: Sequence[str], *, free: bool = False) -> CopyGuide:
        """Return the guide of an answer about one text."""
        return CopyGuide(self, source, types, free=free)
