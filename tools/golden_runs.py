# SPDX-License-Identifier: Apache-2.0
"""Record what every job makes in one canary and one round, and compare two recordings.

A change that claims to keep all behaviour is checked on one machine, before and after:

    python tools/golden_runs.py record golden/before            # in a checkout of the old commit
    python tools/golden_runs.py record golden/after --cohorts golden/before     # in one of the new commit
    python tools/golden_runs.py compare golden/before golden/after

Numbers are compared bit for bit (tensors by SHA-256), so both recordings must come from the same machine.
Identifiers, dates, durations, versions and paths are left out. Keys that a release renames are listed in
`RENAMED` below, keys that it adds in `ADDED`. A recording of all jobs takes about half an hour on two cores.

A commit from before this file is recorded with a copy of it in its `tools/`: what runs is the package
beside it, by PYTHONPATH, also in the processes of sites and workers. `compare --digits 6` is for a commit
from before metrics left sites rounded (4 under a protection). A rule that weighs by such metrics, as
`l_fedavg`, then makes other tensors; they are equal if the new recording is made with `DIGITS = 17` in
`medflare.egress.permitted_facts`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]

RUNS: dict[str, list[str]] = {
    "fed_medlora": [],
    "fed_medlora_plus": [],
    "ddcs_qa": [],
    "ddcs_summary": [],
    "fedvit_gpt2": [],
    "fedvit_gpt2_krum": [],
    "fedvit_gpt2_l_fedavg": [],
    "fedtar": [],
    "fedmrg": [],
    "fed_medlora~int8": ["--set", "uplink=int8", "--set", "downlink=int8"],
    "fed_medlora~masking": [
        "--set",
        "protection=masking",
        "--set",
        "uplink=float32",
        "--set",
        "downlink=float32",
    ],
}
"""Name of a recording -> what is set over the job whose name stands before `~`."""

RENAMED: dict[str, str] = {
    "bench_rounds": "suspend_rounds",
    "grace": "straggler_timeout",
    "min_accepted": "min_responses",
    "lost_rounds": "max_lost_rounds",
}
"""Key of the old recording -> its name in the new one, at any depth."""

VOLATILE = {
    "run_id",
    "started",
    "seconds",
    "train_seconds",
    "timings",
    "versions",
    "paths",
    "schema_version",
    "task",
    "latency",
    "compute",
    "transfer",
    "keys_seconds",
    "open_seconds",
}
"""Keys that differ from run to run, or that only one schema has."""

ADDED = {"max_norm_ratio", "max_share", "taken_from"}
"""Keys that the old recording may lack."""


def record(out: Path, names: list[str], cohorts: Path | None) -> None:
    """Run each job once in the FLARE simulator and write what it made to `out/<name>.json`.

    Args:
        cohorts: another recording, whose synthetic hospitals are copied: the key of their knowledge sketches
            is random, and the distances between sketches follow it.
    """
    out.mkdir(parents=True, exist_ok=True)
    if cohorts is not None and not (out / "runs").exists():
        shutil.copytree(cohorts / "runs", out / "runs")
    environment = os.environ | {
        "PYTHONPATH": str(REPOSITORY / "custom"),
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }
    for name in names:
        workspace, started = out / "workspaces" / name, time.monotonic()
        job = REPOSITORY / "jobs" / name.split("~")[0]
        command = [sys.executable, "-m", "medflare.cli.main", "run", str(job), "--rounds", "1", "--canary"]
        command += ["--json", "--no-page", "-w", str(workspace), *RUNS[name]]
        done = subprocess.run(command, cwd=out, env=environment, capture_output=True, text=True)
        (out / f"{name}.json").write_text(json.dumps(facts_of(workspace, done), indent=1, sort_keys=True))
        print(f"{name}: exit {done.returncode}, {time.monotonic() - started:.0f} s", flush=True)


def facts_of(workspace: Path, done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return a run's exit status, record and printed JSON, and digests of all tensors it made and sent.

    `tensors` are those of results, at the server and at sites, and of the state that a site keeps; `sent` are
    the messages that left a site.
    """
    facts: dict[str, Any] = {"exit": done.returncode}
    folder = workspace / "server" / "simulate_job"
    if done.returncode or not (folder / "run.json").is_file():
        return facts | {"error": done.stderr[-1500:]}
    facts["record"] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    facts["stdout"] = json.loads(done.stdout)
    made = [*folder.glob("result/**/*.safetensors"), *workspace.glob("site-*/**/*.safetensors")]
    tensors = {
        f"{path.relative_to(workspace)}:{name}": digest
        for path in sorted(made)
        for name, digest in digests(path).items()
    }
    ledgers = sorted(workspace.glob("site-*/simulate_job/egress.jsonl"))
    sent = {path.parts[-3]: list(messages(path.read_text(encoding="utf-8"))) for path in ledgers}
    return facts | {"tensors": tensors, "sent": sent}


def digests(path: Path) -> dict[str, str]:
    """Return the digest of every tensor of a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {
            name: hashlib.sha256(file.get_tensor(name).float().numpy().tobytes()).hexdigest()[:16]
            for name in file.keys()  # noqa: SIM118 - safe_open is no mapping
        }


def messages(ledger: str) -> Iterator[str]:
    """Yield event, round, task and digest of each line of a site's ledger; of sealed ones no digest."""
    for line in map(json.loads, ledger.splitlines()):
        digest = "protected" if line.get("protections") else str(line.get("sha256"))[:16]
        yield f"{line['event']} {line.get('round')} {line.get('task')} {digest}"


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) of every leaf that is compared, with renamed keys under their new names."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key not in VOLATILE:
                yield from leaves(inner, f"{path}/{RENAMED.get(key, key)}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}/{index}")
    else:
        yield path, value


def differences(before: Mapping[str, Any], after: Mapping[str, Any], digits: int = 0) -> list[str]:
    """Return one line for every leaf that is missing, new or different.

    Args:
        digits: significant digits that floats must share; 0 for all, bit for bit.
    """
    old, new = dict(leaves(before)), dict(leaves(after))
    lines = [f"missing  {path}: {old[path]!r}" for path in sorted(set(old) - set(new))]
    added = sorted(path for path in set(new) - set(old) if path.rpartition("/")[2] not in ADDED)
    lines += [f"new      {path}: {new[path]!r}" for path in added]
    changed = sorted(path for path in set(old) & set(new) if not alike(old[path], new[path], digits))
    return lines + [f"changed  {path}: {old[path]!r} -> {new[path]!r}" for path in changed]


def alike(old: Any, new: Any, digits: int) -> bool:
    """Return whether two values are equal, or floats no farther apart than rounding to `digits` puts them."""
    if old == new or not digits or not isinstance(old, float) or not isinstance(new, float):
        return bool(old == new)
    if old.is_integer():  # a count is not rounded
        return False
    return abs(new - old) <= 0.5 * 10.0 ** (1 - digits) * abs(old)


def compare(before: Path, after: Path, most: int, digits: int = 0) -> int:
    """Print the differences of two recordings; return the exit status, 1 if there are any."""
    status = 0
    for path in sorted(before.glob("*.json")):
        other = after / path.name
        if not other.is_file():
            print(f"{path.stem}: not recorded in {after}")
            continue
        lines = differences(json.loads(path.read_text()), json.loads(other.read_text()), digits)
        print(f"{path.stem}: {'equal' if not lines else f'{len(lines)} differences'}")
        print("".join(f"  {line}\n" for line in lines[:most]), end="")
        status |= bool(lines)
    return status


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("names", nargs="*", metavar="run", help=f"default: all of {', '.join(RUNS)}")
    recording.add_argument("--cohorts", type=Path, help="a recording whose synthetic hospitals to use")
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--most", type=int, default=20, help="lines shown for each run")
    comparing.add_argument("--digits", type=int, default=0, help="that floats must share; 0 for all")
    given = parser.parse_args()
    if given.command == "compare":
        raise SystemExit(compare(given.before, given.after, given.most, given.digits))
    record(given.out.resolve(), given.names or list(RUNS), given.cohorts)


if __name__ == "__main__":
    main()
