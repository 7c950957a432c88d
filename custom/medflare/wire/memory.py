# SPDX-License-Identifier: Apache-2.0
"""Memory: what is free, what a process took, and how too little of it is recognised.

In an error, and where the kernel ended a process for it.
"""

from __future__ import annotations

import ctypes
import errno
import resource
from contextlib import suppress
from pathlib import Path

LESS_MEMORY = {
    "LRU_CACHE_CAPACITY": "64",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "MALLOC_ARENA_MAX": "2",
}
"""Environment of processes that train. PyTorch and oneDNN each keep a compiled product for each shape, by
default a thousand, and batches of texts have hundreds of shapes; with 16 each layer makes its own anew."""
_CLASSES = ("OutOfMemoryError",)
"""Of torch; this module imports none of it."""
_TEXTS = ("can't allocate memory", "not enough memory", "CUDA out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Of torch's allocators, whose errors are plain RuntimeErrors on a processor."""
_SYSTEM = Path("/proc/vmstat")
_GROUPS = Path("/sys/fs/cgroup")
_INFO = Path("/proc/meminfo")
_MINE = Path("/proc/self/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that there is too little memory."""
    out_of_memory = (
        isinstance(error, MemoryError)
        or type(error).__name__ in _CLASSES
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or (isinstance(error, RuntimeError) and any(text in str(error) for text in _TEXTS))
    )
    return out_of_memory or (error.__cause__ is not None and is_out_of_memory(error.__cause__))


def oom_kills() -> int:
    """Return how many processes the kernel has ended for want of memory: of the machine and of our group.

    0 where it does not say, as outside Linux. What was more than before tells of a kill since then.
    """
    return _count(_SYSTEM) + sum(_count(folder / "memory.events") for folder in _own_groups())


def free_bytes() -> int:
    """Return the bytes of memory that are free on this machine, within the limits of its container."""
    rows = dict(line.split(":") for line in _INFO.read_text(encoding="utf-8").splitlines())
    free = int(rows["MemAvailable"].split()[0]) * 1024
    limit, used = _GROUPS / "memory.max", _GROUPS / "memory.current"
    if limit.is_file() and used.is_file() and (most := limit.read_text(encoding="utf-8").strip()) != "max":
        free = min(free, int(most) - int(used.read_text(encoding="utf-8")))
    return free


def peak_bytes() -> int:
    """Return the most memory that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_free_memory() -> None:
    """Give the system back what was freed: the C library keeps it for the next allocation.

    After a round of the demo that is a quarter of what a worker holds (235 of 905 MB), in 45 ms. Other C
    libraries than GNU's have no such function, and nothing happens.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _own_groups() -> list[Path]:
    """Return the folders of this process's control groups; in a container its own is the root."""
    try:
        lines = _MINE.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = [line.split(":", 2)[2].lstrip("/") for line in lines if line.startswith("0::")]
    return [_GROUPS / path for path in paths]


def _count(file: Path) -> int:
    """Return the value of `oom_kill` in a file of lines `name value`; 0 where there is none."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
