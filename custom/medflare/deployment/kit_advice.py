# SPDX-License-Identifier: Apache-2.0
"""Settings of a kit that work and that a person should look at before a production run."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from medflare.core.errors import MedflareError
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import load_site
from medflare.deployment.kit_check import Finding
from medflare.deployment.kits import Kit, find_kits, read_object


def server_of(kit: Kit) -> tuple[str, int]:
    """Return the (host, port) that a site's kit connects to."""
    servers = read_object(kit.startup / "fed_client.json")["servers"]
    host, _, number = str(servers[0]["service"]["target"]).rpartition(":")
    return host.strip("[]"), int(number)


def advice(kits: Path) -> list[Finding]:
    """Return what to look at in the sites' kits of a folder; nothing of it keeps a kit from working.

    Raises:
        ConfigError: there is no kit.
    """
    return [
        found for kit in find_kits(kits) if kit.role == "site" for found in (*_address(kit), *_policy(kit))
    ]


def _address(kit: Kit) -> Iterator[Finding]:
    """Yield a server that only its own machine can reach."""
    host, _ = server_of(kit)
    if host == "localhost" or _is_loopback(host):
        yield Finding(
            path=kit.startup / "fed_client.json",
            found=f"the server's address is {host}, which is this machine itself",
            remedy="Set default_host in project.yml to the address that hospitals dial, and provision again",
        )


def _policy(kit: Kit) -> Iterator[Finding]:
    """Yield a site that leaves every decision to whoever submits a job. A wrong file has its own error."""
    file = kit.local / "site.yaml"
    try:
        policy = load_site(file, kit.name).policy
    except (MedflareError, OSError):
        return
    if policy == PolicyConfig():
        yield Finding(
            path=file,
            found="has no policy: any job made of the listed classes may run, whoever submits it",
            remedy="Write `policy`: jobs, submitters, min_sites, most_rounds, max_bytes_per_round, require",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
