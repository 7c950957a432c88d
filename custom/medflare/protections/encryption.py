# SPDX-License-Identifier: Apache-2.0
"""Homomorphic encryption: the server adds ciphertexts and can read neither updates nor their sum."""

from __future__ import annotations

from pathlib import Path

from medflare.protections.base import Protection, ServerProtection, SiteContext, SiteProtection
from medflare.protections.kit import startup_folder
from medflare.protections.settings import ProtectionSettings
from medflare.secure_aggregation.round_parameters import Limits


class HomomorphicEncryption(Protection):
    """Sums of CKKS and BFV ciphertexts under a key that all sites of a provision hold."""

    name = "he"
    words = "homomorphic encryption"
    seal = "he"
    server_reads = "nothing"
    min_sites = Limits().min_sites
    settings_read = frozenset({"bound", "max_lost_rounds"})

    def server_side(self, settings: ProtectionSettings, kit: Path) -> ServerProtection:
        from medflare.protections.encrypted_server import EncryptedServer

        return EncryptedServer(settings, startup_folder(kit))

    def site_side(self, context: SiteContext) -> SiteProtection:
        from medflare.protections.encrypted_site import EncryptedSite

        return EncryptedSite(context.site, startup_folder(context.kit))
