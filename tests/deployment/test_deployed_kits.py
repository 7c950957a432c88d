# SPDX-License-Identifier: Apache-2.0
"""Kits that must not get in: expired, foreign, of another project, tampered with. The server admits none."""

from __future__ import annotations

import datetime
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import deployed
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from deployed import Federation, wait_until
from nvflare.lighter.utils import sign_folders

SITE = "site-4"
"""Certified, but not part of the running federation: the one that is bent."""


@dataclass(frozen=True)
class Authority:
    """The project's own certificate authority: what it signs is trusted, and it signs bent kits here."""

    key: RSAPrivateKey
    certificate: x509.Certificate

    @classmethod
    def of(cls, kits: Path) -> Authority:
        state = json.loads((kits.parent / "state" / "cert.json").read_text())
        key = serialization.load_pem_private_key(state["root_pri_key"].encode(), None)
        assert isinstance(key, RSAPrivateKey)
        return cls(key, x509.load_pem_x509_certificate(state["root_cert"].encode()))

    def sign(self, kit: Path) -> None:
        """Signs a kit's start-up files as they are now."""
        sign_folders(str(kit / "startup"), self.key)

    def backdate(self, path: Path) -> None:
        """The same certificate, ended yesterday."""
        old = x509.load_pem_x509_certificate(path.read_bytes())
        ended = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        builder = x509.CertificateBuilder(
            issuer_name=self.certificate.subject,
            subject_name=old.subject,
            public_key=old.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=ended - datetime.timedelta(days=30),
            not_valid_after=ended,
            extensions=list(old.extensions),
        )
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


def expired(kit: Path, authority: Authority) -> None:
    authority.backdate(kit / "startup" / "client.crt")
    authority.sign(kit)


def other_project(kit: Path, authority: Authority) -> None:
    """Certified here, but made for a project of another name."""
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"name": "medflare"', '"name": "elsewhere"'))
    authority.sign(kit)


def tampered(kit: Path, _: Authority) -> None:
    path = kit / "startup" / "fed_client.json"
    path.write_text(path.read_text().replace('"mtls"', '"tls"'))


@pytest.fixture(scope="module")
def bent(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four kits started at the same time, none of which may get in."""
    root = tmp_path_factory.mktemp("bent")
    authority = Authority.of(federation.kits)
    for bend in (expired, other_project, tampered):
        shutil.copytree(federation.kits / SITE, root / bend.__name__)
        bend(root / bend.__name__, authority)
    foreign = deployed.provision(root / "elsewhere")
    shutil.copytree(foreign / SITE, root / "foreign")
    address = json.loads((federation.kits / SITE / "startup/fed_client.json").read_text())["servers"][0]
    path = root / "foreign" / "startup" / "fed_client.json"
    said = json.loads(path.read_text())
    said["servers"] = [address]
    path.write_text(json.dumps(said))
    Authority.of(foreign).sign(root / "foreign")
    others = Federation(root)
    try:
        others.start("expired", "other_project", "tampered", "foreign")
        yield others
    finally:
        others.end()


REFUSED = {
    "expired": "certificate has expired",
    "other_project": "project name mismatch",
    "tampered": "not secure content",
    "foreign": "certificate verify failed",
}


@pytest.mark.parametrize("kit", REFUSED)
def test_a_kit_that_is_not_what_was_signed_for_this_project_does_not_get_in(
    federation: Federation, bent: Federation, kit: str
) -> None:
    def refused() -> bool:
        return REFUSED[kit] in (bent.log(kit) + federation.log("flserver"))

    wait_until(f"the refusal of {kit}\n{bent.log(kit)}", refused, 60, every=0.5)
    with federation.session() as session:
        assert SITE not in {client.name for client in session.get_system_info().client_info}
