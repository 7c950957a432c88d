# SPDX-License-Identifier: Apache-2.0
"""Cost of a rule at the server: seconds and memory from 2 to 100 sites, beside stock FLARE and Flower.

    python benchmarks/server_cost.py [--layers 32] [--sites 2,10,100] [--dtype float32] [--rules krum,median]

Updates are those of a LoRA of rank 16 on every projection of Llama-3-8B: `--layers 32` is 41,943,040
parameters. They lie in memory-mapped files and are handed to a rule one by one, as they would arrive. Every
cell is a process of its own. `peak` is the largest growth of its anonymous memory while it works, so without
the mapped updates, in units of one model in fp32; a rule that compares updates needs these too (`holds`).
`bandwidth` is what a rule must read and write at least (each update, and a sum in fp32) by its seconds, as a
share of what `copy_` of tensors of the same sizes reaches right after, in the same process. With one thread,
seconds are processor time, so that neighbours on the machine count little; with more, they are the clock's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import logging
import multiprocessing
import resource
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from medflare.aggregation import RULES, make_rule, rule_class
from medflare.core.tensors import State
from medflare.core.update import Update

CONTEXT = multiprocessing.get_context("fork")
"""A child begins with what this process has imported, and with nothing else."""
RANK = 16
PROJECTIONS = {
    "q_proj": (4096, 4096),
    "k_proj": (1024, 4096),
    "v_proj": (1024, 4096),
    "o_proj": (4096, 4096),
    "gate_proj": (14336, 4096),
    "up_proj": (14336, 4096),
    "down_proj": (4096, 14336),
}
"""Name -> (d_out, d_in)."""
FILES = 6
"""Different updates on disk; further sites use them again."""
SAME = ("weighted_mean",)
"""Names of what `fedavg` is too."""
IMPORTED = {
    "FLARE": "nvflare.app_common.aggregators.weighted_aggregation_helper",
    "Flower": "flwr.server.strategy.aggregate",
    "medflare": "medflare.federation.server.aggregator",
}
"""Modules that children need, imported before they start so that no seconds are of imports."""
SETTINGS: dict[str, dict[str, Any]] = {
    "influence": {"mode": "client"},
    **{name: {"allow_unsafe": True} for name in ("krum", "multi_krum", "bulyan", "trimmed_mean")},
}
CHECKED = "fedavg with checks"
"""The same behind federation.aggregator, which looks at every value of an update first."""
OTHERS = ("stock FLARE", "Flower FedAvg", "Flower Krum", "Flower median", "Flower trimmed_avg")


def shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the shared tensors."""
    out: dict[str, tuple[int, ...]] = {}
    for layer in range(layers):
        for name, (d_out, d_in) in PROJECTIONS.items():
            out[f"adapter.layers.{layer}.{name}.lora_A.weight"] = (RANK, d_in)
            out[f"adapter.layers.{layer}.{name}.lora_B.weight"] = (d_out, RANK)
    return out


def parameters(layers: int) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes(layers).values())


# ---- one cell, in a process of its own ---------------------------------------------------------------------


def opened(file: Path, layers: int, dtype: torch.dtype) -> State:
    """The mapped tensors of one update; nothing is read before it is used."""
    flat = torch.from_file(str(file), shared=False, size=parameters(layers), dtype=dtype)
    sizes = [torch.Size(shape).numel() for shape in shapes(layers).values()]
    return {
        n: part.view(shape)
        for (n, shape), part in zip(shapes(layers).items(), flat.split(sizes), strict=True)
    }


def updates(deltas: Sequence[State], sites: int) -> Iterator[tuple[str, Update]]:
    """One update after the other, as they arrive."""
    for k in range(sites):
        metrics = {"val_loss": 1 + k / sites}
        yield f"site-{k:03d}", Update(delta=deltas[k % len(deltas)], examples=100 + k, metrics=metrics)


def clock() -> float:
    """Seconds of this thread where it does all the work, else of the wall."""
    return time.thread_time() if torch.get_num_threads() == 1 else time.perf_counter()


class Peak:
    """Largest growth of a process's anonymous memory while the block runs; bytes."""

    def __enter__(self) -> Peak:
        self.start = self.most = anonymous()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.003):
            self.most = max(self.most, anonymous())

    def __exit__(self, *unused: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def growth(self) -> int:
        return self.most - self.start


def anonymous() -> int:
    """Bytes of anonymous resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this benchmark reads RssAnon from /proc/self/status, which this system lacks.")


def our_rule(name: str) -> Callable[[State, Iterator[tuple[str, Update]]], object]:
    """A round of one of our rules."""
    rule = make_rule(name, SETTINGS.get(name, {}))

    def run(state: State, given: Iterator[tuple[str, Update]]) -> object:
        if name == "freeze_a":
            state = {key: value for key, value in state.items() if ".lora_B." in key}
        rule.begin(state)
        for site, update in given:
            rule.add(site, update)
        return rule.finish()

    return run


def checked(state: State, given: Iterator[tuple[str, Update]]) -> object:
    """A round as the server has it: names, shapes and values checked, the norms of the change measured."""
    from medflare.federation.server.aggregator import ValidatingAggregator

    aggregator = ValidatingAggregator("fedavg")
    sites = [f"site-{k:03d}" for k in range(1000)]
    spec = {key: (tuple(value.shape), value.dtype) for key, value in state.items()}
    aggregator.expect(spec, {}, dict.fromkeys(sites, 10_000))
    aggregator.begin(0, state, sites)
    for site, update in given:
        reason = aggregator.accept(site, 0, {"examples": update.examples}, update.delta)
        assert reason is None, reason
    return aggregator.finish()


def stock_flare(state: State, given: Iterator[tuple[str, Update]]) -> object:
    """FLARE's own helper, behind its FedAvg and its accumulating aggregator."""
    from nvflare.app_common.aggregators.weighted_aggregation_helper import WeightedAggregationHelper

    helper = WeightedAggregationHelper()
    for site, update in given:
        helper.add(update.delta, update.examples, site, 0)
    mean = helper.get_result()
    return {name: value + mean[name] for name, value in state.items()}


def flower(function: str) -> Callable[[State, Iterator[tuple[str, Update]]], object]:
    """Flower's aggregation functions, on numpy views of the same arrays."""
    from flwr.server.strategy import aggregate

    functions: dict[str, Callable[[Any], object]] = {
        "FedAvg": aggregate.aggregate,
        "Krum": lambda results: aggregate.aggregate_krum(results, 1, 0),
        "median": aggregate.aggregate_median,
        "trimmed_avg": lambda results: aggregate.aggregate_trimmed_avg(
            results, 1 / len(results) if len(results) > 2 else 0.0
        ),
    }

    def run(state: State, given: Iterator[tuple[str, Update]]) -> object:
        results = [([v.numpy() for v in update.delta.values()], update.examples) for _, update in given]
        return functions[function](results)

    return run


def measure(name: str, folder: Path, sites: int, layers: int, dtype: torch.dtype) -> dict[str, float]:
    """Seconds of one round and its peak memory; the mapped files have been read once."""
    others = {CHECKED: checked, OTHERS[0]: stock_flare}
    run = our_rule(name) if name in RULES else others.get(name) or flower(name.split()[1])
    deltas = [opened(folder / f"{k}.bin", layers, dtype) for k in range(min(sites, FILES))]
    for delta in deltas:
        for value in delta.values():
            value.sum()
    state = {key: torch.zeros(shape) for key, shape in shapes(layers).items()}
    with Peak() as peak:
        started = clock()
        kept = run(state, updates(deltas, sites))
        seconds = clock() - started
        del kept
    return {
        "seconds": seconds,
        "peak": peak.growth / (4 * parameters(layers)),
        "copied": copy_bandwidth(layers),
    }


def copy_bandwidth(layers: int) -> float:
    """Bytes a second of `copy_` over tensors of the model's sizes; the best of three passes."""
    source = {key: torch.ones(shape) for key, shape in shapes(layers).items()}
    target = {key: torch.empty_like(value) for key, value in source.items()}
    best = float("inf")
    for _ in range(4):
        started = clock()
        for key, value in source.items():
            target[key].copy_(value)
        best = min(best, clock() - started)
    return 8 * parameters(layers) / best


# ---- the table ---------------------------------------------------------------------------------------------


def write_updates(folder: Path, layers: int, dtype: torch.dtype, count: int) -> None:
    for k in range(count):
        values = torch.randn(parameters(layers), generator=torch.Generator().manual_seed(k)) * 1e-3
        mapped = torch.from_file(str(folder / f"{k}.bin"), shared=True, size=len(values), dtype=dtype)
        mapped.copy_(values)


def cell(name: str, folder: Path, sites: int, given: argparse.Namespace) -> dict[str, Any]:
    """Measurements of a child process; `error` in its place where it did not come to an end."""
    own, childs = CONTEXT.Pipe(duplex=False)
    child = CONTEXT.Process(target=_measured, args=(childs, name, folder, sites, given))
    child.start()
    childs.close()
    found: dict[str, Any] = {"error": f"> {given.limit:g} s"}
    if own.poll(given.limit):
        try:
            found = own.recv()
        except EOFError:
            found = {"error": "killed"}
    child.kill()
    child.join()
    return found


def _measured(back: Connection, name: str, folder: Path, sites: int, given: argparse.Namespace) -> None:
    """In the child: sends back the numbers, or what went wrong."""
    torch.set_num_threads(given.threads)
    most = int(given.memory * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        back.send(measure(name, folder, sites, given.layers, getattr(torch, given.dtype)))
    except Exception as error:
        text = str(error)
        full = isinstance(error, MemoryError) or "alloc" in text
        back.send({"error": f"> {given.memory:g} GiB" if full else f"{type(error).__name__}: {text}"[:80]})


def row(name: str, sites: int, found: dict[str, Any], given: argparse.Namespace) -> Sequence[str]:
    if "error" in found:
        return (name, str(sites), found["error"], "", "", "")
    compares = name in RULES and rule_class(name).facts.compares
    share = "" if compares else f"{traffic(name, sites, given) / found['seconds'] / found['copied']:.2f}"
    holds = "one update" if streams(name) else "all updates"
    return (name, str(sites), f"{found['seconds']:.2f}", f"{found['peak']:.2f}", holds, share)


def streams(name: str) -> bool:
    """Return whether one update at a time is enough."""
    return rule_class(name).facts.streams if name in RULES else name in (CHECKED, OTHERS[0])


def traffic(name: str, sites: int, given: argparse.Namespace) -> int:
    """Bytes that a running sum reads and writes: every update, and the sum twice for each."""
    held = {n: s for n, s in shapes(given.layers).items() if name != "freeze_a" or ".lora_B." in n}
    count = sum(torch.Size(shape).numel() for shape in held.values())
    return sites * count * (getattr(torch, given.dtype).itemsize + 8)


def table(given: argparse.Namespace) -> Iterator[str]:
    """Markdown, line by line as it is measured."""
    dtype = getattr(torch, given.dtype)
    with tempfile.TemporaryDirectory(dir=given.folder) as holder:
        folder = Path(holder)
        write_updates(folder, given.layers, dtype, min(FILES, max(given.sites + given.held)))
        count = f"{parameters(given.layers):,} parameters"
        yield f"{count}, updates in {given.dtype}, {given.threads} thread(s).\n"
        yield "| rule | sites | seconds | peak, models | holds | bandwidth |\n|---|---:|---:|---:|---|---:|"
        for name in sorted(given.rules, key=lambda name: not streams(name)):
            for sites in given.sites if streams(name) else given.held:
                found = cell(name, folder, sites, given)
                yield "| " + " | ".join(row(name, sites, found, given)) + " |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    ours = [name for name in sorted(RULES) if name not in SAME]
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--sites", type=lambda s: [int(x) for x in s.split(",")], default=[2, 10, 100])
    parser.add_argument(
        "--held",
        type=lambda s: [int(x) for x in s.split(",")],
        default=[2, 10],
        help="sites of what needs all updates at once",
    )
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rules", type=lambda s: s.split(","), default=[*ours, CHECKED, *OTHERS])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one cell")
    parser.add_argument("--memory", type=float, default=6.0, help="GiB that one cell may take")
    parser.add_argument("--folder", type=Path, help="where the updates are written; default: temporary files")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    torch.set_num_threads(1)
    for name, module in (("Flower", "flwr"), ("stock FLARE", "nvflare")):
        if importlib.util.find_spec(module) is None:
            given.rules = [rule for rule in given.rules if not rule.startswith(name)]
            print(f"{module} is not installed: {name} is left out.\n")
    if given.dtype == "bfloat16":
        given.rules = [rule for rule in given.rules if not rule.startswith("Flower")]
    for module in IMPORTED.values():
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    logging.getLogger("medflare.aggregation").setLevel(logging.ERROR)  # fewer sites than a guarantee needs
    for line in table(given):
        print(line, flush=True)


if __name__ == "__main__":
    main()
