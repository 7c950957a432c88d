# SPDX-License-Identifier: Apache-2.0
"""A full disk: how it is recognised, and space kept free so that a run can still write why it ended."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import RunError
from medflare.wire.folders import make_folder

RESERVE_BYTES = 4 << 20
"""Enough for a record, a trace and an entry of the ledger, many times over."""
FILE = "reserve.bin"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BROKEN = (errno.EROFS, errno.EIO)
_OS_TEXT = os.strerror(errno.ENOSPC)
"""Text of the error, as which libraries in other languages, safetensors among them, pass it on."""


class DiskFullError(RunError):
    """There is no space left where a file was to be written."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the disk is full: {free_megabytes(folder)} MB free in {folder}.")


def free_megabytes(folder: Path) -> int:
    """Return the megabytes free for this user on the disk of a folder, or of the nearest one that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free // 10**6


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that a disk or a quota is full."""
    if isinstance(error, DiskFullError):
        return True
    full = error.errno in _FULL if isinstance(error, OSError) else _OS_TEXT in str(error)
    return full or (error.__cause__ is not None and is_disk_full(error.__cause__))


def is_disk_broken(error: BaseException) -> bool:
    """Return whether an error, or one that caused it, says that a disk is read-only or fails."""
    broken = isinstance(error, OSError) and error.errno in _BROKEN
    return broken or (error.__cause__ is not None and is_disk_broken(error.__cause__))


@dataclass(slots=True)
class DiskReserve:
    """A file that takes space nobody needs until the disk is full.

    A file system that compresses, as ZFS can, may give it less space than it asks for.

    Attributes:
        folder: in which it lies.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """The file."""
        return self.folder / FILE

    def hold(self, size: int = RESERVE_BYTES) -> None:
        """Take `size` bytes, or more if the file has more.

        Raises:
            DiskFullError: there are not so many; the file is then gone.
        """
        try:
            if self.file.exists() and self.file.stat().st_size >= size:
                return
            make_folder(self.folder)
            with self.file.open("ab") as file:
                _allocate(file.fileno(), size)
        except OSError as error:
            self.release()
            if is_disk_full(error):
                raise DiskFullError(self.folder) from error
            raise

    def release(self) -> None:
        """Give the space back, where the disk lets anybody change anything."""
        with suppress(OSError):
            self.file.unlink(missing_ok=True)


def _allocate(descriptor: int, size: int) -> None:
    """Have the file system set `size` bytes aside for a file."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
        return
    for start in range(os.fstat(descriptor).st_size, size, 1 << 20):  # not every system has such a call
        os.write(descriptor, bytes(min(1 << 20, size - start)))
    os.fsync(descriptor)
