# SPDX-License-Identifier: Apache-2.0
"""The page that goes to a hospital with its kit: what it gets, what it sets, what leaves, whom to call."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from string import Template

from medflare.core.errors import ConfigError
from medflare.deployment.kit_advice import server_of
from medflare.deployment.kit_check import fingerprint
from medflare.deployment.kits import Kit, find_kits
from medflare.secure_aggregation.certificates import read_certificates

FILE = "HANDOVER.md"
TEMPLATE = Path(__file__).with_name("kit_handover.md")
NOBODY = "**nobody is named: write a name and a telephone number here before you hand the kit over**"


def write_handovers(
    kits: Path, contact: str = "", moment: datetime | None = None, *, overwrite: bool = False
) -> tuple[list[Path], list[Path]]:
    """Write HANDOVER.md into the kits of sites in a folder.

    Args:
        contact: whom a hospital calls; without it, the administrators whose kits lie in the same folder.
        moment: the day of the page; today if left out.
        overwrite: whether pages that are there, perhaps completed by hand, are written anew.

    Returns:
        The pages that were written, and those that were left as they are.

    Raises:
        ConfigError: there is no kit of a site.
    """
    found = find_kits(kits)
    sites = [kit for kit in found if kit.role == "site"]
    if not sites:
        raise ConfigError(f"{kits}: holds no kit of a site; a server's or an admin's needs no handover.")
    admins = sorted({kit.name for kit in found if kit.role == "admin"})
    day = f"{moment or datetime.now(UTC):%Y-%m-%d}"
    kept = [page for kit in sites if (page := kit.folder / FILE).exists() and not overwrite]
    new = [kit for kit in sites if kit.folder / FILE not in kept]
    return [_write(kit, contact or ", ".join(admins) or NOBODY, day) for kit in new], kept


def _write(kit: Kit, contact: str, day: str) -> Path:
    host, port = server_of(kit)
    root = read_certificates(kit.startup / "rootCA.pem")[0]
    until = read_certificates(kit.startup / "client.crt")[0].not_valid_after_utc
    text = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        site=kit.name,
        date=day,
        server=f"{host}:{port}",
        until=f"{until:%Y-%m-%d}",
        fingerprint=fingerprint(root),
        contact=contact,
    )
    path = kit.folder / FILE
    path.write_text(text, encoding="utf-8")
    return path
