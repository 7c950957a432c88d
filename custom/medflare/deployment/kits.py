# SPDX-License-Identifier: Apache-2.0
"""Startup kits on disk: which folder belongs to whom, and reading and writing their files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from medflare.core.errors import ConfigError

KitRole = Literal["server", "site", "admin"]
_MARKS: dict[str, KitRole] = {
    "fed_server.json": "server",
    "fed_client.json": "site",
    "fed_admin.json": "admin",
}
SECRETS = ("*.key", "*.tenseal", "cert.json")
"""File names that hold a private or shared key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kit:
    """The startup kit of one participant."""

    folder: Path
    role: KitRole

    @property
    def name(self) -> str:
        """The participant's name as the startup file has it; the folder may be called anything."""
        if self.role == "admin":  # `nvflare poc` leaves the name empty there
            admin = read_object(self.startup / "fed_admin.json")["admin"]
            return str(admin.get("username") or self.folder.name)
        if self.role == "server":
            return str(read_object(self.startup / "fed_server.json")["servers"][0]["admin_server"])
        return str(read_object(self.startup / "fed_client.json")["client"]["fqsn"])

    @property
    def local(self) -> Path:
        """The folder whose files belong to the participant; those of `startup/` are signed."""
        return self.folder / "local"

    @property
    def startup(self) -> Path:
        """The folder with certificate, key and signed files."""
        return self.folder / "startup"


def as_kit(folder: Path) -> Kit | None:
    """Return the kit in `folder`, or None if there is none."""
    for mark, role in _MARKS.items():
        if (folder / "startup" / mark).is_file():
            return Kit(folder=folder, role=role)
    return None


def find_kits(folder: Path) -> list[Kit]:
    """Return every kit in a provisioning workspace, project folder, `prod_NN` folder or kit, by name.

    Raises:
        ConfigError: there is none.
    """
    marks = sorted(
        {mark_file.parent.parent for mark in _MARKS for mark_file in folder.glob(f"**/startup/{mark}")}
    )
    kits = [kit for path in marks if (kit := as_kit(path))]
    if not kits:
        raise ConfigError(
            f"{folder}: no startup kit in it; expected the folder that `nvflare provision -w` wrote, or one "
            "kit with startup/fed_client.json, fed_server.json or fed_admin.json"
        )
    return kits


def effective(kit: Kit, name: str) -> dict[str, Any]:
    """Return what FLARE reads as `local/<name>`: the file itself, else `<name>.default`.

    Raises:
        ConfigError: neither exists, or it is no JSON object.
    """
    for path in (kit.local / name, kit.local / f"{name}.default"):
        if path.is_file():
            return read_object(path)
    raise ConfigError(
        f"{kit.local}: neither {name} nor {name}.default; the kit is incomplete, unpack it again"
    )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; ConfigError where it is something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content
