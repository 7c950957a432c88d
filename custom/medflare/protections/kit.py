# SPDX-License-Identifier: Apache-2.0
"""Location of the certificates and keys in a kit that a protection needs."""

from __future__ import annotations

from pathlib import Path

from medflare.secure_aggregation.identity import Identity

STARTUP = "startup"


def identity_of(startup: Path, name: str) -> Identity:
    """Return who signs: the kit's certificate, or an unsigned identity in a simulator, which has none."""
    signed = any(startup.glob("*.crt"))
    return Identity.from_kit(startup) if signed else Identity.unsigned(name)


def startup_folder(kit: Path) -> Path:
    """Return the `startup/` of a kit; in the simulator, the one that all its sites have together."""
    site, shared = kit / STARTUP, kit.parent / STARTUP
    return shared if not site.is_dir() and shared.is_dir() else site
