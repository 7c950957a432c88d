# SPDX-License-Identifier: Apache-2.0
"""A small certificate authority that writes startup folders as FLARE's do, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
"""The time of all tests."""
DAY = timedelta(days=1)


def clock() -> datetime:
    return NOW


def make_key(kind: str) -> Key:
    if kind == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1())


def _name(common: str, role: str = "") -> x509.Name:
    words = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if role:
        words.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    return x509.Name(words)


@dataclass
class Authority:
    """A root certificate and what it issues; dates are days from `NOW`."""

    name: str = "project"
    kind: str = "ec"
    until: float = 3650.0
    key: Key = field(init=False)
    root: x509.Certificate = field(init=False)

    def __post_init__(self) -> None:
        self.key = make_key(self.kind)
        self.root = self._issue(_name(self.name), self.key.public_key(), -3650.0, self.until, True)

    def issue(
        self,
        name: str,
        key: Key,
        *,
        since: float = -1.0,
        until: float = 300.0,
        role: str = "",
        ca: bool = False,
    ) -> x509.Certificate:
        return self._issue(_name(name, role), key.public_key(), since, until, ca)

    def _issue(
        self,
        subject: x509.Name,
        key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey,
        since: float,
        until: float,
        ca: bool,
    ) -> x509.Certificate:
        """Extensions as in the certificates of `nvflare provision`."""
        common = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(_name(self.name))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(NOW + since * DAY)
            .not_valid_after(NOW + until * DAY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(common)]), critical=False)
        )
        if ca:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
            builder = builder.add_extension(usage, critical=True)
        return builder.sign(self.key, hashes.SHA256())


def write_kit(
    folder: Path,
    authority: Authority,
    key: Key,
    *certificates: x509.Certificate,
    participant: str = "client",
) -> Path:
    """A startup folder; the first certificate is the participant's own."""
    folder.mkdir(parents=True, exist_ok=True)
    pem = serialization.Encoding.PEM
    chain = b"".join(certificate.public_bytes(pem) for certificate in certificates)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    (folder / f"{participant}.crt").write_bytes(chain)
    (folder / f"{participant}.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    (folder / "rootCA.pem").write_bytes(authority.root.public_bytes(pem))
    return folder


def site_kit(
    folder: Path, authority: Authority, name: str, kind: str = "ec", participant: str = "client"
) -> Path:
    """The startup folder of a participant, valid now."""
    key = make_key(kind)
    return write_kit(folder / name, authority, key, authority.issue(name, key), participant=participant)
