# SPDX-License-Identifier: Apache-2.0
"""Memory and processor time of a whole command with all processes that it starts.

    python benchmarks/run_memory.py -- medflare run jobs/fedmrg -f cohorts/site.yaml -w runs/measured
    export ONEDNN_PRIMITIVE_CACHE_CAPACITY=1024 LRU_CACHE_CAPACITY=1024 MALLOC_ARENA_MAX=16
    python benchmarks/run_memory.py -- ...

The last two lines take back what `wire.memory.LESS_MEMORY` bounds. The memory is the sum of the processes'
proportional set sizes, so that what they share counts once, looked at every two seconds. Printed are the
most of each process, whenever that was, and the most of all together. It needs Linux.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress

import psutil

GB = 1e9
SECONDS_BETWEEN = 2.0


def proportional_bytes(processes: list[psutil.Process]) -> dict[str, int]:
    """Return the proportional set size of each process that is still there, by its id and command."""
    sizes = {}
    for process in processes:
        with suppress(psutil.Error):  # it ended meanwhile
            name = " ".join(process.cmdline())[:100]
            sizes[f"{process.pid} {name}"] = int(process.memory_full_info().pss)
    return sizes


def descendants(command: psutil.Process) -> list[psutil.Process]:
    """Return a command's process and all that came of it, in whatever session they are."""
    try:
        return [command, *command.children(recursive=True)]
    except psutil.Error:
        return []


def main() -> int:
    """Run the command and print what it took; return its exit code."""
    parser = argparse.ArgumentParser(description="Memory and processor time of a command and its processes.")
    parser.add_argument("command", nargs="+", help="after --")
    given = parser.parse_args()
    started, most, peaks = time.monotonic(), 0, dict[str, int]()
    process = subprocess.Popen(given.command, env=os.environ)
    command = psutil.Process(process.pid)
    while process.poll() is None:
        sizes = proportional_bytes(descendants(command))
        most = max(most, sum(sizes.values()))
        peaks |= {name: max(size, peaks.get(name, 0)) for name, size in sizes.items()}
        time.sleep(SECONDS_BETWEEN)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for name, size in sorted(peaks.items(), key=lambda item: -item[1]):
        print(f"{size / GB:6.2f} GB {name}")
    print(
        f"{most / GB:.2f} GB at most, {max(peaks.values(), default=0) / GB:.2f} in one process; "
        f"{used.ru_utime + used.ru_stime:.0f} s of processor time, {time.monotonic() - started:.0f} s"
    )
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
