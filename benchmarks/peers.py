# SPDX-License-Identifier: Apache-2.0
"""Seconds to the first round and of a round beside stock FLARE: the same arrays, in turns, in the simulator.

    python benchmarks/peers.py --values 1000000,10000000 --rounds 8 --repeats 3

Three sites; training adds a constant to arrays, so that what is measured is everything around it. Of medflare
that is `medflare run` with a worker process at each site, ledger, checks and checkpoint; of stock FLARE its
own FedAvg with an executor of NumPy arrays in the process of the site, which imports PyTorch as one that
trains a model does (`--no-torch`: it does not). The first site writes down when it
begins to train: its first time is the start-up, the differences are the rounds. Ratios are of one pair of
runs, one after the other; the last line is their median with the least and the largest.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path

import psutil
import yaml

from medflare.recipes.allow_list import resources
from medflare.recipes.job import Job
from peer_parts.clock_file import VARIABLE

SITES = ("site-1", "site-2", "site-3")
PACKAGE = "medflare-peers"
"""Name of the package that pretends to offer the method of the arrays."""
HERE = Path(__file__).parent


def write_package(folder: Path) -> None:
    """Write what makes `peer_parts.array_method` a method of an installed package."""
    facts = folder / "medflare_peers-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "[medflare.methods]\npeer_arrays = peer_parts.array_method:METHOD\n"
    )


def write_ours(folder: Path, values: int, rounds: int) -> list[str]:
    """Write a job and the sites of medflare; return the command that runs it."""
    controller = {"num_rounds": rounds + 1, "evaluate_every": 0}
    job = Job(
        title="arrays",
        method="peer_arrays",
        n_clients=len(SITES),
        controller=controller,
        settings={"values": values},
    )
    job.write(folder / "arrays")
    (folder / "rows.jsonl").write_text('{"id": "1", "findings": "None.", "impression": "None."}\n')
    site = {
        "cohort": {"format": "summaries_jsonl", "root": str(folder)},
        "policy": {"plugins": [PACKAGE]},
    }
    (folder / "site.yaml").write_text(yaml.safe_dump({"sites": dict.fromkeys(SITES, site)}))
    command = [sys.executable, "-m", "medflare.cli.main", "run", str(folder / "arrays")]
    return [*command, "-f", str(folder / "site.yaml"), "-w", str(folder / "ws"), "--no-page", "--json"]


def write_stock(folder: Path, values: int, rounds: int, torch: bool = True) -> list[str]:
    """Write a job of stock FLARE; return the command that runs it.

    Args:
        torch: whether its sites import PyTorch.
    """
    config = folder / "stock" / "app" / "config"
    config.mkdir(parents=True)
    args = {"values": values, "num_clients": len(SITES), "num_rounds": rounds + 1}
    rounds_of = {"id": "controller", "path": "peer_parts.stock_parts.StockRounds", "args": args}
    trainer = {"path": "peer_parts.stock_parts.StockTrainer", "args": {"torch": torch}}
    server = {"format_version": 2, "workflows": [rounds_of], "components": []}
    client = {"format_version": 2, "executors": [{"tasks": ["train"], "executor": trainer}], "components": []}
    admitted = resources()
    admitted["class_allow_list"] += [rounds_of["path"], trainer["path"]]
    (folder / "ws" / "local").mkdir(parents=True)
    meta = {"name": "stock", "resource_spec": {}, "min_clients": 3, "deploy_map": {"app": ["@ALL"]}}
    for path, content in (
        (config / "config_fed_server.json", server),
        (config / "config_fed_client.json", client),
        (folder / "stock" / "meta.json", meta),
        (folder / "ws" / "local" / "resources.json", admitted),
    ):
        path.write_text(json.dumps(content))
    command = [sys.executable, "-m", "nvflare.cli", "simulator", str(folder / "stock")]
    return [*command, "-w", str(folder / "ws"), "-c", ",".join(SITES), "-t", str(len(SITES))]


def measure(command: list[str], folder: Path, package: Path) -> tuple[float, float, float]:
    """Run a command; return seconds of clock and of processor until its first site trains, and of a round."""
    clock = folder / "times.txt"
    paths = [str(HERE), str(package), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {
        VARIABLE: str(clock),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "MEDFLARE_PLUGINS": PACKAGE,
        "OMP_NUM_THREADS": "1",
    }
    started, log = time.time(), folder / "output.log"
    with log.open("wb") as output:
        process = psutil.Popen(command, env=env, stdout=output, stderr=output)
        while not clock.exists() and process.poll() is None:
            time.sleep(0.05)
        spent = processor_seconds(process)
        failed = process.wait()
    if failed or not clock.exists():
        raise SystemExit(f"{' '.join(command)}\n{log.read_text(errors='replace')[-6000:]}")
    times = [float(line) for line in clock.read_text().split()]
    return times[0] - started, spent, statistics.median(b - a for a, b in pairwise(times))


def processor_seconds(process: psutil.Process) -> float:
    """Return what a process and all below it have taken so far, those that have ended included."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        for one in (process, *process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                total += sum(one.cpu_times()[:4])
    return total


def spread(values: list[float]) -> str:
    """Return median, least and largest."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    """Print a row for each pair of runs, and the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--values", default="1000000,10000000", help="numbers in the arrays")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-torch", action="store_true", help="stock FLARE imports no PyTorch")
    given = parser.parse_args()
    print(
        "| values | start-up, s, medflare / FLARE | its processor seconds | a round, s |\n|---:|---|---|---|"
    )
    for values in map(int, given.values.split(",")):
        starts, spent, rounds = list[float](), list[float](), list[float]()
        for _ in range(given.repeats):
            seconds = []
            for write in (write_ours, partial(write_stock, torch=not given.no_torch)):
                with tempfile.TemporaryDirectory() as name:
                    folder = Path(name)
                    write_package(folder / "package")
                    command = write(folder, values, given.rounds)
                    seconds.append(measure(command, folder, folder / "package"))
            (start, cpu, a_round), (stock_start, stock_cpu, stock_round) = seconds
            starts.append(start / stock_start)
            spent.append(cpu / stock_cpu)
            rounds.append(a_round / stock_round)
            print(
                f"| {values:,} | {start:.1f} / {stock_start:.1f} | {cpu:.1f} / {stock_cpu:.1f} "
                f"| {a_round:.2f} / {stock_round:.2f} |",
                flush=True,
            )
        print(f"| {values:,}, ratio | {spread(starts)} | {spread(spent)} | {spread(rounds)} |", flush=True)


if __name__ == "__main__":
    main()
