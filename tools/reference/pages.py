# SPDX-License-Identifier: Apache-2.0
"""The generated pages, and what makes each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from medflare.recipes import rules_page
from tools.reference import api, cli, readers, settings

FOLDER = Path(__file__).parents[2] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "api.md": api.page,
    "cli.md": cli.page,
    "job_settings.md": settings.job_settings,
    "readers.md": readers.page,
    "rules.md": rules_page.page,
    "run_json.md": settings.run_json,
    "site_yaml.md": settings.site_yaml,
}
"""Name of the page in docs/reference -> the function that returns it."""
