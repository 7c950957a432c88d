# SPDX-License-Identifier: Apache-2.0
"""FLARE's simulator and its clients, forked from one process that has imported PyTorch and FLARE.

    python -P -m medflare.recipes.forked_simulator <folder>

It imports, and reads an order from its standard input: the module to run, `nvflare.cli`, with its arguments,
and the method. It runs the module in a fork of itself; forks a second server, which imports the method's
learner meanwhile and forks workers; and forks the simulator's clients, which ask by `forked_program.py`. A
run of three sites would import PyTorch six times otherwise.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import runpy
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from medflare.recipes import forked_program
from medflare.recipes.allow_list import COMPONENTS
from medflare.worker.fork_server import VARIABLE, ForkServer, serve_workers, write_to

SIMULATOR = "nvflare.cli"
CLIENT = "nvflare.private.fed.app.simulator.simulator_worker"
"""Module that the simulator starts for each of its clients."""
SIMULATOR_RUNNER = "nvflare.private.fed.app.simulator.simulator_runner"


def main(folder: Path) -> int:
    """Wait for an order, run its module with the workers of its method, and return the module's exit code.

    Without an order, because who would give it has gone, it is 0.

    Args:
        folder: of the sockets; its path must be short.
    """
    problem = ""
    try:
        import_all()
    except Exception:
        problem = traceback.format_exc()
    line = sys.stdin.readline()
    if not line:
        return 0
    order = json.loads(line)
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
    write_to(log, log)
    if problem:
        print(problem, file=sys.stderr)
        return 1
    return run(folder, order["method"], order["module"], order["arguments"])


def run(folder: Path, method: str, module: str, arguments: Sequence[str]) -> int:
    """Run a module and fork what it asks for, until it ends; return its exit code."""
    this = os.getpid()
    workers = str(folder / "workers")
    if not os.fork():
        serve_workers(workers, method, lambda: os.getppid() == this)
        os._exit(0)
    clients = ForkServer(str(folder / "clients"), run_client, kills=True)
    simulator = os.fork()
    if not simulator:
        clients.leave()
        os.environ[VARIABLE] = workers
        sys.executable = python_of_clients(folder)
        keep_paths_whole()
        run_module(module, arguments)
    status = [0, 0]

    def runs() -> bool:
        status[:] = os.waitpid(simulator, os.WNOHANG)
        return not status[0]

    clients.serve(runs)
    code = os.waitstatus_to_exitcode(status[1])
    return code if code >= 0 else 128 - code


def import_all() -> None:
    """Import what the simulator and its clients import, and leave no garbage for a fork to copy.

    The two modules that are run are forgotten again, as `runpy` wants it.
    """
    assert COMPONENTS  # its modules hold the components of a job
    for name in (SIMULATOR, CLIENT):
        importlib.import_module(name)
        del sys.modules[name]
    gc.collect()
    gc.freeze()


def python_of_clients(folder: Path) -> str:
    """Write the program that stands for Python in the simulator, and return its path."""
    words = (sys.executable, "-IS", forked_program.__file__, str(folder / "clients"), sys.executable, CLIENT)
    program = folder / "python"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n', encoding="utf-8")
    program.chmod(0o700)
    return str(program)


def keep_paths_whole() -> None:
    """Have the simulator split the commands of its clients, which quote no path, between options alone.

    It splits them at every space, so that no client starts where the workspace's path has one.
    """
    runner = importlib.import_module(SIMULATOR_RUNNER)
    runner.shlex = SimpleNamespace(split=split_command)  # type: ignore[attr-defined]


def split_command(command: str, *unused: Any) -> list[str]:
    """Return the words of "program -m module -o path --option value"; a value may hold spaces and quotes."""
    options = re.split(r" (?=-[mo] |--[a-z_]+ )", command)
    return [word for option in options for word in option.split(" ", 1)]


def run_client(request: Mapping[str, Any], output: int, errors: int) -> NoReturn:
    """Be a client of the simulator."""
    write_to(output, errors)
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in added if path and path not in sys.path]
    run_module(CLIENT, request["arguments"])


def run_module(module: str, arguments: Sequence[str]) -> NoReturn:
    """Be `python -m <module> <arguments>` until its end."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
    raise SystemExit(0)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
