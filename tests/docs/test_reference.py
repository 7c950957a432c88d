# SPDX-License-Identifier: Apache-2.0
"""The generated pages of docs/reference are what the code says."""

from __future__ import annotations

import pytest

from tools.reference.pages import FOLDER, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), (
        f"docs/reference/{name} is out of date: python -m tools.reference"
    )


@pytest.mark.parametrize("page", ["cli.md", "job_settings.md", "rules.md", "run_json.md", "site_yaml.md"])
def test_nothing_of_the_reference_is_without_a_meaning(page: str) -> None:
    text = (FOLDER / page).read_text(encoding="utf-8")
    assert [line for line in text.splitlines() if line.startswith("| `") and line.endswith("|  |")] == []
