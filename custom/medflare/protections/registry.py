# SPDX-License-Identifier: Apache-2.0
"""The table of protections. A new one is a subclass of `Protection` and a line here, or in a package."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from medflare.core.errors import ConfigError
from medflare.core.plugins import find_plugin
from medflare.data.settings.policy import PROTECTIONS as SEALS
from medflare.protections.base import Protection
from medflare.protections.encryption import HomomorphicEncryption
from medflare.protections.masking import Masking
from medflare.protections.none import NoProtection

PROTECTIONS: dict[str, Protection] = {
    protection.name: protection for protection in (NoProtection(), Masking(), HomomorphicEncryption())
}


def get_protection(name: str) -> Protection:
    """Return the protection of that name, of medflare or of a package that is admitted here.

    Raises:
        ConfigError: there is none, its package is not admitted, or it is no protection of that name.
    """
    if name in PROTECTIONS:
        return PROTECTIONS[name]
    offered = find_plugin("protections", name)
    if offered is None:
        raise ConfigError(f"'{name}' is none of {', '.join(PROTECTIONS)}.")
    if not isinstance(offered, Protection) or offered.name != name or offered.seal not in (*SEALS, name):
        raise ConfigError(
            f"protection '{name}': what its package offers is no Protection of that name whose seal is "
            f"'{name}' or one of {', '.join(SEALS)}."
        )
    return offered


def _known(name: str) -> str:
    try:
        return get_protection(name).name
    except ConfigError as error:
        raise ValueError(str(error)) from None


ProtectionName = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(PROTECTIONS)})
]
"""A setting that names a protection of this machine."""
