# SPDX-License-Identifier: Apache-2.0
"""A site is believed by the certificate of its startup kit, and by nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from authority import DAY, NOW, Authority, clock, make_key, site_kit, write_kit

from medflare.core.errors import ConfigError
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.masking_errors import UntrustedSite

MESSAGE = b"what is signed"


@pytest.fixture(scope="module")
def reader(project: Authority, tmp_path_factory: pytest.TempPathFactory) -> Identity:
    return Identity.from_kit(site_kit(tmp_path_factory.mktemp("kits"), project, "site-1"), clock)


def peer(folder: Path, project: Authority, name: str = "site-2", at: float = 0.0, **words: Any) -> Identity:
    """Another participant, whose own clock is `at` days off."""
    key = make_key("ec")
    kit = write_kit(folder / name, project, key, project.issue(name, key, **words))
    return Identity.from_kit(kit, lambda: NOW + at * DAY)


def verify(reader: Identity, other: Identity, name: str = "site-2", message: bytes = MESSAGE) -> None:
    reader.verify(name, other.certificate, message, other.sign(MESSAGE), phase="advertise")


def trusts(reader: Identity, other: Identity) -> bool:
    try:
        verify(reader, other)
    except UntrustedSite:
        return False
    return True


@pytest.mark.parametrize("authority", ["rsa", "ec"])
@pytest.mark.parametrize("kind", ["rsa", "ec"])
@pytest.mark.parametrize("participant", ["client", "server"])
def test_keys_of_both_kinds_sign_and_verify(
    tmp_path: Path, authority: str, kind: str, participant: str
) -> None:
    project = Authority(kind=authority)
    one = Identity.from_kit(site_kit(tmp_path, project, "one", kind, participant), clock)
    other = Identity.from_kit(site_kit(tmp_path, project, "other", kind), clock)
    assert one.name == "one"
    verify(one, other, "other")
    verify(other, one, "one")


def test_a_signature_over_something_else_is_refused(
    reader: Identity, project: Authority, tmp_path: Path
) -> None:
    other = peer(tmp_path, project)
    with pytest.raises(UntrustedSite, match="site 'site-2': its signature does not belong") as found:
        verify(reader, other, message=b"something else")
    assert found.value.sites == ("site-2",)


def test_a_certificate_made_out_to_another_is_refused(
    reader: Identity, project: Authority, tmp_path: Path
) -> None:
    with pytest.raises(UntrustedSite, match="made out to 'site-3', expected 'site-2'"):
        verify(reader, peer(tmp_path, project, "site-3"))


def test_a_certificate_of_another_project_is_refused(reader: Identity, tmp_path: Path) -> None:
    with pytest.raises(UntrustedSite, match=r"issued by 'other'.* not issued by this project's authority"):
        verify(reader, peer(tmp_path, Authority("other")))


def test_a_project_of_the_same_name_is_another_project(reader: Identity, tmp_path: Path) -> None:
    with pytest.raises(UntrustedSite, match="was not issued by this project's authority 'project'"):
        verify(reader, peer(tmp_path, Authority("project")))


@pytest.mark.parametrize(
    ("dates", "words"),
    [
        ({"since": -10, "until": -1}, "expired on 2026-05-31 12:00 UTC"),
        ({"since": 2, "until": 10}, "valid only from 2026-06-03 12:00 UTC; look at this machine's clock"),
    ],
    ids=["expired", "not yet valid"],
)
def test_a_certificate_outside_its_dates_is_refused(
    reader: Identity, project: Authority, tmp_path: Path, dates: dict[str, float], words: str
) -> None:
    other = peer(tmp_path, project, at=sum(dates.values()) / 2, **dates)
    with pytest.raises(UntrustedSite, match=re.escape(words)):
        verify(reader, other)
    with pytest.raises(ConfigError, match=rf"client\.crt: the certificate .*{re.escape(words)}.* new kit"):
        Identity.from_kit(tmp_path / "site-2", clock)


def test_an_expired_root_ends_trust(tmp_path: Path) -> None:
    project = Authority(until=10.0)
    kit = site_kit(tmp_path, project, "site-1")
    with pytest.raises(ConfigError, match="the project's root certificate expired on 2026-06-11"):
        Identity.from_kit(kit, lambda: NOW + 20 * DAY)


@pytest.mark.parametrize("role", ["project_admin", "lead", "server"])
def test_people_and_servers_are_no_sites(
    reader: Identity, project: Authority, tmp_path: Path, role: str
) -> None:
    with pytest.raises(UntrustedSite, match=f"has the role '{role}', expected that of a site"):
        verify(reader, peer(tmp_path, project, role=role))


def test_the_role_client_is_a_sites(reader: Identity, project: Authority, tmp_path: Path) -> None:
    assert trusts(reader, peer(tmp_path, project, role="client"))
    assert not trusts(reader, peer(tmp_path, project, role="guest"))


def test_an_intermediate_authority_is_followed_and_a_site_cannot_be_one(
    project: Authority, tmp_path: Path
) -> None:
    reader = Identity.from_kit(site_kit(tmp_path, project, "site-1"), clock)
    for ca, name in ((True, "hospital authority"), (False, "site-9")):
        below = Authority(name)
        link = project.issue(name, below.key, ca=ca)
        key = make_key("ec")
        leaf = below.issue("site-2", key)
        as_itself = Identity.from_kit(write_kit(tmp_path / name, below, key, leaf, link), clock)
        if ca:
            verify(reader, as_itself)
        else:
            with pytest.raises(UntrustedSite, match="issued by 'site-9'"):
                verify(reader, as_itself)


@pytest.mark.parametrize(
    "certificate", ["nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_what_is_no_certificate_is_refused(reader: Identity, certificate: str) -> None:
    with pytest.raises(UntrustedSite, match="no PEM certificate"):
        reader.verify("site-2", certificate, MESSAGE, b"", phase="advertise")


def test_certified_and_uncertified_sites_do_not_mix(
    reader: Identity, project: Authority, tmp_path: Path
) -> None:
    with pytest.raises(UntrustedSite, match=r"it sent no certificate, .* Give 'site-2' its kit"):
        verify(reader, Identity.unsigned("site-2"))
    with pytest.raises(UntrustedSite, match="it has a certificate and 'site-1' has none"):
        verify(Identity.unsigned("site-1"), peer(tmp_path, project))
    verify(Identity.unsigned("site-1"), Identity.unsigned("site-2"))


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("client.crt", None, "there is no client.crt"),
        ("client.crt", b"x", r"client\.crt: cannot be read as a certificate"),
        ("client.key", None, r"client\.key: cannot be read as a private key"),
        ("client.key", b"x", r"client\.key: cannot be read as a private key"),
        ("rootCA.pem", None, r"rootCA\.pem: cannot be read as a certificate \(FileNotFoundError\)"),
        ("rootCA.pem", b"", r"rootCA\.pem: cannot be read as a certificate"),
    ],
)
def test_a_damaged_kit_is_named_by_its_file(
    project: Authority, tmp_path: Path, file: str, content: bytes | None, words: str
) -> None:
    kit = site_kit(tmp_path, project, "site-1")
    (kit / file).unlink()
    if content is not None:
        (kit / file).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        Identity.from_kit(kit, clock)


def test_a_kit_with_the_key_or_the_root_of_another_is_refused(project: Authority, tmp_path: Path) -> None:
    one, other = site_kit(tmp_path, project, "site-1"), site_kit(tmp_path, project, "site-2")
    foreign = site_kit(tmp_path, Authority("elsewhere"), "site-3")
    (one / "client.key").write_bytes((other / "client.key").read_bytes())
    with pytest.raises(ConfigError, match=r"client\.key: is not the key of the certificate beside it"):
        Identity.from_kit(one, clock)
    (other / "rootCA.pem").write_bytes((foreign / "rootCA.pem").read_bytes())
    with pytest.raises(ConfigError, match="not issued by this project's authority 'elsewhere'"):
        Identity.from_kit(other, clock)


PROJECT = """
api_version: 4
name: tiny
participants:
  - {name: flserver, type: server, org: coord, fed_learn_port: 18002, default_host: localhost}
  - {name: site-1, type: client, org: hospital_a}
  - {name: site-2, type: client, org: hospital_b}
  - {name: lead@coord.org, type: admin, org: coord, role: lead}
builders:
  - path: nvflare.lighter.impl.workspace.WorkspaceBuilder
    args: {template_file: [master_template.yml]}
  - path: nvflare.lighter.impl.static_file.StaticFileBuilder
    args: {config_folder: config, scheme: grpc}
  - path: nvflare.lighter.impl.cert.CertBuilder
"""


def test_the_kits_of_nvflare_provision_are_understood(tmp_path: Path) -> None:
    (tmp_path / "project.yml").write_text(PROJECT)
    words = ["from nvflare.lighter.provision import main; main()", "-p", "project.yml", "-w", "out"]
    subprocess.run([sys.executable, "-c", *words], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    kits = tmp_path / "out" / "tiny" / "prod_00"
    people = {
        name: Identity.from_kit(kits / name / "startup")
        for name in ("flserver", "site-1", "site-2", "lead@coord.org")
    }
    assert all(person.name == name for name, person in people.items())
    for reader in ("site-1", "flserver"):
        verify(people[reader], people["site-2"])
    with pytest.raises(UntrustedSite, match="has the role 'lead'"):
        verify(people["site-1"], people["lead@coord.org"], "lead@coord.org")
    with pytest.raises(UntrustedSite, match="made out to 'flserver', expected 'site-2'"):
        verify(people["site-1"], people["flserver"])
