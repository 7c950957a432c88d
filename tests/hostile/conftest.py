# SPDX-License-Identifier: Apache-2.0
"""A lying server's and lying sites' surroundings: real executors, controllers and FLARE's encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fed_harness import Federation, use_toy_sites
from lying_server import LyingServer


@pytest.fixture
def lying_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LyingServer]]:
    """Makes servers that lie to toy sites below the test's own folder."""
    use_toy_sites(monkeypatch)
    servers: list[LyingServer] = []

    def make(**options: Any) -> LyingServer:
        servers.append(LyingServer(tmp_path / f"lies{len(servers)}", **options))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Federation]:
    """Makes federations of toy sites, of which `tamper=lying(...)` makes one lie."""
    use_toy_sites(monkeypatch)
    made = 0

    def make(**options: Any) -> Federation:
        nonlocal made
        made += 1
        return Federation(root=tmp_path / f"run{made}", **options)

    return make
