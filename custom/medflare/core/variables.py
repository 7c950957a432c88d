# SPDX-License-Identifier: Apache-2.0
"""The paths of site.yaml: ${NAME} from the environment, and what relative ones count from."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

from pydantic import BeforeValidator

from medflare.core.config import Settings

T = TypeVar("T")

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_text(value: str) -> str:
    """Return `value` with every ${NAME} from the environment.

    Raises:
        ValueError: names every variable that is not set.
    """
    missing = sorted({name for name in _VARIABLE.findall(value) if not os.environ.get(name)})
    if missing:
        raise ValueError(
            f"environment variable {' and '.join(missing)} is not set; export it before the run "
            "or write the folder itself"
        )
    return _VARIABLE.sub(lambda match: os.environ[match.group(1)], value)


def _expand_path(value: Any) -> Any:
    return expand_text(value) if isinstance(value, str) else value


ExpandedPath = Annotated[Path, BeforeValidator(_expand_path)]
"""A path in site.yaml, with every ${NAME} from the environment."""


def with_absolute_paths(value: T, base: Path) -> T:
    """Return settings, or a value of them, with every relative path made absolute from `base`."""
    resolved: Any = value
    if isinstance(value, Path):
        resolved = base / value.expanduser()
    elif isinstance(value, tuple):
        resolved = tuple(with_absolute_paths(item, base) for item in value)
    elif isinstance(value, dict):
        resolved = {key: with_absolute_paths(item, base) for key, item in value.items()}
    elif isinstance(value, Settings):
        names = value.model_fields_set
        resolved = value.model_copy(
            update={name: with_absolute_paths(getattr(value, name), base) for name in names}
        )
    return cast(T, resolved)
