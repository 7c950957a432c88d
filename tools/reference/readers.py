# SPDX-License-Identifier: Apache-2.0
"""docs/reference/readers.md: the layout that each reader expects, its columns and its settings."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from inspect import cleandoc
from typing import Any

from medflare.data.settings.formats import FORMATS
from tools.reference.models import table


def page() -> str:
    """Return the page on formats: each reader's docstring, its fields with their columns, its settings."""
    parts = [
        "# Formats of data",
        "Generated from the code by `python -m tools.reference`. `cohort.format` of "
        "[site.yaml](site_yaml.md) names one of these. `medflare cohort init FOLDER` guesses it and writes "
        "the file; `medflare cohort inspect` shows what is read and what is left out.",
        table(("format", "what it is"), [(f"[`{name}`](#{name})", _summary(name)) for name in FORMATS]),
    ]
    for name, settings in FORMATS.items():
        parts += [f"## {name}", _description(name)]
        fields = getattr(_module(name), "FIELDS", None)
        if fields:
            required = (*getattr(_module(name), "REQUIRED", ()), *getattr(_module(name), "IDENTIFIERS", ()))
            parts.append(table(("our field", "columns tried, in this order", ""), _rows(fields, required)))
        parts.append(f"Settings of its own: {', '.join(f'`{key}`' for key in sorted(settings)) or 'none'}.")
    return "\n\n".join(parts) + "\n"


def _module(name: str) -> Any:
    return importlib.import_module(f"medflare.data.readers.{name}")


def _summary(name: str) -> str:
    return _escaped(cleandoc(_module(name).__doc__).split("\n\n")[0].replace("\n", " "))


def _description(name: str) -> str:
    return _escaped(cleandoc(_module(name).__doc__))


def _escaped(text: str) -> str:
    """Return text in which Markdown reads marks as letters, except where backticks make it code."""
    parts = text.split("`")
    for index in range(0, len(parts), 2):
        parts[index] = parts[index].replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
    return "`".join(parts)


def _rows(fields: Mapping[str, Any], required: tuple[str, ...]) -> list[tuple[str, str, str]]:
    rows = []
    for name, columns in fields.items():
        tried = [] if columns is None else columns if isinstance(columns, list) else [columns]
        listed = ", ".join(f"`{column}`" for column in tried) or "none; name it in `columns`"
        rows.append((f"`{name}`", listed, "required" if name in required else ""))
    return rows
