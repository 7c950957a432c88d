# SPDX-License-Identifier: Apache-2.0
"""Checks of a startup kit's files: certificates' dates, who may read the keys, and what `kits check` says."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta

from cryptography import x509

from medflare.core.errors import MedflareError
from medflare.core.file_names import is_split_by_flare
from medflare.deployment.kit_advice import advice
from medflare.deployment.kit_check import check as examine
from medflare.deployment.kits import SECRETS, Kit
from medflare.deployment.preflight.base import Check, ok, problem, warning

SOON = timedelta(days=30)
CERTIFICATES = ("client.crt", "rootCA.pem")


def certificates(kit: Kit, moment: datetime | None = None) -> list[Check]:
    """Check when the site's certificate and the project's root expire."""
    now = moment or datetime.now(UTC)
    return [_dates(kit, name, now) for name in CERTIFICATES]


def _dates(kit: Kit, name: str, now: datetime) -> Check:
    path, title = kit.startup / name, f"certificate {name}"
    remedy = "Ask the coordinating centre for a new kit"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        return problem(title, f"{path}: {error}", "a certificate in PEM", "Unpack the kit again")
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > end:
        return problem(title, f"expired on {end:%Y-%m-%d}", "a certificate that is valid", remedy)
    if now < begin:
        clock = f"valid from {begin:%Y-%m-%d %H:%M} UTC, this machine says {now:%Y-%m-%d %H:%M} UTC"
        return problem(title, clock, "a certificate that is valid", "Look at this machine's clock")
    left = (end - now).days
    if end - now < SOON:
        return warning(title, f"expires on {end:%Y-%m-%d}, in {left} days", "at least 30 days", remedy)
    return ok(title, f"valid until {end:%Y-%m-%d}, {left} days")


def location(kit: Kit) -> Check:
    """Check that FLARE can start from the kit's folder: its scripts and launchers split a path at spaces."""
    folder = kit.folder.resolve()
    if is_split_by_flare(folder):
        expected = "a path without spaces, quotes and backslashes, at which FLARE's scripts split it"
        return problem("kit folder", str(folder), expected, "Move the kit to another folder")
    return ok("kit folder", str(folder))


def permissions(kit: Kit) -> Check:
    """Check that the keys of the kit can be read by their owner alone."""
    files = sorted(path for pattern in SECRETS for path in kit.startup.glob(pattern))
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in files}
    wide = [f"{path.name} {mode:04o}" for path, mode in modes.items() if mode & 0o077]
    if wide:
        remedy = f"Run: medflare kits harden {kit.folder}"
        return problem("key files", ", ".join(wide), "mode 0600", remedy)
    return ok("key files", f"{len(files)} readable by their owner alone")


def hardened(kit: Kit) -> list[Check]:
    """Return the findings of `medflare kits check` except dates and modes, which have checks of their own."""
    try:
        findings = examine(kit.folder)
    except MedflareError as error:
        return [problem("kit", str(error), "a whole kit", "Unpack the kit again")]
    certificates = {kit.startup / name for name in CERTIFICATES}
    rest = [
        f
        for f in findings
        if f.path not in certificates and "mode" not in f.found and "expire" not in f.found
    ]
    if not rest:
        return [ok("kit", f"{kit.name}: hardened, untouched")]
    return [
        problem("kit", f"{f.path.relative_to(kit.folder)}: {f.found}", "a hardened kit", f.remedy)
        for f in rest
    ]


def advised(kit: Kit) -> list[Check]:
    """Return warnings of settings that work and that a person should look at before a production run."""
    return [
        warning(f.path.name, f.found, "a setting of this hospital's own", f.remedy)
        for f in advice(kit.folder)
    ]
