# SPDX-License-Identifier: Apache-2.0
"""The base of all models of messages, the types of their fields, and what is said of a message that is none.

Whatever comes from another party is hostile until one of these models has read it: types are exact (True is
no number, 1.0 no count), numbers are finite and bounded, names have a pattern, lists and texts a length, and
an unknown key is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from torch import Tensor

from medflare.core.hints import MOST_SITES
from medflare.egress.failures import MessageError, clean_text

SHOWN = 80
"""Most characters of a value that a refusal shows."""
MOST_PROBLEMS = 3
"""Most problems that a refusal names."""
MOST_TENSORS, MOST_NAME = 50_000, 512
"""Most tensors of a message, and characters of a tensor's name."""
MOST_DEPTH = 24
"""Deepest nesting of what is only known to be JSON."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

SiteName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@%+-]{0,127}$")]
"""A participant's name, as provisioning allows it."""
RunId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]
"""A run's name, which becomes part of a path at the sites."""
PROTECTION = r"^[a-z][a-z0-9_]{0,63}$"
ProtectionWord = Annotated[str, StringConstraints(pattern=PROTECTION)]
"""A protection's name, of medflare or of a package; whether it exists is asked where it is used."""
Word = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""A short text in one line."""
Count = Annotated[int, Field(ge=0, le=10**12)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]
SiteNames = Annotated[list[SiteName], Field(min_length=1, max_length=MOST_SITES)]


class StrictModel(BaseModel):
    """Exact types, finite numbers, no unknown keys."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, protected_namespaces=()
    )


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], data: Any, what: str) -> M:
    """Return the model of a message's content.

    Args:
        what: the message, as a refusal begins: "the request 'fit'".

    Raises:
        MessageError: naming what was found and what was expected, at most three problems.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise MessageError(f"{what} cannot be read: {in_words(error)}.") from None


def in_words(error: ValidationError) -> str:
    """Return the problems of a pydantic error as text that may be passed on: found values are cut."""
    problems = error.errors(include_url=False, include_context=False)
    lines = [_problem(item["loc"], item["type"], item["msg"], item.get("input")) for item in problems]
    more = f"; and {len(lines) - MOST_PROBLEMS} more" if len(lines) > MOST_PROBLEMS else ""
    return "; ".join(lines[:MOST_PROBLEMS]) + more


def _problem(place: tuple[int | str, ...], error_type: str, expected: str, found: Any) -> str:
    name = clean_text(".".join(str(part) for part in place), SHOWN)
    if error_type == "extra_forbidden":
        return f"'{name}' is no field of it"
    if error_type == "missing":
        return f"'{name}' is missing"
    expected = clean_text(expected.removeprefix("Value error, "), 2 * SHOWN)
    return f"'{name}' is {shown(found)}: {expected}" if name else expected


def shown(value: Any) -> str:
    """Return a found value as a refusal shows it: short values as they are, others by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value[: 2 * SHOWN] if isinstance(value, str) else value)
        return clean_text(text, SHOWN)
    return f"a {clean_text(type(value).__name__, SHOWN)}"


def json_problem(value: Any, most: int, depth: int = MOST_DEPTH) -> str:
    """Return why a value is not plain JSON of at most `most` bytes, about; empty where it is.

    The size is counted without writing it down: a message of gigabytes must not be copied to be refused.
    """
    size, stack = 0, [(value, depth)]
    while stack:
        item, left = stack.pop()
        if left < 0:
            return f"more than {depth} levels deep"
        if isinstance(item, str):
            size += len(item)
            if _CONTROL.search(item):
                return f"the text {shown(item)} with control characters"
        elif isinstance(item, Mapping):
            if not all(isinstance(key, str) and not _CONTROL.search(key) for key in item):
                return "a key that is no plain text"
            size += sum(len(key) + 4 for key in item)
            stack += [(inner, left - 1) for inner in item.values()]
        elif isinstance(item, list | tuple):
            size += 2 * len(item)
            stack += [(inner, left - 1) for inner in item]
        elif item is None or isinstance(item, bool | int | float):
            size += 8
        else:
            return f"a {clean_text(type(item).__name__, SHOWN)}, which is not JSON"
        if size > most:
            return f"more than {most:,} bytes"
    return ""


def json_within(most: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the check of a JSON object of at most `most` bytes, about; what is in it is read later."""

    def check(value: dict[str, Any]) -> dict[str, Any]:
        problem = json_problem(value, most)
        if problem:
            raise ValueError(f"{problem}, expected JSON of at most {most:,} bytes")
        return value

    return check


def tensor_problem(tensors: Any) -> str:
    """Return why something is no set of named tensors; empty where it is. Values are not looked at."""
    if not isinstance(tensors, Mapping):
        return f"tensors are {shown(tensors)}, expected tensors by name"
    if len(tensors) > MOST_TENSORS:
        return f"{len(tensors):,} tensors, at most {MOST_TENSORS:,} are expected"
    for name, value in tensors.items():
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME or not name.isprintable():
            return f"a tensor's name is {shown(name)}, expected 1 to {MOST_NAME} printable characters"
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_quantized:
            return f"'{name}' is {shown(value)}, expected a dense tensor"
        if value.is_complex():
            return f"'{name}' has dtype {value.dtype}, expected real numbers"
    return ""
