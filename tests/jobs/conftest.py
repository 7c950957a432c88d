# SPDX-License-Identifier: Apache-2.0
"""What simulated runs of this folder share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def without_java() -> Iterator[None]:
    """As on a machine without Java: METEOR's program takes each site seven processor seconds to start."""
    folders = os.environ["PATH"].split(os.pathsep)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join(name for name in folders if not (Path(name) / "java").exists()))
        yield
