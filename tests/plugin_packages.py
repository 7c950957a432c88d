# SPDX-License-Identifier: Apache-2.0
"""Packages that offer plug-ins, installed for a test as pip would."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from medflare.core import plugins

EXAMPLE = Path(__file__).parents[1] / "examples" / "medflare_example"


@contextmanager
def example_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the repository's example package as its pyproject.toml installs it; admitted by nobody."""
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(folder / "site-packages", described["name"], described["entry-points"])
    monkeypatch.syspath_prepend(str(folder / "site-packages"))
    monkeypatch.syspath_prepend(str(EXAMPLE / "src"))
    monkeypatch.setattr(plugins, "_admitted", set())
    monkeypatch.delenv(plugins.VARIABLE, raising=False)
    yield
    for name in [name for name in sys.modules if name.startswith("medflare_example")]:
        del sys.modules[name]


def install(folder: Path, package: str, groups: dict[str, dict[str, str]]) -> None:
    """Write what pip writes of a package's metadata."""
    info = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [line for group, names in groups.items() for line in _section(group, names)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def _section(group: str, names: dict[str, str]) -> list[str]:
    return [f"[{group}]", *(f"{name} = {target}" for name, target in names.items())]
