# SPDX-License-Identifier: Apache-2.0
"""How the protocol writes down bytes in JSON, and what exactly is signed, derived from or committed to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from medflare.secure_aggregation.errors import BrokenProtocol

DOMAIN = "medflare secure aggregation 1"


def statement(purpose: str, **words: Any) -> bytes:
    """Unambiguous bytes of JSON values under a purpose: no statement can be taken for one of another."""
    return json.dumps([DOMAIN, purpose, words], sort_keys=True, separators=(",", ":")).encode()


def commitment(about: bytes, secret: bytes) -> str:
    """sha256 of a secret of full entropy under a statement; hides it, and allows no other."""
    return hashlib.sha256(hashlib.sha256(about).digest() + secret).hexdigest()


def to_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def take_bytes(message: Mapping[str, Any], key: str, size: int | None, *, phase: str, site: str) -> bytes:
    """The bytes under a key of a site's message; BrokenProtocol if they are missing or of another size."""
    try:
        data = base64.b64decode(message[key], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        data = None
    if data is None or (size is not None and len(data) != size):
        expected = f"{size} bytes" if size is not None else "bytes"
        found = "none" if data is None else f"{len(data)} bytes"
        raise BrokenProtocol(
            f"secure aggregation, {phase}: the message of '{site}' has {found} under '{key}', "
            f"expected {expected} in base64.",
            phase=phase,
            sites=[site],
        )
    return data
