# SPDX-License-Identifier: Apache-2.0
"""The exact bytes that are signed, committed to or used to derive keys, and bytes as text in JSON."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from medflare.secure_aggregation.masking_errors import BrokenProtocol

DOMAIN = "medflare secure aggregation 1"


def statement(purpose: str, **words: Any) -> bytes:
    """Return unambiguous bytes of JSON values; statements of two purposes are never the same."""
    return json.dumps([DOMAIN, purpose, words], sort_keys=True, separators=(",", ":")).encode()


def commitment(about: bytes, secret: bytes) -> str:
    """Return the sha256 of a secret of full entropy under a statement; hides it, and allows no other."""
    return hashlib.sha256(hashlib.sha256(about).digest() + secret).hexdigest()


def encode_bytes(data: bytes) -> str:
    return base64.b64encode(data).decode()


def decode_bytes(message: Mapping[str, Any], key: str, size: int | None, *, phase: str, site: str) -> bytes:
    """Return the bytes under a key of a site's message.

    Raises:
        BrokenProtocol: they are missing or of another size.
    """
    try:
        data = base64.b64decode(message[key], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        data = None
    if data is None or (size is not None and len(data) != size):
        expected = f"{size} bytes" if size is not None else "bytes"
        received = "none" if data is None else f"{len(data)} bytes"
        raise BrokenProtocol(
            f"secure aggregation, {phase}: the message of '{site}' has {received} under '{key}', "
            f"expected {expected} in base64.",
            phase=phase,
            sites=[site],
        )
    return data
