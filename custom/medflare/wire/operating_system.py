# SPDX-License-Identifier: Apache-2.0
"""Refusals of the operating system as a sentence for a person: the path, the reason, what to do."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from medflare.core.errors import OperatingSystemError
from medflare.wire.disk_space import free_megabytes, is_disk_full

_PERMISSION = "no permission. Run as a user who may read and write there, or name another path"
_NO_FOLDER = "a part of this path is a file and no folder. Check the path"
_ADVICE = {
    errno.ENOENT: "there is no such file or folder. Check the path",
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EISDIR: "is a folder, and a file was expected. Name a file",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EROFS: "lies on a disk that can only be read. Name a folder on another one",
    errno.EEXIST: "is there already. Name another path, or move it away",
    errno.ENOTEMPTY: "is a folder that is not empty. Name another path, or move it away",
    errno.ENAMETOOLONG: "the name is too long for this file system. Name a shorter path",
    errno.ELOOP: "links lead in a circle. Name the file itself",
    errno.EMFILE: "too many files are open. Raise the limit (`ulimit -n`) and start again",
    errno.ENFILE: "too many files are open on this machine. End other programs and start again",
    errno.EIO: "the disk reported an error. Look into the kernel's log (`dmesg`), and at another copy",
    errno.ESTALE: "the network drive has lost this file. Mount it again",
    errno.ETXTBSY: "is a program that is running. Name another path",
    errno.EBUSY: "is in use by the system. Name another path",
    errno.EFBIG: "the file would be larger than this file system or user may have. Name another disk",
    errno.ENOMEM: "the machine has no memory left. End other programs, or ask for less",
}
"""Error number -> what is the matter, and what to do."""


_LOOP = "Symlink loop from "
"""Start of the RuntimeError of `Path.resolve` in Python 3.11 and 3.12."""


def operating_system_error(error: BaseException) -> OperatingSystemError | None:
    """Return what the operating system refused, if an error says so; None for any other error.

    A pipe that its reader closed (`medflare ... | head`) is no failure of this command.
    """
    if isinstance(error, BrokenPipeError):
        return None
    if is_disk_full(error):
        return OperatingSystemError(_disk_full(error))
    if isinstance(error, RuntimeError) and str(error).startswith(_LOOP):
        path = str(error).removeprefix(_LOOP).strip("' ")
        return OperatingSystemError(f"{path}: {_ADVICE[errno.ELOOP]}.")
    if not isinstance(error, OSError):
        return None
    if error.errno is None:  # a library's own message
        return OperatingSystemError(str(error) or type(error).__name__)
    path = _path(error)
    relative = path and not os.path.isabs(path)
    where = f" It counts from {Path.cwd()}." if relative and error.errno == errno.ENOENT else ""
    what = _ADVICE.get(error.errno, f"the operating system says: {error.strerror or error}")
    return OperatingSystemError(f"{path or 'a file that this command uses'}: {what}.{where}")


def _disk_full(error: BaseException) -> str:
    """Return the sentence for a full disk; an error of `write` does not say which."""
    path = _path(error) if isinstance(error, OSError) else ""
    places = [Path(path).parent] if path else [Path.cwd(), Path(tempfile.gettempdir())]
    free = ", ".join(f"{free_megabytes(place.absolute())} MB free in {place}" for place in places)
    begin = f"{path}: " if path else ""
    return f"{begin}no space left on the disk ({free}). Free some, or name a folder on another disk."


def _path(error: OSError) -> str:
    """Return the path that an error names; of two, the one that is not there or cannot be written."""
    named = error.filename2 if error.filename2 is not None else error.filename
    return os.fsdecode(named) if isinstance(named, str | bytes) else ""
