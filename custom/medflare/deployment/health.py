# SPDX-License-Identifier: Apache-2.0
"""Health check of a kit's server or site: `python -m medflare.deployment.health <kit>`, exit 0 or 1.

For container health checks and supervisors: it asks nobody, changes nothing and needs no certificate.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from medflare.deployment.kits import Kit, as_kit, read_object

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables by which gRPC finds a proxy, in its order."""


def health(kit: Kit) -> str | None:
    """Return what is wrong, or None: a server must answer on its port, a site be connected to server or
    proxy."""
    if kit.role == "server":
        port = int(read_object(kit.startup / "fed_server.json")["servers"][0]["admin_port"])
        return _answers(port)
    target = read_object(kit.startup / "fed_client.json")["servers"][0]["service"]["target"]
    ports = {int(target.rpartition(":")[2])} | _proxy_ports()
    for connection in psutil.net_connections(kind="tcp"):
        if (
            connection.status == psutil.CONN_ESTABLISHED
            and connection.raddr
            and connection.raddr.port in ports
        ):
            return None
    return f"no connection to {target}; look at {kit.folder / 'log.txt'}, the network and the proxy"


def _answers(port: int) -> str | None:
    try:
        with socket.create_connection(("localhost", port), timeout=10):
            return None
    except OSError as error:
        return f"the server does not answer on its port {port}: {error}"


def _proxy_ports() -> set[int]:
    values = (os.environ.get(name) or os.environ.get(name.upper(), "") for name in PROXIES)
    ports = (urlsplit(value if "//" in value else f"//{value}").port for value in values if value)
    return {port for port in ports if port}


def main(arguments: list[str]) -> int:
    """Print what is wrong and return the exit code."""
    kit = as_kit(Path(arguments[0])) if len(arguments) == 1 else None
    if kit is None or kit.role == "admin":
        print("expected one argument, the folder of a server's or site's kit")
        return 1
    wrong = health(kit)
    print(wrong or "up")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
