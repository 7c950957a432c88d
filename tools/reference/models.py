# SPDX-License-Identifier: Apache-2.0
"""Markdown tables from pydantic models: key, type, default and what it is."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

_SECTION = re.compile(r"^(\w[\w, ]*): (.+)$")


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Return a Markdown table; bars and line breaks in cells are made harmless."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in row) + " |")
    return "\n".join(lines)


def model_sections(
    model: type[BaseModel], path: str, done: set[type[BaseModel]], level: int = 2
) -> list[str]:
    """Return the sections of `model` and of every model that its fields hold, each model once.

    Args:
        path: the key under which a document has the model; the section's heading.
        done: models that have a section already; extended here.
    """
    if model in done:
        return []
    done.add(model)
    texts = field_texts(model)
    rows = [
        (
            f"`{name}`",
            type_name(field.annotation),
            default_of(field),
            field.description or texts.get(name) or _meaning_of_type(field.annotation),
        )
        for name, field in model.model_fields.items()
    ]
    about = first_paragraph(model)
    parts = [f"{'#' * level} {path}", about, table(("key", "type", "default", "meaning"), rows)]
    for name, field in model.model_fields.items():
        for inner in models_in(field.annotation):
            parts += model_sections(inner, f"{path} · {name}", done, level)
    return [part for part in parts if part]


def _meaning_of_type(annotation: Any) -> str:
    """Return what a field's type says of it: of a block its class's first sentence, of a fixed word that."""
    inner = list(models_in(annotation))
    if len(inner) == 1:
        return first_paragraph(inner[0]).split(". ")[0].rstrip(".") + "; below"
    fixed = typing.get_origin(annotation) is typing.Literal and len(typing.get_args(annotation)) == 1
    return "the name of this block" if fixed else ""


def first_paragraph(thing: Any) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def field_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return field -> what its class says of it, in a string below the field or under `Attributes:`."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if not (isinstance(base, type) and issubclass(base, BaseModel)) or base is BaseModel:
            continue
        found |= _attributes_section(inspect.cleandoc(base.__doc__ or ""))
        found |= _strings_below(base)
    return found


def _strings_below(model: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(model))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
            found[field.target.id] = " ".join(str(after.value.value).split())
    return found


def _attributes_section(doc: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if "Attributes:" not in doc:
        return found
    section = textwrap.dedent(doc.split("Attributes:\n", 1)[1])
    entries = re.split(r"\n(?=\S)", section.strip("\n"))
    for entry in entries:
        match = _SECTION.match(" ".join(entry.split()))
        if match:
            found |= dict.fromkeys((name.strip() for name in match[1].split(",")), match[2])
    return found


def default_of(field: FieldInfo) -> str:
    """Return a field's default as JSON would write it; `required` if there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "required"
    return "" if isinstance(value, BaseModel) or value == "" else f"`{_plain(value)}`"


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ", ".join(_plain(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_plain(item)}" for key, item in value.items()) + "}"
    return str(value)


def type_name(annotation: Any) -> str:
    """Return a short name of a type: `int`, `one of a, b`, `list of str`."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return type_name(args[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(f"`{_plain(value)}`" for value in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys("null" if arg is type(None) else type_name(arg) for arg in args))
    if origin is dict or (origin and str(origin).endswith("Mapping'>")):
        return f"mapping {type_name(args[0])} → {type_name(args[1])}"
    if origin in (list, tuple, set, frozenset) or (origin and str(origin).endswith("Sequence'>")):
        return "list of " + type_name(next((arg for arg in args if arg is not Ellipsis), Any))
    if annotation is Any:
        return "any"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "block"
    name = getattr(annotation, "__name__", str(annotation))
    return {"str": "text", "int": "int", "float": "number", "bool": "true or false", "Path": "path"}.get(
        name, name
    )


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a type holds."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for arg in typing.get_args(annotation):
        yield from models_in(arg)
