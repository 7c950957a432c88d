# SPDX-License-Identifier: Apache-2.0
"""Startup kits whose private keys never leave the machine that made them, by FLARE's `cert` and `package`.

    coordinating centre  authority()   once: the root certificate; its fingerprint is told by telephone
    each participant     request()     makes key and request; only the request travels
    coordinating centre  approve()     signs it
    each participant     assemble()    makes the kit from the signed request and its own key, and hardens it

There is no shared key for homomorphic encryption in such kits: jobs use masking.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import yaml

from medflare.core.errors import ConfigError, RunError
from medflare.deployment.hardening import harden
from medflare.deployment.kits import as_kit

Purpose = Literal["server", "client", "admin"]
ROLES = ("lead", "org_admin", "member")
"""Roles of a person; FLARE's distributed provisioning has no project_admin."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@%+-]*")


def authority(profile: Path, out: Path) -> str:
    """Make the root certificate in `out` and return its fingerprint.

    `nvflare cert init --org` is not used: the root then has another subject than the issuer its certificates
    name, and no server starts (InvalidCertChain, nvflare 2.9.0).
    """
    _nvflare("cert", "init", "--profile", str(profile), "-o", str(out))
    return str(json.loads((out / "ca.json").read_text(encoding="utf-8"))["rootCA_fingerprint"])


def request(name: str, kind: Purpose, org: str, out: Path, project: str = "medflare", role: str = "") -> Path:
    """Make a key and a request in `out/<name>`; return the request, the only file to send.

    Args:
        name: of the certificate; for a person the e-mail address, for the server the host that others dial.
        role: of a person, one of ROLES.

    Raises:
        ConfigError: the name cannot be one, or a person has no role.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"'{name}': a name has letters, digits and . _ @ % + - only, for instance site-1")
    if (kind == "admin") != (role in ROLES):
        raise ConfigError(
            f"role '{role}' for a {kind}: a person (admin) has one of {', '.join(ROLES)}, others have none"
        )
    participant = {"name": name, "type": kind, "org": org} | ({"role": role} if role else {})
    folder = out / name
    out.mkdir(parents=True, exist_ok=True)
    definition = out / f"{name}.participant.yml"
    definition.write_text(yaml.safe_dump({"name": project, "participants": [participant]}), encoding="utf-8")
    _nvflare("cert", "request", "-p", str(definition), "--out", str(folder))
    definition.unlink()
    return folder / f"{name}.request.zip"


def approve(request_zip: Path, profile: Path, ca: Path, valid_days: int = 1095) -> Path:
    """Sign a request with the authority in `ca`; return the file to send back, beside the request.

    Raises:
        ConfigError: the file is not called as a request is, whose name tells that of the file to send back.
    """
    name = request_zip.name.removesuffix(".request.zip")
    if name in ("", request_zip.name):
        raise ConfigError(f"{request_zip}: expected the request that came, <name>.request.zip.")
    signed = request_zip.with_name(f"{name}.signed.zip")
    _nvflare(
        *("cert", "approve", str(request_zip), "-c", str(ca), "--profile", str(profile)),
        *("--out", str(signed), "--valid-days", str(valid_days)),
    )
    return signed


def assemble(signed_zip: Path, request_folder: Path, fingerprint: str, kits: Path) -> Path:
    """Make the hardened kit from the signed request and the key in `request_folder`; return its folder.

    Raises:
        RunError: the root certificate in the file has another fingerprint, or the file is not whole.
    """
    name = signed_zip.name.removesuffix(".signed.zip")
    _nvflare(
        *("package", str(signed_zip), "--request-dir", str(request_folder)),
        *("--fingerprint", fingerprint, "-w", str(kits)),
    )
    written = sorted(kits.glob(f"*/prod_*/{name}"))
    if not written or as_kit(written[-1]) is None:
        raise RunError(f"{kits}: nvflare package said nothing, but wrote no kit for {name}")
    harden(written[-1])
    return written[-1]


def _nvflare(*arguments: str) -> None:
    """Run FLARE's own command; RunError with its output where it fails."""
    command = [sys.executable, "-m", "nvflare.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode:
        output = (done.stderr + done.stdout).strip()
        verb = " ".join(arguments[:2]) if arguments[0] == "cert" else arguments[0]
        raise RunError(f"nvflare {verb} ended with {done.returncode}: {output}")
