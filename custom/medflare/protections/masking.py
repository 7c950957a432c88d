# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation by masking: masks of the sites cancel in the sum, which is all that the server reads."""

from __future__ import annotations

from pathlib import Path

from medflare.protections.base import Protection, ServerProtection, SiteContext, SiteProtection
from medflare.protections.kit import identity_of, startup_folder
from medflare.protections.opened_sums import FOLDER, OpenedSums
from medflare.protections.settings import ProtectionSettings
from medflare.secure_aggregation.round_parameters import Limits


class Masking(Protection):
    """Pairwise masks and secret sharing (`medflare.secure_aggregation`)."""

    name = "masking"
    words = "masking"
    seal = "mask"
    server_reads = "sum"
    min_sites = Limits().min_sites
    binds_work = True

    def server_side(self, settings: ProtectionSettings, kit: Path) -> ServerProtection:
        from medflare.protections.masked_server import MaskedServer

        return MaskedServer(settings, identity_of(startup_folder(kit), "server"))

    def site_side(self, context: SiteContext) -> SiteProtection:
        from medflare.protections.masked_site import MaskedSite

        identity = identity_of(startup_folder(context.kit), context.site)
        opened = OpenedSums(context.kit / FOLDER)
        return MaskedSite(context.site, identity, context.policy, context.memory, opened, context.job)
