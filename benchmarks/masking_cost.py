# SPDX-License-Identifier: Apache-2.0
"""Cost of secure aggregation by masking: seconds, memory and bytes, beside a sum in the clear.

    python benchmarks/masking_cost.py [--parameters 10000000] [--sites 3,5,10] [--bits 32,16] [--tensors 224]

Every cell is a process of its own with one thread; seconds are processor time, so that neighbours on the
machine do not count. `mask`: one site's update into fixed point and under all its masks. `messages`: all else
a site does: keys, signatures, shares, confirmation (RSA certificates of 2048 bits, as in FLARE's kits).
`add`: the server adds all masked updates. `unmask`: it recovers the secrets, takes off what masks are left
and decodes; `one gone`: the same where one of the sites dropped out after it shared its secrets. `plain`: the
server's weighted mean of fp32 updates, beginning to end. `peak`: largest growth of anonymous memory
meanwhile, in models in fp32. `up`: what one site sends in all phases together, by its parameters in int32 and
in bf16.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from medflare.aggregation import make_rule
from medflare.core.tensors import SharedSpec, State
from medflare.core.update import Update
from medflare.secure_aggregation.coordinator import Coordinator
from medflare.secure_aggregation.identity import Identity
from medflare.secure_aggregation.layout import Layout
from medflare.secure_aggregation.masked_update import Masked
from medflare.secure_aggregation.member import Member
from medflare.secure_aggregation.round_parameters import Limits, RoundParameters
from server_cost import Peak, clock

CELLS = ("site", "server", "server, one gone", "plain")
BOUND = 2.0**-5
"""Beyond the largest of the differences below, so that a ring of 16 bits can hold them too."""
SUMS: SharedSpec = {"sum:bank.count": ((28,), torch.float32)}


def spec(parameters: int, tensors: int) -> SharedSpec:
    """`tensors` of equal size, and one for what is left."""
    size = parameters // tensors
    out: SharedSpec = {f"adapter.{k:04d}": ((size,), torch.float32) for k in range(tensors)}
    if parameters % tensors:
        out["adapter.rest"] = ((parameters % tensors,), torch.float32)
    return out


def update(layout: Layout, seed: int) -> State:
    """Differences of the size that training with LoRA makes."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) * 1e-3 for name, (shape, _) in layout.spec.items()}


# ---- certificates ------------------------------------------------------------------------------------------


def certificate(
    subject: str, key: rsa.RSAPrivateKey, issuer: str, signer: rsa.RSAPrivateKey
) -> x509.Certificate:
    """As in FLARE's kits; the issuer's own one may sign."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in (subject, issuer)]
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(names[0])
        .issuer_name(names[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
    )
    if subject == issuer:
        builder = builder.add_extension(x509.BasicConstraints(True, None), critical=True)
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(signer, hashes.SHA256())


def identities(names: list[str], folder: Path) -> dict[str, Identity]:
    """Startup folders of a small project, read again as a site reads its own."""
    pem, root = serialization.Encoding.PEM, rsa.generate_private_key(65537, 2048)
    anchor = certificate("project", root, "project", root).public_bytes(pem)
    for name in names:
        key = rsa.generate_private_key(65537, 2048)
        (folder / name).mkdir()
        (folder / name / "rootCA.pem").write_bytes(anchor)
        (folder / name / "client.crt").write_bytes(certificate(name, key, "project", root).public_bytes(pem))
        form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        (folder / name / "client.key").write_bytes(key.private_bytes(pem, form, none))
    return {name: Identity.from_kit(folder / name) for name in names}


# ---- one cell, in a process of its own ---------------------------------------------------------------------


class Meter:
    """Adds up processor seconds and message bytes of one site."""

    def __init__(self) -> None:
        self.seconds, self.bytes = 0.0, 0

    def __call__(self, step: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        started = clock()
        message = step()
        self.seconds += clock() - started
        self.bytes += len(json.dumps(message))
        return message


class Round:
    """A round up to the masked updates, whose costs the cells take apart."""

    def __init__(self, sites: int, given: argparse.Namespace, folder: Path) -> None:
        names = [f"site-{k:02d}" for k in range(sites)]
        people = identities([*names, "server"], folder)
        self.layout = Layout.of(spec(given.parameters, given.tensors), SUMS)
        self.terms = RoundParameters.of(
            self.layout,
            run_id="cost",
            round=0,
            sites=names,
            most_weight=1000,
            bits=given.bits[0],
            bound=BOUND,
        )
        self.coordinator = Coordinator(self.terms, self.layout, people["server"])
        self.members = {name: Member(people[name], self.layout, Limits(min_sites=2)) for name in names}
        self.meters = {name: Meter() for name in names}
        for name, member in self.members.items():
            self.coordinator.add_advert(name, self.meters[name](partial(member.advertise, self.terms)))
        adverts = self.coordinator.adverts()
        for name, member in self.members.items():
            self.coordinator.add_shares(name, self.meters[name](partial(member.share, adverts)))

    def masked(self, name: str) -> Masked:
        packed = self.layout.pack(update(self.layout, int(name[-2:])))
        return self.members[name].mask(self.coordinator.shares_for(name), *packed, 500)

    def unmask(self, gone: set[str]) -> None:
        """Confirmations and reveals; the result is left."""
        survivors = self.coordinator.survivors()
        present = [name for name in self.members if name not in gone]
        for name in present:
            confirmed = self.meters[name](partial(self.members[name].confirm, survivors))
            self.coordinator.add_confirmation(name, confirmed)
        confirmations = self.coordinator.confirmations()
        for name in present:
            revealed = self.meters[name](partial(self.members[name].reveal, confirmations))
            self.coordinator.add_reveal(name, revealed)


def measure_site(round_: Round, given: argparse.Namespace) -> dict[str, float]:
    packed = round_.layout.pack(update(round_.layout, 0))
    shares = round_.coordinator.shares_for("site-00")
    with Peak() as peak:
        started = clock()
        masked = round_.members["site-00"].mask(shares, *packed, 500)
        seconds = clock() - started
    sent = masked.narrow.nbytes + masked.wide.nbytes
    round_.coordinator.add_masked("site-00", masked)
    for name in list(round_.members)[1:]:
        round_.coordinator.add_masked(name, round_.masked(name))
    round_.unmask(set())
    meter = round_.meters["site-00"]
    return {
        "mask": seconds,
        "messages": meter.seconds,
        "peak": peak.growth / 4 / given.parameters,
        "bytes": sent + meter.bytes,
    }


def measure_server(round_: Round, given: argparse.Namespace, gone: set[str]) -> dict[str, float]:
    updates = {name: round_.masked(name) for name in round_.members if name not in gone}
    if gone:
        round_.coordinator.shares_for(next(iter(updates)))
    with Peak() as peak:
        started = clock()
        for name, masked in updates.items():
            round_.coordinator.add_masked(name, masked)
        added = clock() - started
        round_.unmask(gone)
        started = clock()
        found = round_.coordinator.result()
        unmasked = clock() - started
    assert found.sites == tuple(updates)
    return {"add": added, "unmask": unmasked, "peak": peak.growth / 4 / given.parameters}


def measure_plain(sites: int, given: argparse.Namespace) -> dict[str, float]:
    shared = spec(given.parameters, given.tensors)
    layout = Layout.of(shared, {})
    deltas = [update(layout, k) for k in range(sites)]
    state = {name: torch.zeros(shape) for name, (shape, _) in shared.items()}
    rule = make_rule("fedavg", {})
    with Peak() as peak:
        started = clock()
        rule.begin(state)
        for k, delta in enumerate(deltas):
            rule.add(str(k), Update(delta=delta, examples=500))
        rule.finish()
        seconds = clock() - started
    return {"plain": seconds, "peak": peak.growth / 4 / given.parameters}


def measure(cell: str, sites: int, given: argparse.Namespace) -> dict[str, float]:
    if cell == "plain":
        return measure_plain(sites, given)
    with tempfile.TemporaryDirectory() as folder:
        round_ = Round(sites, given, Path(folder))
        if cell == "site":
            return measure_site(round_, given)
        return measure_server(round_, given, {"site-01"} if cell != "server" else set())


# ---- the table ---------------------------------------------------------------------------------------------


def child(cell: str, sites: int, bits: int, given: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", cell, "--sites", str(sites)]
    command += ["--bits", str(bits), "--parameters", str(given.parameters), "--tensors", str(given.tensors)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def table(given: argparse.Namespace) -> Iterator[str]:
    """Markdown, line by line as it is measured."""
    yield f"{given.parameters:,} parameters in {given.tensors} tensors, one thread.\n"
    yield (
        "| ring, bits | sites | site: mask, s | messages, s | peak | up / int32 | up / bf16 "
        "| server: add, s | unmask, s | one gone, s | peak | plain, s | peak |"
    )
    yield "|" + "---:|" * 13
    for bits, sites in product(given.bits, given.sites):
        site, server, gone, plain = (child(cell, sites, bits, given) for cell in CELLS)
        yield (
            f"| {bits} | {sites} | {site['mask']:.3f} | {site['messages']:.3f} | {site['peak']:.2f} "
            f"| {site['bytes'] / 4 / given.parameters:.4f} | {site['bytes'] / 2 / given.parameters:.4f} "
            f"| {server['add']:.3f} | {server['unmask']:.3f} | {gone['unmask']:.3f} | {server['peak']:.2f} "
            f"| {plain['plain']:.3f} | {plain['peak']:.2f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--sites", type=lambda s: [int(x) for x in s.split(",")], default=[3, 5, 10])
    parser.add_argument("--bits", type=lambda s: [int(x) for x in s.split(",")], default=[32, 16])
    parser.add_argument("--tensors", type=int, default=224)
    parser.add_argument("--one", choices=CELLS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.one:
        print(json.dumps(measure(given.one, given.sites[0], given)))
        return
    for line in table(given):
        print(line, flush=True)


if __name__ == "__main__":
    main()
