# SPDX-License-Identifier: Apache-2.0
"""A run in which one party's disk, a small real one, fails: `full_disk_program.py ROOT PARTY WORKER FAULT`.

PARTY is `server`, `site-2`, or `state` for the disk of site-2's own folder `state` alone. FAULT is `full`, or
`read-only`, as the kernel mounts a disk with errors.

Needs a mount namespace of its own, which `unshare --map-root-user --mount` gives an ordinary user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fed_harness import Federation, use_toy_sites

from medflare.data.settings.site import SiteConfig
from medflare.worker import config as worker_config
from medflare.worker.config import WorkerConfig


class Patch:
    """What pytest's monkeypatch does, for good."""

    def setattr(self, target: object, name: str, value: object) -> None:
        setattr(target, name, value)


def give_state_folder(root: Path, disk: Path) -> None:
    """Let site-2 keep what survives a restart on a disk of its own."""
    local = root / "site-2" / "local"
    local.mkdir(parents=True)
    (local / "site.yaml").touch()

    def settings(config: WorkerConfig) -> SiteConfig:
        state = disk if config.site == "site-2" else None
        return SiteConfig.model_construct(name=config.site, cohort=(), state=state)

    worker_config.load_site_settings = settings


def fill(folder: Path) -> None:
    """Write until the disk is full."""
    with (folder / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 10, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue


def make_read_only(folder: Path, on: bool) -> None:
    """Mount the disk anew for reading only, or for writing again."""
    if not on:
        subprocess.run(["umount", str(folder)], check=True)
        return
    # A mount over it, because files that are open for writing keep the kernel from changing the one below.
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)


def main(root: Path, party: str, worker: str, fault: str) -> None:
    """Run five rounds; the disk fails from the second one's first reply on, until the fourth one's."""
    disk = root / party
    disk.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "none", str(disk)], check=True)
    fits, reserves = 0, set[str]()

    def tamper(site: str, task: str, reply: Any) -> None:
        nonlocal fits
        reserves.update(file.relative_to(root).parts[0] for file in root.rglob("reserve.bin"))
        if party == "state":
            fits += (site, task) == ("site-2", "fit")
            if (site, task, fits) == ("site-2", "evaluate", 1):  # between two rounds of that site
                fill(disk)
            elif fits == 3:
                (disk / "filler").unlink(missing_ok=True)
        elif site == "site-1" and task == "fit":
            fits += 1
            if fits in (2, 4) and fault == "read-only":
                make_read_only(disk, fits == 2)
            elif fits == 2:
                fill(disk)
            elif fits == 4:
                (disk / "filler").unlink(missing_ok=True)

    use_toy_sites(Patch())
    if party == "state":
        give_state_folder(root, disk)
    run = Federation(
        root=root,
        controller={"num_rounds": 5, "min_responses": 2},
        worker=worker,
        tamper=tamper,
    )
    record = run.run()
    adapter = run.folder / "result" / "adapter" / "adapter_model.safetensors"
    ledger = next(iter((root / "site-2").rglob("egress.jsonl")), None)
    trace = root / "site-2" / "job" / "worker" / "worker.log"
    found = {
        "status": record.status,
        "reason": record.reason,
        "absent": [entry.absent for entry in record.rounds],
        "adapter": adapter.is_file(),
        "fatal": run.fatal,
        "ledger": ledger.read_text() if ledger else "",
        "trace": trace.read_text() if trace.is_file() else "",
        "reserves": sorted(reserves),
        "reserve": (run.folder / "reserve.bin").exists(),
    }
    print(json.dumps(found), flush=True)
    # Sites of a failed run may still train in threads, under which an interpreter that ends aborts.
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
