# SPDX-License-Identifier: Apache-2.0
"""What a site says when a task fails: never a path, never the value of a setting."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lying_server import LyingServer

from medflare.core.config import Settings, parse
from medflare.core.errors import ConfigError, UpdateError
from medflare.egress.failures import failure_of, without_paths


class Example(Settings):
    variant: int = 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("no weights in /data/patients/smith: look", "no weights in [path]: look"),
        ("'/home/dr smith/model dir' is empty", "'[path]' is empty"),
        ('found "~/secret/x.yaml".', 'found "[path]".'),
        ("C:\\clinic\\site.yaml: is missing", "[path]: is missing"),
        ("\\\\server\\share\\x (see there)", "[path] (see there)"),
        ("/etc/site.yaml, /var/x/y.", "[path], [path]."),
        ("(~/x)", "([path])"),
    ],
)
def test_no_path_is_told(text: str, expected: str) -> None:
    assert without_paths(text) == expected
    assert failure_of(UpdateError(text)).text == f"UpdateError: {expected}"


@pytest.mark.parametrize(
    "text",
    [
        "loss 1/3 of the 4 examples/s, I/O and and/or; entity/relation F1",
        "text_model.encoder.layers.0.mlp has shape (1, 2), expected (2, 1)",
        "see https://example.org/a/b",
        'set rule_settings: {"mode": "server"}',
    ],
)
def test_other_text_stays(text: str) -> None:
    assert without_paths(text) == text


@given(st.lists(st.text("abcXYZ019_-. ", min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_quoted_path_of_any_names_is_gone(parts: list[str]) -> None:
    assert without_paths(f"cannot read '/{'/'.join(parts)}' now") == "cannot read '[path]' now"


def test_a_settings_error_names_the_key_and_not_the_value() -> None:
    with pytest.raises(ConfigError, match="hunter2") as raised:
        parse(Example, {"variant": "hunter2"}, "settings")
    text = failure_of(raised.value).text
    assert "variant" in text
    assert "valid integer" in text
    assert "hunter2" not in text


def test_a_failing_task_tells_no_path(lying_server: Callable[..., LyingServer]) -> None:
    server = lying_server(settings={"raises": {"0": "DataError"}})
    server.prepare()
    answer = server.send("site-1", "fit", server.initial_state())
    assert answer.refused
    assert "/" not in answer.text
    assert "John Doe" not in answer.text
