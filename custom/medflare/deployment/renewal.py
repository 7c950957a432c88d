# SPDX-License-Identifier: Apache-2.0
"""Certificates of a provisioning workspace: when they expire, and how new ones are made.

FLARE keeps every certificate and key in `state/cert.json` and uses them again at each provisioning; one is
renewed by taking its entry out there. The authority stays, so kits of the others go on working.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from medflare.core.errors import ConfigError
from medflare.deployment.kits import read_object
from medflare.wire.durable import write_json

STATE = "state/cert.json"
_AUTHORITY = ("root_cert", "root_pri_key")


def expiry(workspace: Path) -> dict[str, datetime]:
    """Return, by participant, when its certificate expires; the authority's under the empty name.

    Raises:
        ConfigError: the folder is not the one project of a provisioning workspace.
    """
    state = read_object(_state_file(workspace))
    ends = {"": _end(state["root_cert"])}
    return ends | {name: _end(pair["cert"]) for name, pair in _participants(state).items()}


def renew(workspace: Path, names: Sequence[str]) -> None:
    """Have the next provisioning make new keys and certificates for these participants.

    Raises:
        ConfigError: one of them is unknown, or the authority itself has expired; nothing is changed then.
    """
    file = _state_file(workspace)
    state = read_object(file)
    known = _participants(state)
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise ConfigError(f"{file}: has no certificate of {', '.join(unknown)}. It has: {', '.join(known)}")
    if _end(state["root_cert"]) <= datetime.now(UTC):
        raise ConfigError(
            f"{file}: the authority ended on {_end(state['root_cert']):%Y-%m-%d}; no certificate of it can "
            "be renewed. Provision into a new folder and replace every kit"
        )
    write_json(file, {name: value for name, value in state.items() if name not in names})
    os.chmod(file, 0o600)


def _state_file(workspace: Path) -> Path:
    states = [workspace / STATE] if (workspace / STATE).is_file() else sorted(workspace.glob(f"*/{STATE}"))
    if len(states) != 1:
        raise ConfigError(
            f"{workspace}: expected the folder of one project with {STATE}, as `nvflare provision -w` makes "
            f"it; found {len(states)}"
        )
    return states[0]


def _participants(state: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {name: pair for name, pair in state.items() if name not in _AUTHORITY}


def _end(pem: str) -> datetime:
    return x509.load_pem_x509_certificate(pem.encode("ascii")).not_valid_after_utc
