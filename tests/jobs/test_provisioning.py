# SPDX-License-Identifier: Apache-2.0
"""provisioning/project.yml: who gets a kit, and that provisioning again keeps the authority and every key."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID
from kit_folders import PROJECT, SITES, mode, project_with, provision

from medflare.core.errors import ConfigError
from medflare.deployment import renewal
from medflare.deployment.hardening import harden
from medflare.deployment.kit_check import check
from medflare.secure_aggregation.encryption_keys import read_server_context, read_site_context
from medflare.secure_aggregation.encryption_parameters import PRESETS, SERVER_FILE, SITE_FILE

PARTICIPANTS = yaml.safe_load(PROJECT.read_text())["participants"]
NAMES = {participant["name"] for participant in PARTICIPANTS}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace provisioned once; tests that go on work on a copy."""
    workspace = tmp_path_factory.mktemp("provisioned") / "kits"
    provision(workspace)
    return workspace


@pytest.fixture
def workspace(first: Path, tmp_path: Path) -> Path:
    return shutil.copytree(first, tmp_path / "kits")


def startup(workspace: Path, number: str, name: str) -> dict[str, bytes]:
    """Certificate, key and root of a kit."""
    folder = workspace / "medflare" / f"prod_{number}" / name / "startup"
    role = "server" if name == "flserver" else "client"
    return {file: (folder / file).read_bytes() for file in (f"{role}.crt", f"{role}.key", "rootCA.pem")}


def test_there_are_three_hospitals_an_unseen_one_and_all_four_roles() -> None:
    kinds = [participant["type"] for participant in PARTICIPANTS]
    assert kinds.count("server") == 1
    assert [p["name"] for p in PARTICIPANTS if p["type"] == "client"] == [*SITES]
    roles = {p["role"] for p in PARTICIPANTS if p["type"] == "admin"}
    assert roles == {"project_admin", "org_admin", "lead", "member"}


def test_provisioning_makes_a_certified_kit_for_each_participant(first: Path) -> None:
    kits = first / "medflare" / "prod_00"
    assert {folder.name for folder in kits.iterdir()} == NAMES
    for name in NAMES:
        files = startup(first, "00", name)
        certificate, root = (
            x509.load_pem_x509_certificate(
                next(content for file, content in files.items() if file.endswith(end))
            )
            for end in (".crt", "rootCA.pem")
        )
        certificate.verify_directly_issued_by(root)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert [found.value for found in names] == [name]


def test_the_encryption_key_is_the_same_at_all_hospitals_and_not_at_the_server(first: Path) -> None:
    kits = first / "medflare" / "prod_00"
    keys = [read_site_context(kits / site / "startup" / SITE_FILE) for site in SITES]
    assert len({key.key_id for key in keys}) == 1
    server = read_server_context(kits / "flserver/startup" / SERVER_FILE)
    assert (keys[0].secret, server.secret) == (True, False)
    assert server.fingerprint == keys[0].fingerprint


def test_encryption_has_the_recommended_parameters() -> None:
    builders = yaml.safe_load(PROJECT.read_text())["builders"]
    (given,) = [builder["args"] for builder in builders if builder["path"].endswith("HEBuilder")]
    wanted = PRESETS["CKKS"]
    assert given["coeff_mod_bit_sizes"] == [*wanted.coeff_mod_bit_sizes]
    for name in ("scheme", "poly_modulus_degree", "scale_bits"):
        assert given[name] == getattr(wanted, name)


def test_provisioning_again_keeps_authority_and_keys(workspace: Path) -> None:
    provision(workspace)
    for name in NAMES:
        assert startup(workspace, "01", name) == startup(workspace, "00", name)


def test_provisioning_again_makes_another_encryption_key_for_everybody(workspace: Path) -> None:
    provision(workspace)
    made = [(workspace / f"medflare/prod_{n}/site-1/startup/client_context.tenseal").read_bytes()
            for n in ("00", "01")]  # fmt: skip
    assert made[0] != made[1]


def test_a_hospital_that_joins_later_is_certified_by_the_same_authority(
    workspace: Path, tmp_path: Path
) -> None:
    kits = provision(workspace, project_with(tmp_path, name="site-5", type="client", org="hospital_e"))
    assert kits.name == "prod_01"
    for name in NAMES:
        assert startup(workspace, "01", name) == startup(workspace, "00", name)
    assert (
        startup(workspace, "01", "site-5")["rootCA.pem"] == startup(workspace, "00", "flserver")["rootCA.pem"]
    )
    harden(kits)
    assert check(kits) == []


def test_a_project_without_encryption_has_no_signatures_and_is_as_good_otherwise(tmp_path: Path) -> None:
    document = yaml.safe_load(PROJECT.read_text())
    document["builders"] = [b for b in document["builders"] if not b["path"].endswith("HEBuilder")]
    (tmp_path / "project.yml").write_text(yaml.safe_dump(document, sort_keys=False))
    kits = provision(tmp_path / "kits", tmp_path / "project.yml")
    assert not [*kits.rglob("*.tenseal"), *kits.glob("*/startup/signature.json")]
    harden(kits)
    assert check(kits) == []


def test_hardening_reaches_every_generation_and_the_state(workspace: Path) -> None:
    provision(workspace)
    harden(workspace)
    assert check(workspace) == []
    assert mode(workspace / "medflare/state/cert.json") == "0600"
    assert mode(workspace / "medflare/prod_00/site-1/startup") == "0700"


def test_a_renewed_site_gets_a_new_key_of_the_same_authority_and_the_others_keep_theirs(
    workspace: Path,
) -> None:
    renewal.renew(workspace, ["site-2"])
    provision(workspace)
    old, new = (startup(workspace, number, "site-2") for number in ("00", "01"))
    assert new["client.key"] != old["client.key"]
    assert new["client.crt"] != old["client.crt"]
    assert new["rootCA.pem"] == old["rootCA.pem"]
    for name in NAMES - {"site-2"}:
        assert startup(workspace, "01", name) == startup(workspace, "00", name)
    harden(workspace)
    assert check(workspace) == []


def test_the_authority_outlives_the_certificates_by_years(first: Path) -> None:
    ends = renewal.expiry(first)
    assert set(ends) == NAMES | {""}
    assert min((ends[""] - ends[name]).days for name in NAMES) > 8 * 365


def test_renewing_somebody_unknown_changes_nothing(workspace: Path) -> None:
    before = (workspace / "medflare/state/cert.json").read_bytes()
    with pytest.raises(ConfigError, match="has no certificate of site-9"):
        renewal.renew(workspace, ["site-1", "site-9"])
    assert (workspace / "medflare/state/cert.json").read_bytes() == before


def test_a_folder_that_was_not_provisioned_cannot_be_renewed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 0"):
        renewal.renew(tmp_path, ["site-1"])
