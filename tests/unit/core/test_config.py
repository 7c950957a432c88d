# SPDX-License-Identifier: Apache-2.0
"""Errors of settings name the key, the choices and, for a key of an earlier release, its new name."""

from __future__ import annotations

from typing import ClassVar, Literal

import pytest

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError


class Rounds(Settings):
    renamed: ClassVar[dict[str, str]] = {"grace": "straggler_timeout"}

    straggler_timeout: float = 1.0


class LongRounds(Rounds):
    renamed: ClassVar[dict[str, str]] = {"pause": "is gone; sites are no longer paused. Delete the line."}

    kind: Literal["long"] = "long"


class Masks(Settings):
    kind: Literal["masks"] = "masks"


class Job(Settings):
    rounds: Rounds = Rounds()
    workflow: LongRounds | Masks | None = None
    sites: tuple[Rounds, ...] = ()


RENAMED = "is now called straggler_timeout. Rename it in job.json."


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"rounds": {"grace": 5}}, f"rounds.grace: {RENAMED}"),
        ({"sites": [{}, {"grace": 5}]}, f"sites.1.grace: {RENAMED}"),
        ({"workflow": {"grace": 5}}, f"workflow.LongRounds.grace: {RENAMED}"),
        ({"workflow": {"pause": 5}}, "pause: is gone; sites are no longer paused. Delete the line."),
        ({"rounds": {"stragler_timeout": 5}}, "no such setting. Did you mean 'straggler_timeout'?"),
        ({"round": {}}, "round: no such setting. Did you mean 'rounds'? Valid here: rounds, sites"),
        ({"rounds": {"straggler_timeout": "x"}}, "(found 'x')"),
    ],
)
def test_an_unusable_key_is_explained(data: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(Job, data, "job.json")
    assert str(error.value).startswith("job.json: ")
    assert line in str(error.value)


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)2 setting\(s\).*grace.*rounds\.extra"):
        parse(Job, {"rounds": {"grace": 5, "extra": 1}}, "job.json")
