# SPDX-License-Identifier: Apache-2.0
"""Dependencies point downwards only, and only one package imports nvflare (design.md 2)."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "custom" / "medflare"
ALLOWED = {
    "cohort": set(),
    "extraction": {"cohort", "models", "evaluation"},
    "answering": {"cohort", "models"},
    "models": {"cohort"},
    "evaluation": {"cohort", "models"},
    "learners": {"cohort", "models", "evaluation", "extraction", "answering"},
    "aggregation": {"learners", "selection"},
    "selection": {"cohort", "models", "learners"},
    "privacy": {"cohort", "learners"},
    "federation": {
        "cohort",
        "models",
        "evaluation",
        "extraction",
        "answering",
        "learners",
        "aggregation",
        "selection",
        "privacy",
    },
    "cli": {
        "cohort",
        "models",
        "evaluation",
        "extraction",
        "answering",
        "learners",
        "aggregation",
        "selection",
        "privacy",
        "federation",
    },
}
FILES = sorted(SOURCE.rglob("*.py"))


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_module_imports_only_from_rooms_below(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0]
    if room not in ALLOWED:
        return
    rooms = {n.split(".")[1] for n in imported(path) if n.startswith("medflare.")} & set(ALLOWED)
    assert rooms - ALLOWED[room] - {room} == set()


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_only_federation_imports_nvflare(path: Path) -> None:
    uses = any(name.split(".")[0] == "nvflare" for name in imported(path))
    assert not uses or path.relative_to(SOURCE).parts[0] == "federation"
