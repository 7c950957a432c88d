# SPDX-License-Identifier: Apache-2.0
"""Identity of a site towards other sites: certificate and key of its startup kit, and checks of a peer's.

A kit holds client.crt and client.key (a server's: server.crt, server.key) and rootCA.pem, PEM files of the
project's own certificate authority. FLARE 2.9 makes RSA keys of 2048 bits; elliptic curves are understood
too. Signatures are RSA-PSS or ECDSA with SHA-256 over a statement that names its purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.certificates import (
    check_certificate,
    common_name,
    read_certificates,
    role_problem,
)
from medflare.secure_aggregation.masking_errors import UntrustedSite

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
_PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.DIGEST_LENGTH)
_NAMES = ("client", "server")


def now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class _Credentials:
    """Credentials of a startup kit: certificate (with intermediate ones), its key, and the project's root."""

    chain: tuple[x509.Certificate, ...]
    key: PrivateKey
    root: x509.Certificate


class Identity:
    """Signs for one participant and verifies what others signed.

    Args:
        name: the site's name; a certificate must be made out to it.
        clock: tells the time against which validity dates are held.
    """

    def __init__(
        self, name: str, credentials: _Credentials | None, clock: Callable[[], datetime] = now
    ) -> None:
        self.name, self._credentials, self._clock = name, credentials, clock

    @classmethod
    def unsigned(cls, name: str) -> Identity:
        """For a simulator, in which all sites run in one process and have no certificates."""
        return cls(name, None)

    @classmethod
    def from_kit(cls, startup: Path, clock: Callable[[], datetime] = now) -> Identity:
        """Return the identity in a kit's startup folder.

        Raises ConfigError that names the file when one is missing, unreadable or not PEM, when key and
        certificate do not belong together, and when the certificate is not valid now under rootCA.pem.
        """
        role = next((role for role in _NAMES if (startup / f"{role}.crt").is_file()), None)
        if role is None:
            raise ConfigError(
                f"{startup}: there is no client.crt (or server.crt). Expected the startup folder of this "
                "participant's kit; ask the coordinating centre for the kit if it was never delivered."
            )
        chain = read_certificates(startup / f"{role}.crt")
        root = read_certificates(startup / "rootCA.pem")[0]
        credentials = _Credentials(chain, _read_key(startup / f"{role}.key", chain[0]), root)
        name = common_name(chain[0])
        problem = check_certificate(chain, root, name, clock())
        if problem:
            raise ConfigError(
                f"{startup / f'{role}.crt'}: {problem}. Ask the coordinating centre for a new kit."
            )
        return cls(name, credentials, clock)

    @property
    def certificate(self) -> str:
        """The certificate and intermediate ones in PEM; empty without one."""
        chain = self._credentials.chain if self._credentials else ()
        return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in chain)

    def sign(self, message: bytes) -> bytes:
        """Return a signature over a statement (`messages.statement`); empty without a certificate."""
        if self._credentials is None:
            return b""
        key = self._credentials.key
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(message, _PADDING, hashes.SHA256())
        return key.sign(message, ec.ECDSA(hashes.SHA256()))

    def verify(self, site: str, certificate: str, message: bytes, signature: bytes, *, phase: str) -> None:
        """Raise UntrustedSite unless `site`, by a certificate made out to it, signed the message.

        An identity without a certificate can verify nothing: it takes only others without one.
        """
        if self._credentials is None or not certificate:
            if self._credentials is not None or certificate:
                raise _untrusted(phase, site, _one_sided(self.name, site, bool(certificate)))
            return
        try:
            chain = tuple(x509.load_pem_x509_certificates(certificate.encode()))
            problem = check_certificate(chain, self._credentials.root, site, self._clock())
            problem = problem or role_problem(chain)
        except ValueError:
            raise _untrusted(phase, site, "what it sent as its certificate is no PEM certificate") from None
        if problem:
            raise _untrusted(phase, site, problem)
        if not _is_signed(chain[0], message, signature):
            raise _untrusted(phase, site, "its signature does not belong to what it is said to have sent")


def _one_sided(site_name: str, site: str, has: bool) -> str:
    if has:
        return f"it has a certificate and '{site_name}' has none. Give every site a startup kit"
    return f"it sent no certificate, and '{site_name}' deals with certified sites only. Give '{site}' its kit"


def _untrusted(phase: str, site: str, problem: str) -> UntrustedSite:
    return UntrustedSite(f"secure aggregation, {phase}: site '{site}': {problem}.", phase=phase, sites=[site])


def _is_signed(certificate: x509.Certificate, message: bytes, signature: bytes) -> bool:
    key = certificate.public_key()
    try:
        if isinstance(key, rsa.RSAPublicKey):
            key.verify(signature, message, _PADDING, hashes.SHA256())
        elif isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        else:
            return False
    except InvalidSignature:
        return False
    return True


def _read_key(file: Path, certificate: x509.Certificate) -> PrivateKey:
    """Return the private key in a PEM file; ConfigError unless it is the certificate's."""
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{file}: cannot be read as a private key without password ({type(error).__name__}). Expected "
            "the PEM file of the startup kit, readable for the user that runs this site."
        ) from None
    if not isinstance(key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{file}: is a {type(key).__name__}; expected an RSA or elliptic-curve key.")
    if key.public_key() != certificate.public_key():
        raise ConfigError(f"{file}: is not the key of the certificate beside it. Unpack the kit again.")
    return key
