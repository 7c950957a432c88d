# SPDX-License-Identifier: Apache-2.0
"""A site's startup kit with real certificates, a TLS server that asks for them, and a proxy."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from medflare.deployment.preflight.base import Check

YEAR = timedelta(days=365)
PATIENT = 60.0
"""Seconds to wait for an answer that comes at once."""


class Project:
    """A certificate authority and what it signs."""

    def __init__(self, name: str = "medflare") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.root = self._signed(self.name, self.key.public_key(), YEAR, ca=True)

    def _signed(self, subject: x509.Name, key: object, left: timedelta, ca: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, now + left) - YEAR)
            .not_valid_after(now + left)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def write(self, folder: Path, who: str, left: timedelta = YEAR) -> tuple[Path, Path]:
        """(`<who>.crt`, `<who>.key`) of a participant, and the root beside them."""
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, who)])
        made = self._signed(subject, key.public_key(), left, ca=False)
        pem = serialization.Encoding.PEM
        secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (folder / f"{who}.crt").write_bytes(made.public_bytes(pem))
        (folder / f"{who}.key").write_bytes(secret)
        (folder / f"{who}.key").chmod(0o600)
        (folder / "rootCA.pem").write_bytes(self.root.public_bytes(pem))
        return folder / f"{who}.crt", folder / f"{who}.key"


def write_kit(folder: Path, project: Project, port: int, left: timedelta = YEAR) -> Path:
    """A site's kit that dials a server on this machine."""
    project.write(folder / "startup", "client", left)
    facts = {
        "servers": [{"name": "medflare", "service": {"target": f"localhost:{port}", "scheme": "grpc"}}],
        "client": {"fqsn": "site-1"},
    }
    (folder / "startup/fed_client.json").write_text(json.dumps(facts))
    (folder / "local").mkdir()
    return folder


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server on a free port that gives each connection to `answer`."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()


def tls_answer(project: Project, folder: Path, left: timedelta = YEAR) -> Callable[[socket.socket], None]:
    """What FLARE's server does: TLS, a certificate asked of the client, then the first bytes."""
    certificate, key = project.write(folder, "server", left)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(folder / "rootCA.pem")
    context.verify_mode = ssl.CERT_REQUIRED

    def answer(connection: socket.socket) -> None:
        connection.settimeout(PATIENT)
        with context.wrap_socket(connection, server_side=True) as secure:
            secure.sendall(b"settings")
            secure.recv(1)

    return answer


def proxy_answer(asked: list[str], status: str = "200 OK") -> Callable[[socket.socket], None]:
    """An HTTP proxy that understands CONNECT, and keeps what it was asked."""

    def answer(connection: socket.socket) -> None:
        connection.settimeout(PATIENT)
        request = b""
        while b"\r\n\r\n" not in request:
            request += connection.recv(4096)
        asked.append(request.decode())
        connection.sendall(f"HTTP/1.1 {status}\r\nVia: test\r\n\r\n".encode())
        if not status.startswith("200"):
            return
        host, port = request.split()[1].decode().split(":")
        with socket.create_connection((host, int(port)), PATIENT) as server:
            back = threading.Thread(target=_copy, args=(server, connection), daemon=True)
            back.start()
            _copy(connection, server)

    return answer


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while part := source.recv(4096):
            target.sendall(part)


def says(check: Check, outcome: str, found: str, remedy: str = "") -> None:
    """Assert what a check came to, what it found, and what it tells to do."""
    assert check.outcome == outcome, check
    assert found in check.found
    assert outcome == "ok" or (check.expected and check.remedy)
    assert remedy in check.remedy
