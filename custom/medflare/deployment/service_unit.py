# SPDX-License-Identifier: Apache-2.0
"""A systemd unit that keeps a kit's FLARE process running: after a crash, and after the machine starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from medflare.core.errors import ConfigError

START = Path("startup/sub_start.sh")
UNIT = """\
[Unit]
Description=medflare: {name}
Wants=network-online.target
After=network-online.target

[Service]
Type=simple
{user}WorkingDirectory={folder}
Environment={path}
# Ends job processes that a crash has left without a parent, and closes the records of dead runs.
ExecStartPre=-{medflare} runs reconcile {kit}
ExecStart=/bin/bash {start} --once
Restart=always
RestartSec=10
# A job's process and its worker go with their parent: `medflare resume` goes on with their run.
KillMode=control-group
TimeoutStopSec=60
UMask=0077
NoNewPrivileges=yes

[Install]
WantedBy=multi-user.target
"""


def service_unit(kit: Path, user: str = "", programs: Path | None = None) -> str:
    """Return the unit of a kit.

    Args:
        kit: of the server or of a site.
        user: as whom it runs; empty for root.
        programs: folder of the programs `medflare` and `python3`; this installation's by default.

    Raises:
        ConfigError: the folder is no kit of a server or a site, or a name cannot stand in a unit.
    """
    kit = kit.resolve()
    if not (kit / START).is_file():
        raise ConfigError(
            f"{kit}: holds no {START}, which starts a server or a site. Name the folder of such a kit; an "
            "admin's needs no service."
        )
    if user and not user.replace("-", "").replace("_", "").isalnum():
        raise ConfigError(f"user {user!r}: expected letters, digits, '-' and '_'.")
    folder = (programs or Path(sys.executable).parent).absolute()
    return UNIT.format(
        name=_escaped(kit.name),
        user=f"User={user}\n" if user else "",
        folder=_escaped(str(kit)),  # which systemd takes as it stands
        kit=_quoted(kit),
        path=_quoted(f"PATH={folder}{os.pathsep}/usr/local/bin:/usr/bin:/bin"),
        medflare=_quoted(folder / "medflare"),
        start=_quoted(kit / START),
    )


def _escaped(text: str) -> str:
    """Return a text as a unit holds it: systemd reads `%` and line breaks in its own way."""
    if any(ord(letter) < 32 for letter in text):
        raise ConfigError(f"{text!r}: holds characters that no unit can hold; rename the folder.")
    return text.replace("%", "%%")


def _quoted(value: Path | str) -> str:
    text = _escaped(str(value)).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{text}"'
