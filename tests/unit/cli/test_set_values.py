# SPDX-License-Identifier: Apache-2.0
"""`--set key=value`: what a value becomes."""

from __future__ import annotations

import pytest

from medflare.core.errors import ConfigError
from medflare.core.option_values import read_pairs


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-4", 1e-4),
        ("-2E3", -2000.0),
        ("0.5", 0.5),
        ("3", 3),
        ("1e-4 of it", "1e-4 of it"),
        ("2024-01-02x", "2024-01-02x"),
        ("nan", "nan"),
        ("'1e5'", "1e5"),
        ("1_0x", "1_0x"),
        ("[1, 2]", [1, 2]),
        ("", None),
        ("fedprox", "fedprox"),
    ],
)
def test_a_value_is_what_a_person_means(written: str, value: object) -> None:
    assert read_pairs([f"key={written}"]) == {"key": value}


@pytest.mark.parametrize("written", ["[1", "{a", "@x", "...", "!!python/object:os.system x"])
def test_a_value_that_is_no_yaml_is_an_error_in_words(written: str) -> None:
    with pytest.raises(ConfigError, match="the value is no YAML"):
        read_pairs([f"settings.batch={written}"])
