# SPDX-License-Identifier: Apache-2.0
"""Files and folders written so that a crash leaves no half of one; JSON files.

FLARE's long-lived processes use this module, so it imports no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from medflare.wire.disk_space import DiskFullError, is_disk_full
from medflare.wire.folders import make_folder, sync, sync_folder


def replace_durably(scratch: Path, path: Path) -> None:
    """Put a file or folder in another's place so that it is still there after a power cut.

    What is in a folder must be on the disk already.
    """
    if scratch.is_file():
        sync(scratch)
    os.replace(scratch, path)
    sync(path.parent)


def replace_folder(source: Path, target: Path) -> None:
    """Copy a folder over another one so that a crash leaves the old one, none or the new one, never half of
    one."""
    scratch = target.with_name(target.name + ".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        shutil.copytree(source, scratch)
    except (OSError, shutil.Error) as error:
        if not is_disk_full(error):
            raise
        shutil.rmtree(scratch, ignore_errors=True)
        raise DiskFullError(target.parent) from error
    sync_folder(scratch)
    shutil.rmtree(target, ignore_errors=True)
    replace_durably(scratch, target)


@contextmanager
def scratch_file(path: Path) -> Iterator[Path]:
    """Provide the file to write before it takes the place of `path`; on a full disk it goes again."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        make_folder(path.parent)
        yield scratch
    except (OSError, SafetensorError) as error:
        if not is_disk_full(error):
            raise
        scratch.unlink(missing_ok=True)
        raise DiskFullError(path.parent) from error


def read_json(path: Path) -> Any:
    """Return what `write_json` wrote."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, data: Any) -> None:
    """Write JSON atomically, indented by one, with a line break at the end.

    Raises:
        DiskFullError: there is no space; the file that stood there still stands.
    """
    with scratch_file(path) as scratch:
        scratch.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        replace_durably(scratch, path)
