# SPDX-License-Identifier: Apache-2.0
"""Kits whose private keys never leave the machine that made them, by the commands that people type."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kit_folders import PROFILE, local, mode
from typer.testing import CliRunner, Result

from medflare.cli.main import app
from medflare.core.errors import ConfigError, RunError
from medflare.deployment import distributed
from medflare.deployment.kit_check import check
from medflare.deployment.kits import find_kits

RUNNER = CliRunner()
PARTICIPANTS = {
    "localhost": ("coordinator", "--kind", "server"),
    "site-1": ("hospital_a",),
    "site-2": ("hospital_b",),
    "lead@hospital-a.org": ("hospital_a", "--kind", "admin", "--role", "lead"),
}


def medflare(*arguments: object) -> Result:
    done = RUNNER.invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `centre` and one for each participant; between them only zip files were carried."""
    root = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(root / "home"))  # where FLARE keeps its audit of requests
        fingerprint = medflare("kits", "authority", PROFILE, root / "centre/ca").output.split()[1]
        for name, (org, *kind) in PARTICIPANTS.items():
            here, post = root / name, root / "centre/post"
            post.mkdir(parents=True, exist_ok=True)
            medflare("kits", "request", name, "--org", org, *kind, "--out", here)
            shutil.copy(here / name / f"{name}.request.zip", post)
            medflare("kits", "approve", post / f"{name}.request.zip", "--profile", PROFILE,
                     "--authority", root / "centre/ca")  # fmt: skip
            shutil.copy(post / f"{name}.signed.zip", here)
            medflare("kits", "assemble", here / f"{name}.signed.zip", "--request", here / name,
                     "--fingerprint", fingerprint, "--out", here / "kits")  # fmt: skip
    (root / "fingerprint").write_text(fingerprint)
    return root


@pytest.mark.parametrize("name", PARTICIPANTS)
def test_the_kit_is_hardened_and_its_certificate_is_of_the_authority(world: Path, name: str) -> None:
    (kit,) = find_kits(world / name / "kits")
    assert kit.name == name
    assert check(kit.folder, authority=(world / "fingerprint").read_text()) == []


@pytest.mark.parametrize("name", PARTICIPANTS)
def test_the_private_key_is_nowhere_but_at_its_owner(world: Path, name: str) -> None:
    secret = (world / name / name / f"{name}.key").read_bytes()
    parts = (secret.strip(), load_pem_private_key(secret, None).private_bytes(
        Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()))  # fmt: skip
    elsewhere = [
        path for path in world.rglob("*") if path.is_file() and path.relative_to(world).parts[0] != name
    ]
    assert len(elsewhere) > 20
    for path in elsewhere:
        contents = [path.read_bytes()]
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                contents += [archive.read(member) for member in archive.namelist()]
        assert not [part for part in parts for content in contents if part in content], path


def test_keys_are_for_their_owner_only(world: Path) -> None:
    assert {mode(path) for path in world.rglob("*.key")} == {"0600"}


def test_there_is_no_key_for_encryption(world: Path) -> None:
    assert not [*world.rglob("*.tenseal")]


def test_sites_dial_the_host_and_port_of_the_profile(world: Path) -> None:
    (kit,) = find_kits(world / "site-1/kits")
    assert '"target": "localhost:18002"' in (kit.startup / "fed_client.json").read_text()
    assert local(kit.folder, "authorization.json")["permissions"]["lead"]["byoc"] == "none"


def test_another_authority_is_noticed_by_its_fingerprint(world: Path, tmp_path: Path) -> None:
    right = (world / "fingerprint").read_text().strip()
    wrong = right[:-1] + ("1" if right[-1] == "0" else "0")
    with pytest.raises(RunError, match="fingerprint does not match"):
        distributed.assemble(world / "site-1/site-1.signed.zip", world / "site-1/site-1", wrong, tmp_path)


def test_a_key_that_the_certificate_is_not_for_is_refused(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "site-2/site-2", tmp_path / "site-2")
    shutil.copy(world / "site-1/site-1/site-1.key", tmp_path / "site-2/site-2.key")
    fingerprint, signed = (world / "fingerprint").read_text(), world / "site-2/site-2.signed.zip"
    with pytest.raises(RunError, match=r"nvflare package ended with .*[Kk]ey"):
        distributed.assemble(signed, tmp_path / "site-2", fingerprint, tmp_path / "kits")


def test_a_changed_signed_file_is_refused(world: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(world / "site-1/site-1.signed.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["signed.json"] = files["signed.json"].replace(b"hospital_a", b"hospital_b")
    with zipfile.ZipFile(tmp_path / "site-1.signed.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    fingerprint = (world / "fingerprint").read_text()
    with pytest.raises(RunError, match="metadata signature is invalid"):
        distributed.assemble(
            tmp_path / "site-1.signed.zip", world / "site-1/site-1", fingerprint, tmp_path / "kits"
        )


@pytest.mark.parametrize(("name", "kind", "role", "message"), [
    ("../site-1", "client", "", "letters, digits"),
    ("site-1", "client", "lead", "others have none"),
    ("a@b.org", "admin", "project_admin", "one of lead, org_admin, member"),
])  # fmt: skip
def test_a_request_that_cannot_be_signed_is_refused_at_once(
    tmp_path: Path, name: str, kind: distributed.Kind, role: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        distributed.request(name, kind, "hospital_a", tmp_path, role=role)
    assert not [*tmp_path.iterdir()]
