# SPDX-License-Identifier: Apache-2.0
"""${NAME} in the paths of site.yaml, from the environment."""

from __future__ import annotations

import os
import re
from typing import Any

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


def expand_variables(value: Any) -> Any:
    """Return a setting with its text, or every text of its list, expanded; anything else as it is."""
    if isinstance(value, list | tuple):
        return [expand_variables(item) for item in value]
    return expand_text(value) if isinstance(value, str) else value
