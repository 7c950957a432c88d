# SPDX-License-Identifier: Apache-2.0
"""The table of protections: which class stands for which, at the server and at a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medflare.egress.policy import Policy
from medflare.federation.protections import Protection
from medflare.federation.protections.base import ServerProtection, SiteProtection
from medflare.federation.protections.settings import ProtectionSettings
from medflare.secure_aggregation.identity import Identity

STARTUP = "startup"


def server_side(protection: Protection, settings: ProtectionSettings, workspace: Any) -> ServerProtection:
    """The server's side; ConfigError where its kit lacks what the protection needs."""
    if protection == "masking":
        from medflare.federation.protections.masked_server import MaskedServer

        return MaskedServer(settings, identity_of(startup_folder(Path(workspace.get_root_dir())), "server"))
    if protection == "he":
        from medflare.federation.protections.encrypted_server import EncryptedServer

        return EncryptedServer(settings, startup_folder(Path(workspace.get_root_dir())))
    return ServerProtection()


def site_side(protection: Protection, site: str, root: Path, policy: Policy, memory: Path) -> SiteProtection:
    """A site's side; ConfigError where its kit lacks what the protection needs.

    Args:
        root: of the kit; memory: folder of what this site must remember of the run, also after a restart.
    """
    if protection == "masking":
        from medflare.federation.protections.masked_site import MaskedSite

        return MaskedSite(site, identity_of(startup_folder(root), site), policy, memory)
    if protection == "he":
        from medflare.federation.protections.encrypted_site import EncryptedSite

        return EncryptedSite(site, startup_folder(root))
    return SiteProtection()


def identity_of(startup: Path, name: str) -> Identity:
    """Who signs: the kit's certificate, or nobody in a simulator, which has none."""
    signed = any(startup.glob("*.crt"))
    return Identity.from_kit(startup) if signed else Identity.unsigned(name)


def startup_folder(root: Path) -> Path:
    """The `startup/` of a kit; in the simulator, the one that all its sites have together."""
    own, shared = root / STARTUP, root.parent / STARTUP
    return shared if not own.is_dir() and shared.is_dir() else own
