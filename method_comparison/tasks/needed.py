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


def public_data(folder: str) -> Path:
    """Return a folder of public data.

    Raises:
        NotHereError: MEDFLARE_DATA is not set, or the folder is not there.
    """
    if not os.environ.get(VARIABLE):
        raise NotHereError(f"{VARIABLE} is not set: export the folder that holds {folder}.")
    root = Path(os.environ[VARIABLE])
    if not (root / folder).is_dir():
        raise NotHereError(f"{VARIABLE} is {root} and has no folder {folder}.")
    return root / folder


def added_model(name: str) -> Path:
    """Return the folder of a model of `medflare models`.

    Raises:
        NotHereError: there is none of this name on this machine.
    """
    try:
        return stored_model(name)
    except ConfigError as error:
        raise NotHereError(str(error)) from None


def added_models(*names: str | None) -> list[Path]:
    """Return the folders of the models of `medflare models` that are named; None is the embedded one.

    Raises:
        NotHereError: as `added_model`.
    """
    return [added_model(name) for name in names if name is not None]


def real_radiographs(partition: str) -> list[Path]:
    """Return the folder of public radiographs and reports that partitions called "real" read.

    Raises:
        NotHereError: it is not on this machine.
    """
    return [public_data("cxr_multisite")] if partition == "real" else []
