# SPDX-License-Identifier: Apache-2.0
"""Prompts from templates: fields in braces, filled in one pass."""

from __future__ import annotations

from collections.abc import Mapping

from medflare.core.errors import ConfigError


class FilledText(str):
    """A prompt that knows which of its characters came from data, so that marks in them stay text.

    Attributes:
        fields: (start, end) of each filled field, in characters.
    """

    fields: tuple[tuple[int, int], ...] = ()


def filled(template: str, fields: Mapping[str, str]) -> FilledText:
    """Put fields in one pass, so that braces inside a note mean nothing."""
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    rest, length = template, 0
    while True:
        places = [(rest.find("{" + name + "}"), name) for name in fields]
        places = [place for place in places if place[0] >= 0]
        if not places:
            text = FilledText("".join([*pieces, rest]))
            text.fields = tuple(spans)
            return text
        start, name = min(places)
        pieces += [rest[:start], fields[name]]
        spans.append((length + start, length + start + len(fields[name])))
        length = spans[-1][1]
        rest = rest[start + len(name) + 2 :]


def worded(
    task: str, given: Mapping[str, str] | None, ours: Mapping[str, str], needed: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Return a backbone's own wording of a task where it has one, else ours.

    Args:
        task: name of the block in medflare_prompt.json; given: its content, None where it is missing.
        ours: text of each kind of prompt.
        needed: kind -> the fields without which the model would not see what it is asked about.

    Raises:
        ConfigError: a kind that nothing reads, or a text that lacks a field.
    """
    given = dict(given or {})
    if odd := sorted(set(given) - set(ours)):
        raise ConfigError(
            f"medflare_prompt.json: {task} has '{odd[0]}', which nothing reads; expected "
            f"{' and '.join(map(repr, ours))}."
        )
    for part, words in given.items():
        for name in needed[part]:
            if "{" + name + "}" not in words:
                raise ConfigError(
                    f"medflare_prompt.json: {task}.{part} has no {{{name}}}, so the model would never see "
                    f"it. Put {{{name}}} where it belongs."
                )
    return {**ours, **given}
