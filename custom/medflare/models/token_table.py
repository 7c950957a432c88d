# SPDX-License-Identifier: Apache-2.0
"""The tokens of a vocabulary by their bytes: which of them a text can go on with."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

SPACE = "\u2581"
"""SentencePiece's sign for a space."""
BYTES = {"ByteLevel", "ByteFallback", "Metaspace"}
"""Decoders whose tokens stand for bytes."""


def token_table(tokenizer: Any) -> TokenTable | None:
    """Return the table of a byte-level or SentencePiece vocabulary; None of any other."""
    return TokenTable(tokenizer) if _decoders(tokenizer) & BYTES else None


class TokenTable:
    """The tokens of a tokenizer with the bytes that they stand for.

    Attributes:
        bytes_of: token -> its bytes; tokens: bytes -> the first token that stands for them.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.bytes_of = {token: written for token, written in _written(tokenizer) if written}
        self.tokens: dict[bytes, int] = {}
        for token, written in self.bytes_of.items():
            self.tokens.setdefault(written, token)
        self._sorted = sorted(self.tokens)

    def begins_a_token(self, text: bytes) -> bool:
        """Return whether some token begins with these bytes."""
        place = bisect_left(self._sorted, text)
        return place < len(self._sorted) and self._sorted[place].startswith(text)


def _decoders(tokenizer: Any) -> set[str]:
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"] or {}
    return {part["type"] for part in (decoder, *decoder.get("decoders", ())) if "type" in part}


def _written(tokenizer: Any) -> Iterator[tuple[int, bytes]]:
    """Yield each token but special ones with the bytes it stands for, lowest numbers first."""
    parts, added = _decoders(tokenizer), tokenizer.added_tokens_decoder
    for name, token in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if token in added:
            if not added[token].special:
                yield token, added[token].content.encode()
        elif "ByteLevel" in parts:
            yield token, _of_byte_level(name)
        else:
            byte = name.startswith("<0x") and name.endswith(">") and len(name) == 6
            yield token, bytes([int(name[3:5], 16)]) if byte else name.replace(SPACE, " ").encode()


@lru_cache(maxsize=1)
def _byte_signs() -> dict[str, int]:
    """Return the sign that byte-level BPE writes for each byte -> the byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
    assert set(table) == set(ByteLevel.alphabet())
    return table


def _of_byte_level(name: str) -> bytes:
    signs = _byte_signs()
    return bytes(signs[sign] for sign in name) if all(sign in signs for sign in name) else name.encode()
