# SPDX-License-Identifier: Apache-2.0
"""Hospitals with visits and with notes, and learners of FedTAR."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from extraction_sites import write_hospitals
from fedtar_sites import learner, site, write_visits
from method_sites import any_method, make_learner, method_notes, method_texts, method_visits, site_of

from medflare.learners.fedtar.learner import FedTARLearner

__all__ = ["any_method", "make_learner", "method_notes", "method_texts", "method_visits", "site_of"]


@pytest.fixture(scope="session")
def visit_hospitals(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of two hospitals."""
    folder = tmp_path_factory.mktemp("fedtar")
    return [write_visits(folder / f"site-{number + 1}", number) for number in range(2)]


@pytest.fixture(scope="session")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two hospitals with four notes each, and of two validation notes."""
    return write_hospitals(tmp_path_factory.mktemp("notes"))


@pytest.fixture
def fedtar(visit_hospitals: list[Path], tiny_backbone: Path) -> Callable[..., FedTARLearner]:
    """Makes the learner of hospital `number`, with other settings or another split where given."""

    def made(number: int = 0, split: dict[str, float] | None = None, **settings: Any) -> FedTARLearner:
        config = site(visit_hospitals[number], tiny_backbone, f"site-{number + 1}", split)
        return learner(config, **settings)

    return made
