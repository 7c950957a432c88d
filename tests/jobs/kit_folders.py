# SPDX-License-Identifier: Apache-2.0
"""Startup kits of the repository's own project, made by FLARE's own command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

REPOSITORY = Path(__file__).parents[2]
PROJECT = REPOSITORY / "provisioning" / "project.yml"
PROFILE = REPOSITORY / "provisioning" / "profile.yml"
TEMPLATES = REPOSITORY / "workspace_templates"
SITES = ("site-1", "site-2", "site-3", "site-4")


def provision(workspace: Path, project: Path = PROJECT) -> Path:
    """Runs `nvflare provision` as `make provision` does; returns the newest prod_NN folder."""
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(workspace)]
    done = subprocess.run(
        [*command, "--force"], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted((workspace / "medflare").glob("prod_*"))[-1]


def project_with(folder: Path, **site: str) -> Path:
    """The project and one more participant."""
    document = yaml.safe_load(PROJECT.read_text())
    document["participants"].append(site)
    path = folder / "project.yml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def local(kit: Path, name: str) -> dict[str, Any]:
    """A JSON file of a kit's `local/`."""
    return json.loads((kit / "local" / name).read_text())


def mode(path: Path) -> str:
    """Permission bits, octal."""
    return f"{path.stat().st_mode & 0o777:04o}"
