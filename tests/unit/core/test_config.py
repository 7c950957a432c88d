# SPDX-License-Identifier: Apache-2.0
"""Errors of settings name the key, the choices and, for a key of an earlier release, its new name."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import model_validator

from medflare.core.config import Settings, parse, read_yaml
from medflare.core.errors import ConfigError


class Rounds(Settings):
    renamed: ClassVar[dict[str, str]] = {"grace": "straggler_timeout"}

    straggler_timeout: float = 1.0


class LongRounds(Rounds):
    renamed: ClassVar[dict[str, str]] = {"pause": "is gone; sites are no longer paused. Delete the line."}

    kind: Literal["long"] = "long"


class Masks(Settings):
    kind: Literal["masks"] = "masks"


class Pair(Settings):
    least: int = 0
    most: int = 1

    @model_validator(mode="after")
    def _in_order(self) -> Pair:
        if self.least > self.most:
            raise ValueError("least is above most; exchange them.")
        return self


class Job(Settings):
    rounds: Rounds = Rounds()
    pair: Pair = Pair()
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
        ({"round": {}}, "round: no such setting. Did you mean 'rounds'? Valid here: pair, rounds, sites"),
        ({"rounds": {"straggler_timeout": "x"}}, "(found 'x')"),
        ({"rounds": 5}, "rounds: expected settings, of these: straggler_timeout (found 5)."),
        ({"pair": {"least": 3, "most": 2}}, "pair: least is above most; exchange them.\n"),
    ],
)
def test_an_unusable_key_is_explained(data: dict[str, object], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(Job, data, "job.json")
    assert str(error.value).startswith("job.json: ")
    assert line in f"{error.value}\n"


def test_keys_of_a_block_are_listed_once() -> None:
    unknown = {"grace": 1, "first": 1, "second": 1}
    with pytest.raises(ConfigError) as error:
        parse(Job, {"rounds": unknown, "pair": {"third": 1}}, "job.json")
    lines = str(error.value).splitlines()
    assert [line.partition(": ")[2] for line in lines if "no such setting" in line] == [
        "no such setting. Valid here: straggler_timeout.",
        "no such setting.",
        "no such setting. Valid here: least, most.",
    ]


def test_every_problem_is_listed_at_once() -> None:
    with pytest.raises(ConfigError, match=r"(?s)2 setting\(s\).*grace.*rounds\.extra"):
        parse(Job, {"rounds": {"grace": 5, "extra": 1}}, "job.json")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "policy: {min_sites: 3}\ncohort: x\npolicy: {min_sites: 1}\n",
            "'policy' stands twice, first in line 1",
        ),
        ("sites:\n  a: 1\n  b: 2\n  a: 3\n", "'a' stands twice, first in line 2"),
        ("policy:\n  min_sites: 3\n  'min_sites': 1\n", "'min_sites' stands twice"),
        ("a: [{b: 1, b: 2}]\n", "'b' stands twice"),
    ],
)
def test_a_key_that_stands_twice_is_refused_with_its_lines(text: str, said: str, tmp_path: Path) -> None:
    """Of two policies the second would hold, of two hospitals of one name the first would be lost."""
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        read_yaml(tmp_path / "site.yaml")
    assert "line" in str(caught.value)


def test_a_merge_may_be_changed_and_equal_keys_of_two_mappings_are_two(tmp_path: Path) -> None:
    text = "base: &base {a: 1, b: 2}\none: {<<: *base, b: 3}\ntwo: {<<: *base}\nthree: *base\n"
    (tmp_path / "site.yaml").write_text(text)
    read = read_yaml(tmp_path / "site.yaml")
    assert (read["one"], read["two"], read["three"]) == ({"a": 1, "b": 3}, read["base"], read["base"])
