# SPDX-License-Identifier: Apache-2.0
"""The table of protections. A new one is a subclass of `Protection` and a line here."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from medflare.core.errors import ConfigError
from medflare.protections.base import Protection
from medflare.protections.encryption import HomomorphicEncryption
from medflare.protections.masking import Masking
from medflare.protections.none import NoProtection

PROTECTIONS: dict[str, Protection] = {
    protection.name: protection for protection in (NoProtection(), Masking(), HomomorphicEncryption())
}


def get_protection(name: str) -> Protection:
    """Return the protection of that name.

    Raises:
        ConfigError: there is none; it lists those that exist.
    """
    if name not in PROTECTIONS:
        raise ConfigError(f"'{name}' is none of {', '.join(PROTECTIONS)}.")
    return PROTECTIONS[name]


def _known(name: str) -> str:
    if name not in PROTECTIONS:
        raise ValueError(f"expected one of {', '.join(PROTECTIONS)}")
    return name


ProtectionName = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(PROTECTIONS)})
]
"""A setting that names a protection of the table."""
