# SPDX-License-Identifier: Apache-2.0
"""Run three small sites in a process that is killed at drawn moments; forked, so that it starts at once.

`python killed_run_program.py FOLDER KILLS SEED PROTECTION` kills so many (SIGKILL), one after the other,
reads what lies on the disk after each, and lets the run go on. It prints how it went as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from fed_harness import Federation, toy_policy, toy_site_settings
from safetensors.torch import load_file

from medflare.core.run_record import read_record
from medflare.federation.server.run_state import has_state, load_state
from medflare.federation.site import executor as site_executor
from medflare.worker import config as worker_config

ROUNDS = 8
ARGS: dict[str, dict[str, Any]] = {
    "none": {"uplink": "int8", "downlink": "int8", "canary": True},
    "masking": {"protection": "masking"},
}


def federation(root: Path, protection: str, job: str = "job", resumes: str = "") -> Federation:
    controller = {"num_rounds": ROUNDS, "deadline": 60.0, **ARGS[protection]}
    return Federation(root=root, controller=controller, job=job, resumes=resumes, timeout=120.0)


def forked(run: Any) -> int:
    """Return the id of a new process that runs `run()` and ends."""
    child = os.fork()
    if child == 0:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            try:
                run().run()
            finally:
                os._exit(0)
    return child


def completed(root: Path) -> bool:
    record = root / "server/runs/job/run.json"
    return record.exists() and read_record(record).status == "completed"


def check_readable(root: Path) -> int:
    """Read everything that a dead process left; return how many rounds its state has."""
    folder = root / "server/runs/job"
    if (folder / "run.json").exists():
        read_record(folder)
    for file in root.rglob("run.json"):
        read_record(file)
    return load_state(folder / "state").exchanges_done if has_state(folder / "state") else 0


def adapter(root: Path, job: str) -> dict[str, torch.Tensor]:
    return load_file(root / "server" / job / "result/adapter/adapter_model.safetensors")


def main(root: Path, kills: int, seed: int, protection: str) -> None:
    moments, done, runs, rounds = random.Random(seed), 0, 0, list[int]()
    whole = root / "whole"
    began = time.monotonic()
    os.waitpid(forked(lambda: federation(whole, protection)), 0)
    seconds = time.monotonic() - began
    expected = adapter(whole, "job")
    while done < kills:
        here, number, runs = root / f"run-{runs}", 0, runs + 1
        while not completed(here):
            job, number = f"job{number}" if number else "job", number + 1
            resumes = "job" if (here / "server/runs/job/run.json").exists() else ""
            job = job if resumes else "job"
            child = forked(
                lambda root=here, job=job, resumes=resumes: federation(root, protection, job, resumes)
            )
            until = time.monotonic() + (moments.uniform(0.05, 0.6) * seconds if done < kills else 1e9)
            ended = 0
            while not ended and time.monotonic() < until:
                ended, _ = os.waitpid(child, os.WNOHANG)
                time.sleep(0.002)
            if not ended:
                os.kill(child, 9)
                os.waitpid(child, 0)
                done += 1
            rounds.append(check_readable(here))
        last = max(
            (path for path in (here / "server").glob("job*")), key=lambda path: path.stat().st_mtime
        ).name
        found = adapter(here, last)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found), here
    print(json.dumps({"kills": done, "runs": runs, "after_rounds": sorted(set(rounds)), "seconds": seconds}))


if __name__ == "__main__":
    torch.set_num_threads(1)
    with (
        patch.object(site_executor, "policy_of", toy_policy),
        patch.object(worker_config, "load_site_settings", toy_site_settings),
    ):
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
