# SPDX-License-Identifier: Apache-2.0
"""A federation's root, the certificates that it issues, and folders that are signed as FLARE does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvflare.lighter.utils import Identity, generate_cert, generate_keys, serialize_cert, sign_folders


@dataclass
class Root:
    """A project's root, as provisioning makes it."""

    keys: tuple[Any, Any] = field(default_factory=generate_keys)

    def write(self, kit: Path) -> Path:
        """Write the root's certificate into a startup kit; return the kit."""
        (kit / "startup").mkdir(parents=True, exist_ok=True)
        private, public = self.keys
        name = Identity("medflare")
        certificate = generate_cert(
            subject=name, issuer=name, signing_pri_key=private, subject_pub_key=public, ca=True
        )
        (kit / "startup/rootCA.pem").write_bytes(serialize_cert(certificate))
        return kit

    def sign(
        self, folder: Path, name: str, organisation: str = "hospital_a", role: str | None = "lead"
    ) -> None:
        """Sign a folder as somebody to whom the root issued a certificate; sites and servers have no role."""
        private, public = generate_keys()
        certificate = generate_cert(
            subject=Identity(name, organisation, role),
            issuer=Identity("medflare"),
            signing_pri_key=self.keys[0],
            subject_pub_key=public,
        )
        file = folder.parent / f"{name}.crt"
        file.write_bytes(serialize_cert(certificate))
        sign_folders(str(folder), private, str(file))
        file.unlink()
