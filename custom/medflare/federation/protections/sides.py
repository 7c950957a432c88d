# SPDX-License-Identifier: Apache-2.0
"""The table of protections: which class stands for which, at the server and at a site."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medflare.federation.protections import Protection
from medflare.federation.protections.base import ServerProtection, SiteProtection
from medflare.federation.protections.settings import ProtectionSettings

STARTUP = "startup"


def server_side(protection: Protection, settings: ProtectionSettings, workspace: Any) -> ServerProtection:
    """The server's side; ConfigError where its kit lacks what the protection needs."""
    if protection == "masking":
        from medflare.federation.protections.masked_server import MaskedServer

        return MaskedServer(settings)
    if protection == "he":
        from medflare.federation.protections.encrypted_server import EncryptedServer

        return EncryptedServer(settings, startup_folder(Path(workspace.get_root_dir())))
    return ServerProtection()


def site_side(protection: Protection, site: str, root: Path) -> SiteProtection:
    """A site's side; ConfigError where its kit lacks what the protection needs."""
    if protection == "masking":
        from medflare.federation.protections.masked_site import MaskedSite

        return MaskedSite(site, startup_folder(root))
    if protection == "he":
        from medflare.federation.protections.encrypted_site import EncryptedSite

        return EncryptedSite(site, startup_folder(root))
    return SiteProtection()


def startup_folder(root: Path) -> Path:
    """The `startup/` of a kit; in the simulator, the one that all its sites have together."""
    own, shared = root / STARTUP, root.parent / STARTUP
    return shared if not own.is_dir() and shared.is_dir() else own
