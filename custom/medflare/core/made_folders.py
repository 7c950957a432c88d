# SPDX-License-Identifier: Apache-2.0
"""Folders that a command makes: whole or not at all, and never in the place of what somebody put there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import ConfigError

NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that lock no folders."""


@dataclass(frozen=True, slots=True)
class MadeFolder:
    """A sort of folder that a command makes.

    Attributes:
        words: what such a folder holds, for messages.
        mark: file that each of them has, and no other folder; head: what it begins with.
    """

    words: str
    mark: str
    head: str = ""

    def made(self, folder: Path) -> bool:
        """Return whether a folder is of this sort."""
        file, head = folder / self.mark, self.head.encode()
        if not file.is_file():
            return False
        with file.open("rb") as opened:
            return opened.read(len(head)) == head

    def check(self, out: Path, overwrite: bool) -> None:
        """Raise ConfigError if `out` holds something else, or such a folder that may not be replaced."""
        if not out.exists() or not any(out.iterdir()):
            return
        if not self.made(out):
            raise ConfigError(f"{out}: is not empty and holds no {self.words}. Name a new folder.")
        if not overwrite:
            raise ConfigError(
                f"{out}: holds {self.words} already; --overwrite replaces the folder with all that is in it. "
                "Or name a new one."
            )

    @contextmanager
    def building(self, out: Path, overwrite: bool) -> Iterator[Path]:
        """Give an empty folder beside `out`, which takes its place if the block ends without an error.

        Raises:
            ConfigError: as `check`, or another command is making `out`.
        """
        self.check(out, overwrite)
        place = out.resolve()
        scratch = place.with_name(place.name + ".building")
        with _alone(scratch, out):
            yield scratch
            self.check(out, overwrite)
            self._replace(place, scratch)

    def _replace(self, place: Path, scratch: Path) -> None:
        """Put what `scratch` holds into `place`. A folder that is there stays: somebody may stand in it."""
        if not place.exists():
            os.replace(scratch, place)
            return
        for old in self._mark_last(place):
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
        for new in self._mark_last(scratch):
            shutil.move(new, place / new.name)

    def _mark_last(self, folder: Path) -> list[Path]:
        return sorted(folder.iterdir(), key=lambda path: (path.name == self.mark, path.name))


@contextmanager
def _alone(scratch: Path, out: Path) -> Iterator[None]:
    """Make an empty folder that no second command works in, and delete what is left of it afterwards.

    What a killed command left there goes: the system gives a lock back with its process.
    """
    if scratch.exists():
        with _locked(scratch, out):
            shutil.rmtree(scratch)
    try:
        scratch.mkdir(parents=True)
    except FileExistsError:
        raise _taken(scratch, out) from None
    with _locked(scratch, out):
        try:
            yield
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Hold a folder's lock; without one on file systems that lock no folders, such as NFS.

    Raises:
        ConfigError: another command holds it, or has put a folder of its own in the place of this one.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        raise _taken(folder, out) from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(folder, out) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        if not folder.exists() or not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise _taken(folder, out)
        yield
    finally:
        os.close(descriptor)


def _taken(folder: Path, out: Path) -> ConfigError:
    return ConfigError(f"{folder}: another command is making '{out}' there. Wait until it is done.")
