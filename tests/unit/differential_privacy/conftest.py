# SPDX-License-Identifier: Apache-2.0
"""A private learner on the tiny backbone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from private_sites import make, write_site


@pytest.fixture(scope="session")
def private_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_site(tmp_path_factory.mktemp("private"))


@pytest.fixture
def summariser(private_site: Path, tiny_backbone: Path) -> Callable[..., Any]:
    """Makes the learner, with other settings or another folder of records where given."""

    def made(folder: Path | None = None, **settings: Any) -> Any:
        return make(folder or private_site, tiny_backbone, **settings)

    return made
