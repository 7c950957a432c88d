# SPDX-License-Identifier: Apache-2.0
"""provisioning/project.yml makes a kit with a certificate for every participant it names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

PROJECT = Path(__file__).parents[2] / "provisioning" / "project.yml"


def test_provisioning_makes_a_certified_kit_for_each_participant(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(PROJECT), "-w", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    kits = tmp_path / "medflare" / "prod_00"
    wanted = {p["name"] for p in yaml.safe_load(PROJECT.read_text())["participants"]}
    assert wanted <= {folder.name for folder in kits.iterdir()}, done.stdout + done.stderr
    for site in wanted:
        startup = kits / site / "startup"
        certificate, root = (
            x509.load_pem_x509_certificate((startup / name).read_bytes())
            for name in ("server.crt" if site == "flserver" else "client.crt", "rootCA.pem")
        )
        certificate.verify_directly_issued_by(root)
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        assert [name.value for name in names] == [site]
