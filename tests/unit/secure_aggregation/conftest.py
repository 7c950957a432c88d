# SPDX-License-Identifier: Apache-2.0
"""One project with certificates for the tests of a module."""

from __future__ import annotations

import pytest
from authority import Authority, clock, site_kit
from masking_round import names

from medflare.secure_aggregation.identity import Identity


@pytest.fixture(scope="module")
def project() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def people(project: Authority, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Identity]:
    """Five sites and the server of the project, by name."""
    folder = tmp_path_factory.mktemp("kits")
    return {name: Identity.from_kit(site_kit(folder, project, name), clock) for name in [*names(5), "server"]}
