# SPDX-License-Identifier: Apache-2.0
"""Checks of the connection to the server: its one port, through the hospital's proxy where there is one, and
TLS."""

from __future__ import annotations

import base64
import contextlib
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

from cryptography import x509

from medflare.deployment.kit_advice import server_of
from medflare.deployment.kits import Kit, effective
from medflare.deployment.preflight.base import Check, ok, problem, warning
from medflare.deployment.preflight.kit_files import SOON
from medflare.federation.site.job_launcher import PROXIES, has_password

TIMEOUT = 10.0
LAUNCHER = "process_launcher"
"""Id of our launcher of job processes in a site's resources.json."""
FIRST_WORDS = 2.0
"""Seconds to wait for the first bytes of a server that has accepted us; one that speaks later is taken to."""
MOST_REPLY = 65536


class UnreachableError(OSError):
    """The proxy answered, but did not connect to the server."""


def proxy_for(host: str) -> str | None:
    """Return the proxy that `https_proxy` names for this host, unless `no_proxy` excludes the host."""
    proxies = getproxies_environment()
    if proxy_bypass_environment(host, proxies):
        return None
    return proxies.get("https") or proxies.get("all")


def reach(kit: Kit, timeout: float = TIMEOUT) -> list[Check]:
    """Check that the server's port can be reached, and that both sides accept each other's certificates."""
    host, port = server_of(kit)
    proxy = proxy_for(host)
    where = f"{host}:{port}" + (f" through the proxy {_without_password(proxy)}" if proxy else "")
    try:
        connection = connect(host, port, proxy, timeout)
    except OSError as error:
        remedy = (
            f"Ask the hospital's network people to allow {'the proxy' if proxy else 'outbound TCP'} to "
            f"{host} port {port}, and the coordinating centre whether the server runs"
        )
        return [problem("server port", f"{where}: {error}", "a connection", remedy)]
    with connection:
        found = [ok("server port", f"{where} answers"), handshake(connection, kit, host)]
    return [*found, *_jobs_way(kit, proxy)]


def _jobs_way(kit: Kit, proxy: str | None) -> Iterator[Check]:
    """Yield a problem where the site reaches the server through a proxy and its jobs will not."""
    if proxy is None or not has_password(proxy):
        return
    components = effective(kit, "resources.json").get("components", [])
    more = [part.get("args", {}).get("more", []) for part in components if part.get("id") == LAUNCHER]
    if not {name.lower() for names in more for name in names} & PROXIES:
        yield problem(
            "proxy of jobs",
            "the proxy's address holds a user's name or password, which processes of jobs do not get",
            "a way to the server for every job, whose process has a connection of its own",
            "Take a proxy that needs no password for this machine, or pass the variable on: "
            f'{LAUNCHER} with "args": {{"more": ["https_proxy"]}} in local/resources.json. A job\'s '
            "configuration can read it then",
        )


def connect(host: str, port: int, proxy: str | None, timeout: float) -> socket.socket:
    """Open a TCP connection to the server, through HTTP CONNECT where there is a proxy.

    Raises:
        OSError: there is no connection; an UnreachableError where the proxy refuses.
    """
    if proxy is None:
        return socket.create_connection((host, port), timeout)
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    connection = socket.create_connection((parts.hostname or "", parts.port or 3128), timeout)
    try:
        lines = [f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}"]
        if parts.username:
            words = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            lines.append(f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}")
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        status = _status(connection)
        if status.split(" ")[1:2] != ["200"]:
            raise UnreachableError(f"the proxy answered '{status}'")
    except BaseException:
        connection.close()
        raise
    return connection


def _status(connection: socket.socket) -> str:
    """Return the first line of the proxy's answer, after reading it to its end."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        part = connection.recv(4096)
        if not part or len(reply) > MOST_REPLY:
            raise UnreachableError("the proxy closed the connection without an answer")
        reply += part
    return reply.split(b"\r\n", 1)[0].decode("latin-1")


def handshake(connection: socket.socket, kit: Kit, host: str) -> Check:
    """Check a TLS handshake with the kit's own certificate, as FLARE will make it."""
    name, startup = "server certificate", kit.startup
    try:
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        context.set_alpn_protocols(["h2"])
        with context.wrap_socket(connection, server_hostname=host) as secure:
            peer = x509.load_der_x509_certificate(secure.getpeercert(binary_form=True) or b"")
            _first_words(secure)
            until = peer.not_valid_after_utc
            found = f"both sides accept each other, the server's is valid until {until:%Y-%m-%d}"
            if until - datetime.now(UTC) < SOON:
                return warning(name, found, "at least 30 days", "Tell the coordinating centre")
            return ok(name, found)
    except ssl.SSLCertVerificationError as error:
        remedy = (
            "Do not start the kit: another machine answers, a proxy opens TLS, the server's certificate has "
            "expired, or the kit is of another project"
        )
        return problem(name, f"refused: {error.verify_message}", "a certificate of the kit's project", remedy)
    except (OSError, ValueError) as error:
        remedy = "Ask the coordinating centre whether this port speaks TLS and knows this kit"
        return problem(
            name, f"no TLS handshake: {error}", "a TLS handshake with the kit's certificate", remedy
        )


def _first_words(secure: ssl.SSLSocket) -> None:
    """Waits for the server's first bytes: with TLS 1.3 a refusal of our certificate comes only now."""
    secure.settimeout(FIRST_WORDS)
    with contextlib.suppress(TimeoutError):
        secure.recv(1)


def _without_password(proxy: str) -> str:
    """Return a proxy's address without its password."""
    parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    return f"{parts.hostname}:{parts.port or 3128}"
