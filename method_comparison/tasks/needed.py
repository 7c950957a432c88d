# SPDX-License-Identifier: Apache-2.0
"""Data and models that some units need and a machine may not have."""

from __future__ import annotations

import os
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.core.model_folders import stored_model

VARIABLE = "MEDFLARE_DATA"


class NotHereError(ConfigError):
    """Something that a unit needs is not on this machine: the unit is left out, the others train."""


def public_data(*folders: str) -> Path:
    """Return the folder of public data.

    Args:
        folders: below it, which must be there.

    Raises:
        NotHereError: MEDFLARE_DATA is not set, or one of them is not there.
    """
    words = " and ".join(folders)
    if not os.environ.get(VARIABLE):
        raise NotHereError(f"{VARIABLE} is not set: export the folder that holds {words}.")
    root = Path(os.environ[VARIABLE])
    if missing := [name for name in folders if not (root / name).is_dir()]:
        raise NotHereError(f"{VARIABLE} is {root} and has no folder {', '.join(missing)}; expected {words}.")
    return root


def added_model(name: str) -> Path:
    """Return the folder of a model of `medflare models`.

    Raises:
        NotHereError: there is none of this name on this machine.
    """
    try:
        return stored_model(name)
    except ConfigError as error:
        raise NotHereError(str(error)) from None
