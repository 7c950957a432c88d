# SPDX-License-Identifier: Apache-2.0
"""Secure aggregation by masking that no site joins with fewer than four others, whatever its policy says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from medflare.egress.policy import Policy
from medflare.protections.base import SiteContext, SiteProtection
from medflare.protections.kit import identity_of, startup_folder
from medflare.protections.masked_site import MaskedSite
from medflare.protections.masking import Masking
from medflare.protections.opened_sums import FOLDER, OpenedSums
from medflare.secure_aggregation.identity import Identity

SITES = 5


class SiteOfFive(MaskedSite):
    """A site's side of masking with the higher limit."""

    def __init__(
        self,
        site: str,
        identity: Identity,
        policy: Policy,
        memory: Path,
        opened: OpenedSums,
        job: Mapping[str, Any],
    ) -> None:
        super().__init__(site, identity, policy, memory, opened, job)
        self.apply_policy(policy)

    def apply_policy(self, policy: Policy) -> None:
        super().apply_policy(policy)
        self.limits = replace(self.limits, min_sites=max(SITES, self.limits.min_sites))


class MaskingOfFive(Masking):
    """Its seal is that of masking, because its masks are: a site that requires `mask` takes part."""

    name = "masking_of_five"
    words = "masking among five"
    min_sites = SITES

    def site_side(self, context: SiteContext) -> SiteProtection:
        identity = identity_of(startup_folder(context.kit), context.site)
        opened = OpenedSums(context.kit / FOLDER)
        return SiteOfFive(context.site, identity, context.policy, context.memory, opened, context.job)


PROTECTION = MaskingOfFive()
