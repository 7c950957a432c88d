# SPDX-License-Identifier: Apache-2.0
"""Write `workspace_templates/{server,site}/local` from a freshly provisioned and hardened kit.

`python -m medflare.deployment.kit_templates` after a change of hardening or the allow-list; a test compares.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from medflare.core.errors import RunError
from medflare.deployment.hardening import harden, wanted_files
from medflare.deployment.kits import Kit, find_kits

TEMPLATES = Path("workspace_templates")
PROJECT = Path("provisioning/project.yml")


def template_files(kit: Kit) -> dict[str, str]:
    """Return, by name, the text of the files that hardening writes into this kit's `local/`."""
    names = [*wanted_files(kit), *(["site.yaml"] if kit.role == "site" else [])]
    return {name: (kit.local / name).read_text(encoding="utf-8") for name in names}


def fresh_kits(project: Path, workspace: Path) -> list[Kit]:
    """Provision a project into `workspace`, harden the kits and return them.

    Raises:
        RunError: FLARE refused; with its output.
    """
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project), "-w", str(workspace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    if done.returncode:
        output = f"{done.stderr}{done.stdout}"
        raise RunError(f"nvflare provision -p {project} ended with {done.returncode}: {output}")
    harden(workspace)
    return find_kits(workspace)


def write_templates(kits: list[Kit], templates: Path) -> list[Path]:
    """Write the templates of the first server and the first site among `kits`; return the files."""
    written = []
    for role in ("server", "site"):
        folder = templates / role / "local"
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in template_files(next(kit for kit in kits if kit.role == role)).items():
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    return written


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for path in write_templates(fresh_kits(PROJECT, Path(scratch)), TEMPLATES):
            print(path)
