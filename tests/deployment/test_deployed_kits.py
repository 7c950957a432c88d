# SPDX-License-Identifier: Apache-2.0
"""Kits that must not get in: expired, foreign, of another project, tampered with. The server admits none."""

from __future__ import annotations

import datetime
import json
import shutil
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

import deployed
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from deployed import Federation
from deployed_programs import LONG, wait_until
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
        sign_folders(str(kit / "startup"), self.key, signature_file="signature.json")

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
def kits(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit bent in each way, one of another authority, and the good one."""
    root = tmp_path_factory.mktemp("bent")
    authority = Authority.of(federation.kits)
    for bend in (expired, other_project, tampered):
        shutil.copytree(federation.kits / SITE, root / bend.__name__)
        bend(root / bend.__name__, authority)
    shutil.copytree(deployed.provision(root / "elsewhere") / SITE, root / "foreign")
    shutil.copytree(federation.kits / SITE, root / "good")
    return root


def answer_to(kit: Path, server: tuple[str, int]) -> bytes:
    """The first bytes the server sends to whoever holds this kit's certificate; none if it hangs up."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # what the server thinks is asked
    context.load_cert_chain(kit / "startup" / "client.crt", kit / "startup" / "client.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(server, timeout=20) as plain,
        context.wrap_socket(plain, server_hostname=server[0]) as secured,
    ):
        secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        return secured.recv(64)


def address(kits: Path) -> tuple[str, int]:
    """Host and port that the federation's sites dial."""
    said = json.loads((kits / SITE / "startup" / "fed_client.json").read_text())
    host, port = said["servers"][0]["service"]["target"].split(":")
    return host, int(port)


@pytest.mark.parametrize("kit", ["expired", "foreign"])
def test_the_server_hangs_up_on_a_certificate_that_does_not_serve(
    federation: Federation, kits: Path, kit: str
) -> None:
    server = address(federation.kits)
    try:
        answer = answer_to(kits / kit, server)
    except (ssl.SSLError, ConnectionError):
        answer = b""
    assert answer == b""
    assert answer_to(kits / "good", server)


REFUSED = {
    "tampered": "not secure content",
    "other_project": "Requested task does not match the current server task",
}


def test_a_tampered_kit_does_not_start_and_one_of_another_project_is_not_registered(
    federation: Federation, kits: Path
) -> None:
    bent = Federation(kits)
    try:
        bent.start(*REFUSED)
        for name, words in REFUSED.items():
            wait_until(f"'{words}' of {name}", lambda name=name, words=words: words in bent.log(name), LONG)
        with federation.session() as session:
            assert SITE not in {client.name for client in session.get_system_info().client_info}
    finally:
        bent.end()
