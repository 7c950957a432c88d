# SPDX-License-Identifier: Apache-2.0
"""One site's expired certificate is that site's matter: it steps out before the job is deployed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from nvflare.apis.fl_context import FLContext

from medflare.federation.engine import EventType, FLContextKey
from medflare.federation.site.policy import CERTIFICATE, SitePolicy

Asked = Callable[[timedelta | None], FLContext]


def write_certificate(file: Path, left: timedelta) -> None:
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "site-1")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=400))
        .not_valid_after(now + left)
        .sign(key, hashes.SHA256())
    )
    file.parent.mkdir(parents=True)
    file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    """Asks a site whether it takes an ordinary job; its certificate is valid for so long."""

    def ask(left: timedelta | None) -> FLContext:
        (tmp_path / "local").mkdir()
        (tmp_path / "local/site.yaml").write_text("cohort: {format: manifest, root: .}\n")
        if left is not None:
            write_certificate(tmp_path / CERTIFICATE, left)
        ctx = FLContext()
        ctx.set_prop(FLContextKey.WORKSPACE_ROOT, str(tmp_path), private=True)
        ctx.set_prop(FLContextKey.SECURITY_ITEMS, {FLContextKey.JOB_META: {"name": "j"}}, private=True)
        SitePolicy().handle_event(EventType.AUTHORIZE_COMMAND_CHECK, ctx)
        return ctx

    return ask


@pytest.mark.fault(
    "a site's certificate has expired", phase="deployment", result="the site steps out with what to do"
)
def test_a_site_with_an_expired_certificate_refuses_the_job(asked: Asked) -> None:
    ctx = asked(timedelta(days=-2))
    assert ctx.get_prop(FLContextKey.AUTHORIZATION_RESULT) is False
    assert "certificate expired on" in ctx.get_prop(FLContextKey.AUTHORIZATION_REASON)
    assert "medflare kits renew" in ctx.get_prop(FLContextKey.AUTHORIZATION_REASON)


@pytest.mark.parametrize(("days", "warned"), [(29, True), (31, False), (None, False)])
def test_it_warns_thirty_days_ahead(
    asked: Asked, days: int | None, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        ctx = asked(None if days is None else timedelta(days=days, hours=1))
    assert ctx.get_prop(FLContextKey.AUTHORIZATION_RESULT) is None
    assert ("certificate expires on" in caplog.text) is warned
