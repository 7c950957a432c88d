# SPDX-License-Identifier: Apache-2.0
"""Imports between rooms point downwards only, three rooms import nvflare, nobody probes for abilities."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "custom" / "medflare"
USES_NVFLARE = {"federation", "recipes", "deployment"}
"""The rooms that may import nvflare; all others are plain PyTorch and testable without a network."""

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
CORE_ONLY = ("aggregation", "labelling", "secure_aggregation", "wire")
"""Rooms of pure functions and small classes: a test or a study uses them with `core` and nothing else."""

FILES = sorted(SOURCE.rglob("*.py"))
MODULES = {
    ".".join(p.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in FILES
}


@cache
def tree(path: Path) -> ast.Module:
    """A file, parsed once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    """A file as the exceptions below name it."""
    return path.relative_to(SOURCE).as_posix()


@cache
def imported(path: Path) -> set[str]:
    """Every module that a file names in an import, wherever in the file it stands."""
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            joined = {f"{node.module}.{alias.name}" for alias in node.names}
            modules = joined & set(MODULES)
            names |= modules or {node.module}
    return names


@cache
def imports_between_siblings() -> dict[str, dict[str, set[str]]]:
    """folder -> child -> the other children of that folder which it, or anything in it, imports."""
    edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module, path in MODULES.items():
        for target in imported(path) & set(MODULES):
            ours, theirs = module.split("."), target.split(".")
            common = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
            if common is not None:
                edges[".".join(ours[:common])][ours[common]].add(theirs[common])
    return edges


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """The nodes of the graph that are left when everything that depends on nothing left is taken out."""
    left = {node: set(targets) for node, targets in graph.items()}
    while free := {n for n in left if not left[n] & set(left)}:
        left = {n: t for n, t in left.items() if n not in free}
    return sorted(left)


def test_children_of_a_folder_do_not_import_each_other_in_a_circle() -> None:
    folders = imports_between_siblings()
    assert len(folders) > 20
    assert {folder: left for folder in folders if (left := cycle(folders[folder]))} == {}


@pytest.mark.parametrize("room", CORE_ONLY)
def test_pure_rooms_import_core_alone(room: str) -> None:
    assert imports_between_siblings()["medflare"][room] == {"core"}


def test_core_imports_no_room() -> None:
    assert imports_between_siblings()["medflare"]["core"] == set()


def test_a_room_imports_only_rooms_below_it_in_the_documented_table() -> None:
    table = re.findall(r"^\| `([a-z_]+)` \|", ARCHITECTURE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    rooms = [path.name for path in SOURCE.iterdir() if (path / "__init__.py").is_file()]
    assert sorted(table) == sorted(rooms)
    edges = imports_between_siblings()["medflare"]
    upward = {
        (room, target)
        for room in rooms
        for target in edges[room] & set(rooms)
        if table.index(target) <= table.index(room)
    }
    assert upward == set()


def test_nvflare_is_imported_in_three_rooms_only() -> None:
    uses = {path for path in FILES if any(name.split(".")[0] == "nvflare" for name in imported(path))}
    assert uses
    assert [name_of(path) for path in uses if path.relative_to(SOURCE).parts[0] not in USES_NVFLARE] == []


PROBES = {
    "models": "attributes of networks, configurations and modules of transformers, PEFT and torch",
    "learners/text_task/footprint.py": "a decoder's configuration in transformers",
    "learners/fedtar/site_setup.py": "a decoder's configuration in transformers",
    "data/images.py": "optional elements of a DICOM file in pydicom",
    "reporting/galleries/pictures.py": "an exception of Pillow or of this package",
    "core/config.py": "PyYAML with or without its C library",
    "core/option_values.py": "an error of PyYAML",
}
"""Folder or file -> the objects of other libraries whose attributes are looked for there.

An object of this package declares what it can do: by a registry, an abstract method or an attribute of its
contract that may be None. Looked for by name, an ability that is renamed is one that silently disappears.
"""


def probes(path: Path) -> list[str]:
    """Every `hasattr`, and every `getattr` of a name that stands in the code."""
    calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in calls
        if isinstance(call.func, ast.Name)
        and (
            call.func.id == "hasattr"
            or (call.func.id == "getattr" and isinstance(call.args[1], ast.Constant))
        )
    ]


def allowed(path: Path) -> str | None:
    """The entry of PROBES for a file."""
    return next((entry for entry in PROBES if path.is_relative_to(SOURCE / entry)), None)


def test_no_ability_is_looked_for_by_the_name_of_an_attribute() -> None:
    found = {path: probes(path) for path in FILES}
    assert {name_of(path): lines for path, lines in found.items() if lines and not allowed(path)} == {}
    assert {allowed(path) for path, lines in found.items() if lines} == set(PROBES), "one is not needed"


OWN_TYPES = {
    "aggregation/__init__.py": "what another package offers as a rule",
    "aggregation/base.py": "the registry of capabilities: `capability` and `class_capability`",
    "core/variables.py": "any value of a settings model, read from YAML",
    "data/partition/partitioning.py": "any value of a settings model, written as YAML",
    "data/settings/site.py": "one entry of YAML or a list of them",
    "learners/registry.py": "what another package offers as a method",
    "protections/registry.py": "what another package offers as a protection",
    "models/text_backbone.py": "a prompt with fields among plain texts, a subclass of str",
}
"""File -> the values whose class it asks for, of those that this package defines; exceptions apart."""


@cache
def own_classes() -> set[str]:
    """The names of the package's classes but its exceptions."""
    nodes = (node for path in FILES for node in ast.walk(tree(path)))
    names = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    return {name for name in names if not name.endswith("Error")} - {"StopSignal"}


def class_checks(path: Path) -> list[str]:
    """Every `isinstance` and `issubclass` that asks for a class of this package, or for a parameter."""
    calls = (node for node in ast.walk(tree(path)) if isinstance(node, ast.Call))
    own = own_classes() | {"mixin"}
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in calls
        if isinstance(call.func, ast.Name)
        and call.func.id in ("isinstance", "issubclass")
        and {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)} & own
    ]


def test_no_ability_is_looked_for_by_the_class_of_an_object() -> None:
    found = {name_of(path): lines for path in FILES if (lines := class_checks(path))}
    assert {name: lines for name, lines in found.items() if name not in OWN_TYPES} == {}
    assert set(found) == set(OWN_TYPES), "one is not needed"


def test_the_name_of_a_class_or_type_means_one_thing() -> None:
    """Classes and type aliases of modules; type variables mean nothing outside their file."""
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in tree(path).body:
            match node:
                case ast.ClassDef(name=name) if not name.startswith("_"):
                    places[name].append(module)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if re.fullmatch(
                    "[A-Z][A-Za-z]*[a-z][A-Za-z]*", name
                ) and "TypeVar" not in ast.unparse(value):
                    places[name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def kit_components() -> set[str]:
    """The modules of ours that kits name in their own resources.json."""
    folder = SOURCE.parents[1] / "workspace_templates"
    texts = [file.read_text(encoding="utf-8") for file in folder.glob("*/local/resources.json")]
    return {name for text in texts for name in re.findall(r'"path": "(medflare\.[a-z_.]+)\.[A-Z]\w+"', text)}


def test_the_processes_that_a_kit_starts_import_no_torch() -> None:
    """They wait for jobs for months: 54 MB without it, 616 MB with it."""
    modules = sorted(kit_components())
    assert len(modules) >= 3
    parents = ["nvflare.private.fed.app.server.server_train", "nvflare.private.fed.app.client.client_train"]
    program = f"import sys, {', '.join([*parents, *modules])}\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


@pytest.mark.parametrize(
    "module",
    [
        "medflare.federation.site.executor",
        "medflare.federation.server.controller",
        "medflare.recipes.simulate",
    ],
)
def test_the_processes_around_the_workers_import_no_models(module: str) -> None:
    """A run has five such processes: with transformers each takes 130 MB and 6 s more."""
    heavy = ("transformers", "peft", "monai", "torchvision", "sklearn", "pandas", "matplotlib")
    program = f"import sys, {module}\nprint([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
