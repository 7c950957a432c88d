# SPDX-License-Identifier: Apache-2.0
"""Cost of homomorphic encryption for a million parameters, beside stock FLARE's classes in the same run.

    python benchmarks/he_cost.py [--tensors 244] [--width 4096] [--sites 3] [--ways flare-pieces,ckks-pieces]

Each way encrypts the same updates at every site, adds them at the server and decrypts the result at a site,
each side in a process of its own. Stock FLARE is its `HEModelEncryptor`, `HEModelDecryptor`,
`HEInTimeAccumulateWeightedAggregator` and `HEModelShareableGenerator`, with its serialiser between them.
Seconds are processor time, so that neighbours on the machine do not count. `server` is the largest growth of
the server's anonymous memory from after its imports to the end. `error` is the largest difference of the mean
to that of the plain updates, which are uniform within ±0.01.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from medflare.secure_aggregation.encryption import Adder, decrypt, encrypt
from medflare.secure_aggregation.encryption_keys import read_server_context, read_site_context
from medflare.secure_aggregation.encryption_parameters import (
    PRESETS,
    SERVER_FILE,
    SITE_FILE,
    ContextParameters,
    make_contexts,
)
from medflare.secure_aggregation.encryption_schemes import HeParameters
from medflare.secure_aggregation.layout import Layout
from server_cost import Peak

TERMS = HeParameters(bound=1.0, additions=256)
STEPS = 10
STOCK = ContextParameters(coeff_mod_bit_sizes=(60, 40, 40))
"""HEBuilder's defaults."""
Arrays = dict[str, np.ndarray]
Measured = dict[str, float]


class Way(Protocol):
    """One way to encrypt; `folder` holds the context files and what is sent."""

    def seal(self, given: Arrays) -> bytes: ...

    def total(self, folder: Path, sites: int, lap: Callable[[str], None]) -> bytes: ...

    def open(self, message: bytes, sites: int) -> np.ndarray: ...


# ---- ours --------------------------------------------------------------------------------------------------


class Ours:
    """One flat vector, as the egress chain packs it."""

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        self.folder = folder
        self.layout = Layout.of({name: (shape, torch.float32) for name, shape in shapes.items()}, {})

    def seal(self, given: Arrays) -> bytes:
        flat, _ = self.layout.pack({name: torch.from_numpy(value) for name, value in given.items()})
        keys = read_site_context(self.folder / SITE_FILE)
        return encrypt(keys, flat, TERMS).numpy().tobytes()

    def total(self, folder: Path, sites: int, lap: Callable[[str], None]) -> bytes:
        adder = Adder(read_server_context(folder / SERVER_FILE), TERMS)
        for site in range(sites):
            adder.add(torch.frombuffer(bytearray((folder / f"up-{site}").read_bytes()), dtype=torch.uint8))
            lap("add")
        return adder.total().numpy().tobytes()

    def open(self, message: bytes, sites: int) -> np.ndarray:
        keys = read_site_context(self.folder / SITE_FILE)
        received = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        return decrypt(keys, received, self.layout.narrow.size, TERMS).numpy() / sites


# ---- stock FLARE -------------------------------------------------------------------------------------------


class Stock:
    """FLARE's filters, aggregator and shareable generator, driven as its workflow drives them."""

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        from nvflare.apis.event_type import EventType
        from nvflare.apis.fl_constant import FLContextKey
        from nvflare.apis.fl_context import FLContext
        from nvflare.fuel.sec.security_content_service import SecurityContentService

        logging.disable(logging.CRITICAL)
        SecurityContentService.initialize(str(folder))
        self.shapes, self.start = shapes, EventType.START_RUN
        self.context = FLContext()
        self.context.set_prop(FLContextKey.SECURE_MODE, False)

    def _started(self, component: Any) -> Any:
        component.handle_event(self.start, self.context)
        return component

    def seal(self, given: Arrays) -> bytes:
        from nvflare.apis.dxo import DXO, DataKind, MetaKey
        from nvflare.app_opt.he.model_encryptor import HEModelEncryptor
        from nvflare.fuel.utils import fobs

        encryptor = self._started(HEModelEncryptor())
        encryptor.n_iter = STEPS
        dxo = DXO(DataKind.WEIGHT_DIFF, data=dict(given), meta={MetaKey.NUM_STEPS_CURRENT_ROUND: STEPS})
        found: bytes = fobs.dumps(dict(encryptor._process(dxo, self.context).to_shareable()))
        return found

    def total(self, folder: Path, sites: int, lap: Callable[[str], None]) -> bytes:
        from nvflare.apis.fl_constant import ReservedKey
        from nvflare.apis.shareable import Shareable
        from nvflare.app_common.abstract.model import make_model_learnable
        from nvflare.app_common.app_constant import AppConstants
        from nvflare.app_opt.he.intime_accumulate_model_aggregator import HEInTimeAccumulateWeightedAggregator
        from nvflare.app_opt.he.model_shareable_generator import HEModelShareableGenerator
        from nvflare.fuel.utils import fobs

        aggregator = self._started(HEInTimeAccumulateWeightedAggregator())
        generator = self._started(HEModelShareableGenerator())
        zeros = {name: np.zeros(shape, np.float32) for name, shape in self.shapes.items()}
        self.context.set_prop(AppConstants.GLOBAL_MODEL, make_model_learnable(zeros, {}))
        self.context.set_prop(AppConstants.CURRENT_ROUND, 0)
        for site in range(sites):
            shareable = Shareable()
            shareable.update(fobs.loads((folder / f"up-{site}").read_bytes()))
            shareable.add_cookie(AppConstants.CONTRIBUTION_ROUND, 0)
            shareable.set_peer_props({ReservedKey.IDENTITY_NAME: f"site-{site}"})
            if not aggregator.accept(shareable, self.context):
                raise RuntimeError(f"stock FLARE refused the update of site-{site}.")
            lap("add")
        model = generator.shareable_to_learnable(aggregator.aggregate(self.context), self.context)
        found: bytes = fobs.dumps(dict(generator.learnable_to_shareable(model, self.context)))
        return found

    def open(self, message: bytes, sites: int) -> np.ndarray:
        from nvflare.apis.dxo import from_shareable
        from nvflare.apis.shareable import Shareable
        from nvflare.app_opt.he.model_decryptor import HEModelDecryptor
        from nvflare.fuel.utils import fobs

        shareable = Shareable()
        shareable.update(fobs.loads(message))
        dxo = from_shareable(shareable)
        decryptor = self._started(HEModelDecryptor())
        values = decryptor.decryption(dxo.data, dict.fromkeys(dxo.data, True), self.context)
        return np.concatenate([np.asarray(values[name]) for name in self.shapes])


@dataclass(frozen=True)
class Case:
    """A row of the table."""

    title: str
    kind: Callable[[Path, dict[str, tuple[int, ...]]], Way]
    parameters: ContextParameters
    pieces: bool = True


CASES = {
    "flare-whole": Case("stock FLARE, one tensor", Stock, STOCK, pieces=False),
    "flare-pieces": Case("stock FLARE, {tensors} tensors", Stock, STOCK),
    "flare-ours": Case("stock FLARE, one tensor, our kits", Stock, PRESETS["CKKS"], pieces=False),
    "ckks-stock": Case("medflare CKKS, {tensors} tensors, stock kits", Ours, STOCK),
    "ckks-whole": Case("medflare CKKS, one tensor", Ours, PRESETS["CKKS"], pieces=False),
    "ckks-pieces": Case("medflare CKKS, {tensors} tensors", Ours, PRESETS["CKKS"]),
    "bfv-pieces": Case("medflare BFV, {tensors} tensors", Ours, PRESETS["BFV"]),
}


def shapes_of(case: Case, tensors: int, width: int) -> dict[str, tuple[int, ...]]:
    if not case.pieces:
        return {"adapter": (tensors * width,)}
    return {f"adapter.layers.{k:03d}.lora.weight": (width,) for k in range(tensors)}


def update_of(shapes: dict[str, tuple[int, ...]], site: int) -> Arrays:
    """The same values, however many tensors they are in."""
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    flat = np.random.default_rng(site).uniform(-0.01, 0.01, sum(sizes)).astype(np.float32)
    return dict(zip(shapes, np.split(flat, np.cumsum(sizes)[:-1]), strict=True))


# ---- one side of one way, in a process of its own ----------------------------------------------------------


def side(name: str, which: str, folder: Path, given: argparse.Namespace) -> Measured:
    """Processor seconds, bytes, and for the server its memory."""
    case = CASES[name]
    shapes = shapes_of(case, given.tensors, given.width)
    way = case.kind(folder, shapes)
    laps: dict[str, list[float]] = {}
    last = time.process_time()

    def lap(what: str) -> None:
        nonlocal last
        laps.setdefault(what, []).append(time.process_time() - last)
        last = time.process_time()

    if which == "seal":
        for site in range(given.sites):
            update = update_of(shapes, site)
            lap("other")
            message = way.seal(update)
            lap("seal")
            (folder / f"up-{site}").write_bytes(message)
        return {"seal": min(laps["seal"]), "up": len(message)}
    if which == "add":
        with Peak() as peak:
            total = way.total(folder, given.sites, lap)
            lap("total")
        (folder / "down").write_bytes(total)
        return {"add": sum(laps["add"]) / given.sites, "total": laps["total"][0], "server": peak.growth} | {
            "down": len(total)
        }
    message = (folder / "down").read_bytes()
    lap("other")
    found = way.open(message, given.sites)
    lap("open")
    updates = [np.concatenate(list(update_of(shapes, site).values())) for site in range(given.sites)]
    error = np.abs(found - np.mean(updates, axis=0, dtype=np.float64)).max()
    return {"open": laps["open"][0], "error": float(error)}


def measured(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """All sides of one way; `error` holds text where one did not come to an end."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        make_contexts(Path(folder), CASES[name].parameters)
        for which in ("seal", "add", "open"):
            command = [sys.executable, __file__, "--one", name, "--side", which, "--folder", folder]
            command += [
                "--tensors",
                str(given.tensors),
                "--width",
                str(given.width),
                "--sites",
                str(given.sites),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                return {"failed": (done.stderr.strip().splitlines() or ["killed"])[-1][:90]}
            found |= json.loads(done.stdout.splitlines()[-1])
    return found


def table(given: argparse.Namespace) -> Iterator[str]:
    """Markdown, line by line as it is measured."""
    count = given.tensors * given.width
    yield (
        f"{count:,} parameters ({4 * count / 1e6:.1f} MB in fp32), {given.sites} sites. Seconds: a site "
        "encrypts and writes; the server reads and adds one message; it writes the total; a site reads and "
        "decrypts.\n"
    )
    columns = ("up, MB", "× fp32", "down, MB", "encrypt, s", "add, s", "total, s", "decrypt, s", "server, MB")
    yield "| | " + " | ".join([*columns, "error"]) + " |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name in given.ways:
        title, found = CASES[name].title.format(tensors=given.tensors), measured(name, given)
        if "failed" in found:
            yield f"| {title} | {found['failed']} |" + " |" * 8
            continue
        cells = [f"{found['up'] / 1e6:.1f}", f"{found['up'] / 4 / count:.1f}", f"{found['down'] / 1e6:.1f}"]
        cells += [f"{found[key]:.2f}" for key in ("seal", "add", "total", "open")]
        yield (
            "| " + " | ".join([title, *cells, f"{found['server'] / 1e6:.0f}", f"{found['error']:.0e}"]) + " |"
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tensors", type=int, default=244)
    parser.add_argument("--width", type=int, default=4096, help="values in each tensor")
    parser.add_argument("--sites", type=int, default=3)
    parser.add_argument("--ways", type=lambda s: s.split(","), default=list(CASES))
    parser.add_argument("--folder", type=Path, help="where messages are written; default: temporary files")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    given = arguments()
    if given.one:
        print(json.dumps(side(given.one, given.side, given.folder, given)))
        return
    for line in table(given):
        print(line, flush=True)


if __name__ == "__main__":
    main()
