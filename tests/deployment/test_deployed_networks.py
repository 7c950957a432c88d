# SPDX-License-Identifier: Apache-2.0
"""A site's network is cut, the site stands still for two minutes, or its certificate expires in mid-run."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import deployed_jobs
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cut_network import Network
from deployed import SITES, Federation, Finished
from deployed_programs import run as run_program
from deployed_programs import wait_until
from nvflare.fuel.flare_api.api_spec import InvalidTarget
from test_deployed_crashes import medflare, submitted, tensors

from medflare.deployment import hardening
from medflare.wire.durable import read_json, write_json

ENDLESS = {"steps": 1, "num_rounds": 4000, "seed": 77, "min_responses": 2, "evaluate_every": 0}
"""A run that is paused when enough was seen."""
SITE = "site-2"

pytestmark = pytest.mark.faults


def start_again(federation: Federation) -> None:
    """Kill site 2 and start it; the server forgets the one that is gone, so that it waits for the new one."""
    if SITE in federation.processes:
        federation.kill(SITE)
    with federation.session() as session, contextlib.suppress(InvalidTarget):
        session.remove_client(SITE)
    federation.start(SITE)
    federation.wait_ready(*SITES)


@pytest.fixture(scope="module")
def network(federation: Federation) -> Iterator[Network]:
    """Between the server and site 2, which is started again to go through it, and once more afterwards."""
    made = Network()
    federation.environments[SITE] = {"grpc_proxy": made.address, "no_grpc_proxy": "", "no_proxy": ""}
    start_again(federation)
    try:
        assert made.connections, f"{SITE} does not go through it"
        yield made
    finally:
        del federation.environments[SITE]
        made.close()
        start_again(federation)


def endless(federation: Federation, folder: Path) -> str:
    """A run without an end, in which site 2 has taken part."""
    job_id = federation.submit(deployed_jobs.tiny_job(folder, "fed_medlora", **ENDLESS))
    federation.wait_event(job_id, phase="update", site=SITE, round=1)
    return job_id


def wait_for_updates(federation: Federation, job_id: str, there: bool, rounds: int = 2) -> None:
    """Wait until site 2 took part, or did not, in the last rounds."""

    def found() -> bool:
        events = federation.progress(job_id)
        last = max((e["round"] for e in events if e["phase"] == "round"), default=0)
        recent = {e["round"] for e in events if e["phase"] == "update" and e["site"] == SITE}
        wanted = set(range(last - rounds, last))
        return wanted <= recent if there else last > rounds and not wanted & recent

    wait_until(f"{SITE} {'back in' if there else 'out of'} the rounds of {job_id}", found, 900, every=0.5)


def paused(federation: Federation, job_id: str, folder: Path) -> Finished:
    medflare("pause", job_id, "--kit", federation.kits / "admin@coordinator.org")
    run = federation.finished(job_id, folder)
    assert run.record.status == "paused", run.record.reason
    return run


def absences(run: Finished) -> list[str]:
    """Why site 2 missed rounds, each reason once."""
    return list(dict.fromkeys(entry.absent[SITE] for entry in run.record.rounds if SITE in entry.absent))


@pytest.mark.fault(
    "a site's network is cut in both directions for 20 s ({how})", phase="training, mTLS", result="equal"
)
@pytest.mark.parametrize("how", ["stall", "reset"])
def test_a_short_cut_of_the_network_costs_its_seconds(
    federation: Federation, fed_medlora_run: Finished, network: Network, tmp_path: Path, how: str
) -> None:
    job_id = submitted(federation, tmp_path / "job", deadline=300.0)
    federation.worker(SITE)
    federation.wait_event(job_id, phase="round", round=1)
    getattr(network, how)()
    time.sleep(20)
    network.mend()
    run = federation.finished(job_id, tmp_path / "out")
    assert (run.state, run.record.status) == ("FINISHED:COMPLETED", "completed"), run.record.reason
    assert [len(entry.accepted) for entry in run.record.rounds] == [3] * len(fed_medlora_run.record.rounds)
    assert tensors(run) == tensors(fed_medlora_run)


@pytest.mark.fault(
    "all processes of a site stand still for two minutes (SIGSTOP)",
    phase="training, mTLS",
    result="it misses rounds, by name, and takes part again",
)
def test_a_site_that_stood_still_for_two_minutes_takes_part_again(
    federation: Federation, tmp_path: Path
) -> None:
    job_id = endless(federation, tmp_path / "job")
    frozen = federation.tree(SITE)
    for process in frozen:
        process.suspend()
    until = time.monotonic() + 120
    wait_for_updates(federation, job_id, there=False)
    time.sleep(max(0.0, until - time.monotonic()))
    for process in frozen:
        process.resume()
    thawed = time.time()

    def back() -> float | None:
        events = federation.progress(job_id)
        later = (e["time"] - thawed for e in events if e["phase"] == "update" and e["site"] == SITE)
        return next((seconds for seconds in later if seconds > 0), None)

    wait_until(f"{SITE} back in {job_id}", lambda: back() is not None, 200, every=0.5)
    seconds = back()
    print(f"back after {seconds:.0f} s")
    assert seconds is not None
    assert seconds < 120, "a lost request for work is repeated after a minute"
    wait_for_updates(federation, job_id, there=True)
    run = paused(federation, job_id, tmp_path / "out")
    print("reasons:", absences(run))
    assert absences(run)
    assert SITE in run.record.rounds[-1].accepted


# ---- certificates ----------------------------------------------------------------------------------------


def expiring_certificate(state: dict[str, dict[str, str]], ends: datetime) -> str:
    """Return site 2's certificate of a provisioning workspace, made again with another end."""
    signer = serialization.load_pem_private_key(str(state["root_pri_key"]).encode(), None)
    old = x509.load_pem_x509_certificate(state[SITE]["cert"].encode())
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(ends)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    new = builder.sign(signer, hashes.SHA256())  # type: ignore[arg-type]
    return new.public_bytes(serialization.Encoding.PEM).decode()


def provision_again(federation: Federation, state: dict[str, dict[str, str]]) -> Path:
    """Provision from another state of certificates, as a coordinator does; return site 2's new `startup`."""
    workspace = federation.kits.parent
    write_json(workspace / "state/cert.json", state)
    project = workspace.parents[1] / "project.yml"
    run_program("nvflare", "provision", "-p", str(project), "-w", str(workspace.parent), "--force")
    hardening.harden(workspace.parent)
    return max(workspace.glob("prod_*")) / SITE / "startup"


@pytest.fixture
def certificates(federation: Federation, network: Network, tmp_path: Path) -> Iterator[Path]:
    """The `startup` of site 2's kit, which is put back afterwards."""
    startup, state = federation.kits / SITE / "startup", federation.kits.parent / "state/cert.json"
    shutil.copytree(startup, tmp_path / "startup")
    content = state.read_bytes()
    yield startup
    state.write_bytes(content)
    shutil.copytree(tmp_path / "startup", startup, dirs_exist_ok=True)
    network.mend()
    start_again(federation)


@pytest.mark.fault(
    "a site's certificate expires, and its connection breaks",
    phase="mid-run, mTLS",
    result="trains until it breaks, then out by name; takes part again with a new certificate",
)
def test_a_certificate_that_expires_in_mid_run_costs_that_site_its_part(
    federation: Federation, network: Network, certificates: Path, tmp_path: Path
) -> None:
    state = read_json(federation.kits.parent / "state/cert.json")
    ends = (datetime.now(UTC) + timedelta(seconds=150)).replace(microsecond=0)
    short = state | {SITE: state[SITE] | {"cert": expiring_certificate(state, ends)}}
    shutil.copytree(provision_again(federation, short), certificates, dirs_exist_ok=True)
    start_again(federation)
    job_id = endless(federation, tmp_path / "job")
    time.sleep(max(0.0, (ends - datetime.now(UTC)).total_seconds()) + 2)
    wait_for_updates(federation, job_id, there=True)  # what is connected stays connected
    network.reset()
    network.mend()
    wait_for_updates(federation, job_id, there=False)
    run = paused(federation, job_id, tmp_path / "paused")
    print("reasons:", absences(run))
    assert absences(run)
    shutil.copytree(tmp_path / "startup", certificates, dirs_exist_ok=True)
    start_again(federation)
    answer = medflare("resume", job_id, "--kit", federation.kits / "admin@coordinator.org")
    assert isinstance(answer, dict)
    again = str(answer["job"])
    federation.wait_event(again, phase="update", site=SITE)
    assert SITE in paused(federation, again, tmp_path / "again").record.rounds[-1].accepted
