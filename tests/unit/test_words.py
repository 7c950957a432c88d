# SPDX-License-Identifier: Apache-2.0
"""The package's words: docstrings open with what a thing is or does, names are the field's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "custom" / "medflare"
PRIVATE = {"told", "said", "heard", "lapsed", "evened", "untravelled", "own"}
"""Names of an earlier release that a reader had to have explained: docs/explanation has today's words."""
QUESTION = re.compile(r"(Who|What|Where|When|How|Which)\b")


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of the package with the file in which it stands."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            yield path.relative_to(SOURCE).as_posix(), node


def test_docstrings_open_with_what_the_thing_is_and_not_with_a_question() -> None:
    asked = []
    for file, node in nodes():
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))) if QUESTION.match(text):
                asked.append(f"{file}:{node.lineno}: {text.splitlines()[0]}")
    assert asked == []


def test_no_name_is_of_the_private_language() -> None:
    used = []
    for file, node in nodes():
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                if name.lstrip("_") in PRIVATE:
                    used.append(f"{file}:{node.lineno}: {name}")
    assert used == []
