# SPDX-License-Identifier: Apache-2.0
"""The signers of a job's files, by certificates that the federation's root issued."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from medflare.federation.engine import verify_folder_signature_and_get_signers

ROOT_CERTIFICATE = Path("startup") / "rootCA.pem"
"""In a startup kit; a simulator has none."""


class Signer(NamedTuple):
    """An admin, as the certificate says."""

    name: str
    organisation: str
    role: str


def read_signers(folder: Path, kit: Path) -> list[Signer]:
    """Return the admins who signed a folder's files; none unless every file is signed, unchanged, by one.

    The root's key is no server's, so a server can make no such signature. Its own certificate, and a site's,
    are of the same root but name no role.

    Args:
        folder: of a job, as `sign_folders` of FLARE leaves it when an admin submits it.
        kit: the startup kit of whoever asks.
    """
    valid, found = verify_folder_signature_and_get_signers(str(folder), str(kit / ROOT_CERTIFICATE))
    signers = [Signer(*entry) for entry in found]
    return signers if valid and all(signer.role for signer in signers) else []
