# SPDX-License-Identifier: Apache-2.0
"""Fingerprint of trained weights, by which drafts and pages name the model that they come from."""

from __future__ import annotations

import hashlib
from pathlib import Path

SHOWN = 16
"""Characters of a fingerprint that are shown."""


def tensor_fingerprint(folder: Path) -> str:
    """Return the first characters of the SHA-256 of all tensor files of a folder, in the order of names."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
    return digest.hexdigest()[:SHOWN]
