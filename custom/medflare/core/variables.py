# SPDX-License-Identifier: Apache-2.0
"""${NAME} in the paths of site.yaml, from the environment."""

from __future__ import annotations

import os
import re
from typing import Any

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand_text(value: str) -> str:
    """`value` with every ${NAME} from the environment; ValueError names a variable that is not set."""
    missing = sorted({name for name in _VARIABLE.findall(value) if not os.environ.get(name)})
    if missing:
        raise ValueError(
            f"environment variable {' and '.join(missing)} is not set; export it before the run "
            "or write the folder itself"
        )
    return _VARIABLE.sub(lambda found: os.environ[found.group(1)], value)


def expand_variables(value: Any) -> Any:
    """Every text of a setting expanded, one or a list of them; anything else as it is."""
    if isinstance(value, list | tuple):
        return [expand_variables(item) for item in value]
    return expand_text(value) if isinstance(value, str) else value
