# SPDX-License-Identifier: Apache-2.0
"""The paths of site.yaml: ${NAME} from the environment, and what relative ones count from."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin

from pydantic import BaseModel, BeforeValidator

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


def document_with_absolute_paths(node: Any, kind: Any, base: Path) -> Any:
    """Return a document of settings as it was read, with relative paths made absolute from `base`.

    A text is a path where its field is one: a label or a column that is named like a field is not.

    Args:
        kind: the settings class of the document, or the type of a part of it.
    """
    kinds = _kinds(kind)
    if isinstance(node, Mapping):
        return {
            key: document_with_absolute_paths(value, Union[(None, *_of_key(kinds, str(key)))], base)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [document_with_absolute_paths(item, kind, base) for item in node]
    if not isinstance(node, str) or node.startswith(("~", "${")):
        return node
    blocks = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Settings)]
    of_block = [kind.shorthand for kind in blocks if kind.shorthand]
    named = [part for key in of_block for found in _of_key(kinds, key) for part in _kinds(found)]
    return str(base / node) if Path in (*kinds, *named) else node


def _kinds(kind: Any) -> list[Any]:
    """Return what a value, or each of several, may be: alternatives of a union, items of a sequence."""
    origin = get_origin(kind)
    if origin is Annotated:
        return _kinds(get_args(kind)[0])
    if origin in (Union, UnionType, tuple, list):
        return [found for part in get_args(kind) for found in _kinds(part)]
    return [kind]


def _of_key(kinds: list[Any], key: str) -> list[Any]:
    """Return the types that the value of a key may have in a mapping of one of these types."""
    found = []
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            field = kind.model_fields.get(key)
            found += [] if field is None else [field.annotation]
        elif get_origin(kind) is dict:
            found.append(get_args(kind)[1])
    return found
