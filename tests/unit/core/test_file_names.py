# SPDX-License-Identifier: Apache-2.0
"""Names of files that ids of other people's data give: inside their folder, distinct, and short enough."""

from __future__ import annotations

from pathlib import Path

from medflare.core.file_names import names_for_ids


def test_an_id_that_can_be_a_name_is_its_name() -> None:
    assert names_for_ids(["n1", "Note_2", "3.4-5", "Größe"]) == ["n1", "Note_2", "3.4-5", "Größe"]


def test_hostile_ids_become_distinct_names_that_can_be_written(tmp_path: Path) -> None:
    ids = [
        "../../x",
        "..",
        ".",
        "",
        "/etc/passwd",
        "a\0b",
        "A/b",
        "a:b",
        "a-b-2",
        "a_b-2",
        "\U00020000" * 300,
    ]
    names = names_for_ids([*ids, *ids])
    assert len({name.casefold() for name in names}) == 2 * len(ids)
    for name in names:
        file = tmp_path / f"{name}.ann.tmp"
        file.write_text("x")
        assert file.resolve().parent == tmp_path.resolve()
    assert len(list(tmp_path.iterdir())) == 2 * len(ids)
