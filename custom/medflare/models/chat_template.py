# SPDX-License-Identifier: Apache-2.0
"""The text that an instruction model's own chat template puts around a user's message."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from medflare.core.errors import ConfigError

SYSTEM = "You read clinical texts."
_MESSAGE, _REPLY = "\ue000message\ue001", "\ue000reply\ue001"
_DATE = "01 Jan 2026"
"""For templates that print today's date: sites that add a model on different days must have one wording."""


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """Text before and after a user's message, and the mark that ends the model's reply.

    Attributes:
        before: without the tokenizer's begin mark, which every prompt gets by itself.
    """

    before: str
    after: str
    end: str

    def around(self, message: str) -> str:
        """Return the prompt of a message."""
        return f"{self.before}{message}{self.after}"


def chat_turn(tokenizer: Any) -> ChatTurn | None:
    """Return what a tokenizer's chat template puts around a message; None where it has no template.

    Raises:
        ConfigError: the template fails, or changes the message.
    """
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": _MESSAGE}]
    try:
        try:
            asked = _render(tokenizer, messages, ask=True)
        except TemplateError:  # some templates know no system role
            messages = messages[1:]
            asked = _render(tokenizer, messages, ask=True)
        answered = _render(tokenizer, [*messages, {"role": "assistant", "content": _REPLY}], ask=False)
    except (TemplateError, ValueError, TypeError) as error:
        raise ConfigError(f"the model's chat template cannot be used: {error}") from error
    if asked.count(_MESSAGE) != 1 or answered.count(_REPLY) != 1:
        raise ConfigError("the model's chat template changes or repeats the message that it is given.")
    before, after = asked.split(_MESSAGE)
    return ChatTurn(
        before=before.removeprefix(tokenizer.bos_token or ""),
        after=after,
        end=_first_mark(tokenizer, answered.split(_REPLY)[1]),
    )


def _render(tokenizer: Any, messages: list[dict[str, str]], *, ask: bool) -> str:
    text: str = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=ask, date_string=_DATE, enable_thinking=False
    )
    return text


def _first_mark(tokenizer: Any, text: str) -> str:
    """Return the special token that a text begins with, after spaces; empty where there is none."""
    added = {row.content for row in tokenizer.added_tokens_decoder.values() if row.special}
    marks = sorted({*added, *tokenizer.all_special_tokens}, key=len, reverse=True)
    return next((mark for mark in marks if text.lstrip().startswith(mark)), "")
