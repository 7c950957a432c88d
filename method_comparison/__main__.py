# SPDX-License-Identifier: Apache-2.0
"""The command `python -m method_comparison`."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from pathlib import Path

from medflare.core.config import parse
from medflare.core.errors import MedflareError
from medflare.core.option_values import read_pairs
from medflare.wire.memory import LESS_MEMORY
from method_comparison.configuration import Selection, names, read_configuration
from method_comparison.page import write_page
from method_comparison.runner import Comparison, end_after, run_units

FAILED, LEFT_OUT = 5, 2
"""Exit codes: a unit failed; one that was asked for by name needs what is not on this machine."""
PAGES = Path(__file__).parents[1] / "docs" / "results" / "comparisons"


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    given = parser().parse_args(arguments)
    if given.command is not show and given.out is None:
        given.out = Path("studies/small" if given.small else "studies")
    try:
        return int(given.command(given))
    except MedflareError as error:
        print(error, file=sys.stderr)
        return error.exit_code


def run(given: argparse.Namespace) -> int:
    """Train what is missing and write the page beside the results."""
    os.environ.update({name: os.environ.get(name, value) for name, value in LESS_MEMORY.items()})
    import torch  # which reads them as it is loaded

    torch.set_num_threads(1)
    comparisons = _comparisons(given)
    others = [
        subprocess.Popen([sys.executable, "-m", "method_comparison", *_worker_arguments(given)])
        for _ in range(given.workers - 1)
    ]
    failed, left_out = list[str](), list[str]()
    ends = end_after(given.minutes)
    for comparison in comparisons:
        found = run_units(comparison, given.out, ends, lambda line: print(line, flush=True))
        failed += found.failed
        left_out += (f"{comparison.name} {unit}" for unit in found.left_out)
    codes = [process.wait() for process in others]
    for comparison in comparisons:
        print(write_page(comparison, given.out, given.out / "pages", _command(given, comparison)))
    if left_out:
        print(f"{len(left_out)} unit(s) left out, which need what is not here: {', '.join(left_out)}")
    if failed or any(code not in (0, LEFT_OUT) for code in codes):
        return FAILED
    return LEFT_OUT if (left_out or LEFT_OUT in codes) and given.names != ["all"] else 0


def page(given: argparse.Namespace) -> int:
    """Write the pages of what is there."""
    for comparison in _comparisons(given):
        print(write_page(comparison, given.out, given.pages, _command(given, comparison)))
    return 0


def show(given: argparse.Namespace) -> int:
    """Print the comparisons, their methods, partitions and seeds."""
    for name in names():
        found = read_configuration(name)
        print(f"{name}: {found.title}")
        print(f"  partitions: {', '.join(found.partitions)}; seeds: {', '.join(map(str, found.seeds))}")
        for method, row in found.methods.items():
            print(f"  {method}: {row.title}" + (" (on request)" if method in found.on_request else ""))
    return 0


def _comparisons(given: argparse.Namespace) -> list[Comparison]:
    options = {
        "partitions": given.partitions,
        "methods": given.methods,
        "seeds": given.seeds,
        "settings": read_pairs(given.set),
        "against": getattr(given, "against", None),
    }
    wanted = parse(Selection, options, "the options")
    chosen = names() if given.names == ["all"] else given.names
    return [Comparison.read(name, wanted, given.small) for name in chosen]


def _command(given: argparse.Namespace, comparison: Comparison) -> str:
    """The command that writes a comparison's page."""
    words = ["page", comparison.name, *_selected(given)]
    if comparison.reference:
        words += ["--against", comparison.reference]
    return "python -m method_comparison " + shlex.join(words)


def _worker_arguments(given: argparse.Namespace) -> list[str]:
    """What a process gets that shares the units of this one; it writes no page of its own."""
    minutes = [] if given.minutes is None else ["--minutes", str(given.minutes)]
    return ["run", *given.names, *_selected(given), *minutes]


def _selected(given: argparse.Namespace) -> list[str]:
    """The arguments that say which units of which folder."""
    found = ["--out", str(given.out)]
    found += ["--small"] if given.small else []
    for key in ("partitions", "methods", "seeds"):
        if (values := getattr(given, key)) is not None:
            found += [f"--{key}", ",".join(map(str, values))]
    return [*found, *(part for pair in given.set for part in ("--set", pair))]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m method_comparison", description=__doc__)
    commands = top.add_subparsers(required=True)
    for command, help_text in ((run, "train what is missing"), (page, "write the page of what is there")):
        own = commands.add_parser(command.__name__, help=help_text)
        own.set_defaults(command=command)
        own.add_argument("names", nargs="+", help="comparisons, or: all")
        own.add_argument("--out", type=Path, help="default: studies, with --small studies/small")
        own.add_argument("--small", action="store_true", help="the small part of each comparison")
        own.add_argument("--partitions", type=_words)
        own.add_argument("--methods", type=_words)
        own.add_argument("--seeds", type=lambda text: tuple(int(seed) for seed in text.split(",")))
        own.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a task's setting")
        if command is run:
            own.add_argument("--workers", type=int, default=1, help="processes that share the units")
            own.add_argument("--minutes", type=float, help="after so many a unit stops after its round")
        else:
            own.add_argument("--pages", type=Path, default=PAGES)
            own.add_argument("--against", help="the method that all others are compared with")
    listed = commands.add_parser("list", help="comparisons, methods, partitions and seeds")
    listed.set_defaults(command=show)
    return top


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


if __name__ == "__main__":
    sys.exit(main())
