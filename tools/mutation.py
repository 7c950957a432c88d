# SPDX-License-Identifier: Apache-2.0
"""Mutation testing of one module or one room with mutmut: which changes of the code no test sees.

    python -m tools.mutation aggregation/l_fedavg.py      # minutes
    python -m tools.mutation selection                    # an hour or more
    python -m tools.mutation all

mutmut works in a copy of the repository, build/mutation, so that an interrupted run leaves nothing behind.
The tests of a room are those of TESTS, in one process. Survivors are listed with the line that was changed;
the exit code is 1 where there are any.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPY = ROOT / "build" / "mutation"
TESTS = {
    "aggregation": ["tests/unit/aggregation", "tests/unit/core/test_plugins.py"],
    "selection": ["tests/unit/selection", "tests/unit/aggregation/test_battery.py"],
    "differential_privacy": ["tests/unit/differential_privacy"],
    "secure_aggregation": ["tests/unit/secure_aggregation"],
    "learners": ["tests/unit/learners"],
    "egress": [
        "tests/unit/egress",
        *("tests/federation/test_site_policy.py", "tests/federation/test_egress.py"),
        *("tests/unit/cli/test_egress_report.py", "tests/unit/synthetic/test_synthetic_policy.py"),
        "tests/hostile/test_signers_of_a_job.py",
    ],
}
"""Room -> where its tests are."""
COPIED = (
    *("tests", "jobs", "docs", "examples", "benchmarks", "method_comparison", "tools", "workspace_templates"),
)
ARGUMENTS = ("-n", "0", "-x", "-p", "no:cacheprovider", "--hypothesis-profile", "mutation")
SURVIVED = ("survived", "no tests", "suspicious", "timeout")


def main() -> int:
    """Mutate what was named and print the survivors."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", help=f"all, a room ({', '.join(TESTS)}) or a file of one: aggregation/krum.py"
    )
    parser.add_argument("--tests", nargs="*", help="other tests than those of the room")
    given = parser.parse_args()
    rooms = list(TESTS) if given.what == "all" else [given.what.split("/")[0]]
    if unknown := [room for room in rooms if room not in TESTS]:
        parser.error(f"there is no room {', '.join(unknown)}; choose of {', '.join(TESTS)}, or all")
    modules = f"{given.what}/*" if given.what in TESTS else given.what
    if not given.what.endswith(".py") and given.what not in (*TESTS, "all"):
        parser.error(f"{given.what} is no file of a room")
    if given.what.endswith(".py") and not (ROOT / "custom" / "medflare" / given.what).is_file():
        parser.error(f"there is no file custom/medflare/{given.what}")
    survivors = []
    for room in rooms:
        pattern = f"{room}/*" if given.what == "all" else modules
        prepare(pattern, given.tests or TESTS[room])
        survivors += run()
    print("\n\n".join(survivors) or "no mutant survived")
    return 1 if survivors else 0


def prepare(pattern: str, tests: list[str]) -> None:
    """Copy the repository and configure mutmut there.

    Args:
        pattern: modules below medflare/ to mutate.
    """
    shutil.rmtree(COPY, ignore_errors=True)
    COPY.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "mutants")
    shutil.copytree(ROOT / "custom", COPY / "src", ignore=ignored)  # mutmut names modules from src/
    for name in COPIED:
        shutil.copytree(ROOT / name, COPY / name, ignore=ignored)
    shutil.copy(ROOT / "setup.cfg", COPY)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = project.replace('pythonpath = ["."', 'pythonpath = ["src", "."', 1)
    settings = [
        "[tool.mutmut]",
        'source_paths = ["src"]',
        f'only_mutate = ["src/medflare/{pattern}"]',
        f"also_copy = {[*COPIED, 'setup.cfg']!r}",
        f"pytest_add_cli_args_test_selection = {tests!r}",
        f"pytest_add_cli_args = {[*ARGUMENTS]!r}",
        "mutate_only_covered_lines = true",
    ]
    (COPY / "pyproject.toml").write_text("\n".join([project, *settings, ""]), encoding="utf-8")


def run() -> list[str]:
    """Run mutmut in the copy; return each survivor with its difference.

    Raises:
        SystemExit: mutmut could not try the mutants, for instance because a test fails without any.
    """
    mutmut = [sys.executable, "-m", "mutmut"]
    ended = subprocess.run([*mutmut, "run", "--max-children", "1"], cwd=COPY, check=False)
    if ended.returncode:
        raise SystemExit(
            f"mutmut ended with {ended.returncode} before all mutants were tried; its last lines above say "
            "why. A test that fails in the copy without any mutant is the usual reason."
        )
    lines = subprocess.run([*mutmut, "results"], cwd=COPY, check=True, capture_output=True, text=True).stdout
    names = [line.split(":")[0].strip() for line in lines.splitlines() if line.strip().endswith(SURVIVED)]
    return [difference(name) for name in names]


def difference(name: str) -> str:
    """Return a mutant's name and the lines that it changes, from the module that mutmut wrote.

    The name alone where the module holds no function of that name: results of hours are not lost for it.

    Args:
        name: `medflare.aggregation.krum.x_scores__mutmut_3`: module, function, number.
    """
    module, mutant = name.rsplit(".", 1)
    functions, original = functions_of(module), f"{mutant.rsplit('__mutmut_', 1)[0]}__mutmut_orig"
    after = [line.replace(mutant, original) for line in functions.get(mutant, ())]
    changed = difflib.unified_diff(functions.get(original, ()), after, lineterm="", n=0)
    return "\n".join([name, *(line for line in changed if line[:3] not in ("+++", "---") and line[0] != "@")])


@cache
def functions_of(module: str) -> dict[str, list[str]]:
    """Return function -> its lines, of a module as mutmut wrote it: every mutant is a function of its own."""
    text = (COPY / "mutants" / "src" / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8")
    lines, kinds = text.splitlines(), (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return {node.name: lines[node.lineno - 1 : node.end_lineno] for node in found}


if __name__ == "__main__":
    sys.exit(main())
