# SPDX-License-Identifier: Apache-2.0
"""No protection: the server reads each update."""

from __future__ import annotations

from pathlib import Path

from medflare.protections.base import Protection, ServerProtection, SiteContext, SiteProtection
from medflare.protections.settings import ProtectionSettings


class NoProtection(Protection):
    """Updates travel as they are, over mTLS."""

    name = "none"
    words = "no protection"
    settings_read = frozenset()

    def server_side(self, settings: ProtectionSettings, kit: Path) -> ServerProtection:
        return ServerProtection()

    def site_side(self, context: SiteContext) -> SiteProtection:
        return SiteProtection()
