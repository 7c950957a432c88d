# SPDX-License-Identifier: Apache-2.0
"""Certificates of a project: reading them, and whether one is good for a site now."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError

from medflare.core.errors import ConfigError

SITE_ROLES = ("", "client")
"""Roles (subject's unstructured name) of a site: none by `nvflare provision`, client by `nvflare cert`."""


def read_certificates(file: Path) -> tuple[x509.Certificate, ...]:
    """Return the certificates of a PEM file, the participant's own first; ConfigError that names the file."""
    try:
        return tuple(x509.load_pem_x509_certificates(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file}: cannot be read as a certificate ({type(error).__name__}). Expected the PEM file of "
            "the startup kit; unpack the kit again."
        ) from None


def common_name(certificate: x509.Certificate) -> str:
    """Return the common name of a certificate; empty if it has none."""
    return _word(certificate, NameOID.COMMON_NAME)


def check_certificate(
    chain: Sequence[x509.Certificate], root: x509.Certificate, name: str, moment: datetime
) -> str | None:
    """Return why a chain's first certificate is not `name`'s, valid at `moment`, under `root`; else None."""
    leaf = chain[0]
    if common_name(leaf) != name:
        return f"the certificate is made out to '{common_name(leaf)}', expected '{name}'"
    for certificate, what in ((root, "the project's root certificate"), (leaf, "the certificate")):
        since, until = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if moment > until:
            return f"{what} expired on {until:%Y-%m-%d %H:%M} UTC"
        if moment < since:
            return f"{what} is valid only from {since:%Y-%m-%d %H:%M} UTC; look at this machine's clock"
    if not _leads_to(chain, root, moment):
        return (
            f"the certificate (issued by '{_issuer(leaf)}') was not issued by this project's authority "
            f"'{common_name(root)}'"
        )
    return None


def role_problem(chain: Sequence[x509.Certificate]) -> str | None:
    """Return why a certificate is not a site's but a person's or a server's; None where it does not say."""
    role = _word(chain[0], NameOID.UNSTRUCTURED_NAME)
    return None if role in SITE_ROLES else f"the certificate has the role '{role}', expected that of a site"


def _leads_to(chain: Sequence[x509.Certificate], root: x509.Certificate, moment: datetime) -> bool:
    """Return whether `cryptography`'s path verification finds a way; kits say nothing about key usage."""
    verifier = (
        PolicyBuilder()
        .store(Store([root]))
        .time(moment)
        .extension_policies(
            ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all()
        )
        .build_client_verifier()
    )
    try:
        verifier.verify(chain[0], list(chain[1:]))
    except VerificationError:
        return False
    return True


def _issuer(certificate: x509.Certificate) -> str:
    words = certificate.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(words[0].value) if words else ""


def _word(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> str:
    words = certificate.subject.get_attributes_for_oid(oid)
    return str(words[0].value) if words else ""
