# SPDX-License-Identifier: Apache-2.0
"""Checks of `medflare preflight` of the way to the server and the kit, and the command with all of them."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from preflight_kit import PATIENT, YEAR, Project, listening, proxy_answer, says, tls_answer, write_kit
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.deployment.kits import Kit
from medflare.deployment.preflight import kit_files, network, site_checks
from medflare.deployment.preflight.base import Check, exit_code, ok, problem, warning
from medflare.deployment.preflight.run import PreflightRequest, preflight
from medflare.wire.durable import write_json

REPOSITORY = Path(__file__).parents[2]
PROXY_NAMES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture(autouse=True)
def _patient_and_without_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FIRST_WORDS", PATIENT)
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def project() -> Project:
    return Project()


def outcomes(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


@pytest.fixture
def kit_of(tmp_path: Path, project: Project) -> Callable[..., Kit]:
    """Writes a site's kit that dials a port of this machine."""

    def make(port: int = 1, project: Project = project, left: timedelta = YEAR) -> Kit:
        return Kit(folder=write_kit(tmp_path / "kit", project, port, left), role="site")

    return make


# ---- the way to the server -------------------------------------------------------------------------------


def soon(project: Project, folder: Path) -> Any:
    return tls_answer(project, folder, timedelta(days=9))


def another_project(project: Project, folder: Path) -> Any:
    return tls_answer(Project("somebody else"), folder)


def ssh(project: Project, folder: Path) -> Any:
    return lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


@pytest.mark.parametrize(
    ("server", "outcome", "found", "remedy"),
    [
        (tls_answer, "ok", "both sides accept each other", ""),
        (soon, "warning", "the server's is valid until", ""),
        (another_project, "problem", "refused: ", "Do not start the kit"),
        (ssh, "problem", "no TLS handshake", ""),
    ],
)
def test_what_answers_at_the_servers_port_is_told(
    tmp_path: Path, project: Project, kit_of: Any, server: Any, outcome: str, found: str, remedy: str
) -> None:
    with listening(server(project, tmp_path / "server")) as port:
        reached, accepted = network.reach(kit_of(port), PATIENT)
    says(reached, "ok", f"localhost:{port} answers")
    says(accepted, outcome, found, remedy)


def test_a_port_that_nobody_listens_on_is_a_problem(kit_of: Any) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        (check,) = network.reach(kit_of(port), PATIENT)
    says(check, "problem", "refused", f"port {port}")


def test_a_kit_that_the_server_does_not_know_is_told_so(
    tmp_path: Path, project: Project, kit_of: Any
) -> None:
    """With TLS 1.3 our side of the handshake ends well, and the refusal comes afterwards."""
    with listening(tls_answer(project, tmp_path / "server")) as port:
        kit = kit_of(port, Project("medflare"))
        shutil.copy(tmp_path / "server/rootCA.pem", kit.startup / "rootCA.pem")
        _, check = network.reach(kit, PATIENT)
    says(check, "problem", "no TLS handshake")


def test_the_proxy_is_asked_for_a_way_to_the_server(
    tmp_path: Path, project: Project, kit_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with listening(tls_answer(project, tmp_path / "server")) as port, listening(proxy_answer(asked)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://ward:p%40ss@127.0.0.1:{proxy}")
        kit = kit_of(port)
        launcher = {"id": "process_launcher", "args": {"more": ["https_proxy"]}}
        write_json(kit.local / "resources.json", {"components": [launcher]})
        reached, accepted = network.reach(kit, PATIENT)
    says(reached, "ok", f"through the proxy 127.0.0.1:{proxy}")
    assert "p%40ss" not in reached.found
    says(accepted, "ok", "both sides accept each other")
    assert asked[0].startswith(f"CONNECT localhost:{port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic d2FyZDpwQHNz\r\n" in asked[0]


@pytest.mark.parametrize(("user", "named"), [("ward:p%40ss@", True), ("", False)])
def test_a_proxy_whose_password_jobs_do_not_get_is_a_problem(
    tmp_path: Path, project: Project, kit_of: Any, monkeypatch: pytest.MonkeyPatch, user: str, named: bool
) -> None:
    with listening(tls_answer(project, tmp_path / "server")) as port, listening(proxy_answer([])) as proxy:
        monkeypatch.setenv("https_proxy", f"http://{user}127.0.0.1:{proxy}")
        kit = kit_of(port)
        write_json(kit.local / "resources.json", {"components": [{"id": "process_launcher"}]})
        jobs = [check for check in network.reach(kit, PATIENT) if check.name == "proxy of jobs"]
    assert bool(jobs) is named
    if named:
        says(jobs[0], "problem", "holds a user's name or password")
        assert "p%40ss" not in f"{jobs[0].found} {jobs[0].remedy}"


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
def test_a_proxy_that_refuses_is_named_with_its_answer(
    kit_of: Any, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    with listening(proxy_answer([], status)) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy}")
        (check,) = network.reach(kit_of(8002), PATIENT)
    answer = f"the proxy answered 'HTTP/1.1 {status}'"
    says(check, "problem", answer, "allow the proxy to localhost port 8002")


def test_no_proxy_excludes_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "localhost,.hospital.org")
    assert network.proxy_for("localhost") is None
    assert network.proxy_for("fl.hospital.org") is None
    assert network.proxy_for("fl.coordinator.org") == "http://proxy:3128"


# ---- the kit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("days", "outcome", "found"),
    [
        (365, "ok", "valid until"),
        (31, "ok", "30 days"),
        (29, "warning", "in 28 days"),
        (-1, "problem", "expired on"),
    ],
)
def test_a_certificates_end_is_told_in_time(kit_of: Any, days: int, outcome: str, found: str) -> None:
    certificate, root = kit_files.certificates(kit_of(left=timedelta(days=days)))
    says(certificate, outcome, found)
    says(root, "ok", "valid until")


def test_a_certificate_of_tomorrow_is_about_the_clock(project: Project, kit_of: Any) -> None:
    before = project.root.not_valid_before_utc - timedelta(days=400)
    checks = kit_files.certificates(kit_of(), before)
    assert {check.remedy for check in checks} == {"Look at this machine's clock"}


def test_a_certificate_that_is_gone_is_a_problem(kit_of: Any) -> None:
    kit = kit_of()
    (kit.startup / "client.crt").write_text("nothing")
    (kit.startup / "rootCA.pem").unlink()
    assert [check.outcome for check in kit_files.certificates(kit)] == ["problem", "problem"]


@pytest.mark.parametrize("name", ["my kits", "nora's", 'a"b', "a\\b"])
def test_a_kit_that_flare_cannot_start_from_is_a_problem(kit_of: Any, name: str, tmp_path: Path) -> None:
    kit = kit_of()
    says(kit_files.location(kit), "ok", str(kit.folder))
    folder = kit.folder.rename(tmp_path / name)
    says(kit_files.location(Kit(folder=folder, role="site")), "problem", name)


def test_a_key_that_others_can_read_is_a_problem(kit_of: Any) -> None:
    kit = kit_of()
    says(kit_files.permissions(kit), "ok", "1 readable by their owner alone")
    (kit.startup / "client.key").chmod(0o640)
    says(kit_files.permissions(kit), "problem", "client.key 0640")


def test_a_provisioned_and_hardened_kit_passes_and_a_tampered_one_does_not(tmp_path: Path) -> None:
    project_file = REPOSITORY / "provisioning/project.yml"
    command = [sys.executable, "-m", "nvflare.cli", "provision", "-p", str(project_file), "-w", str(tmp_path)]
    subprocess.run(command, capture_output=True, timeout=400, check=True)
    folder = tmp_path / "medflare/prod_00/site-1"
    before = preflight(PreflightRequest(site_file=folder / "local/site.yaml", kit=folder, timeout=1))
    assert outcomes(before)["kit"] == "problem"
    assert outcomes(before)["site file"] == "problem"
    assert CliRunner().invoke(app, ["kits", "harden", str(folder)]).exit_code == 0
    after = outcomes(preflight(PreflightRequest(site_file=folder / "local/site.yaml", timeout=1)))
    assert {after[name] for name in ("kit", "key files", "site file", "certificate client.crt")} == {"ok"}
    assert after["server port"] == "problem"
    (folder / "startup/fed_client.json").write_text(
        (folder / "startup/fed_client.json").read_text().replace("localhost", "elsewhere")
    )
    (check,) = kit_files.hardened(Kit(folder=folder, role="site"))
    says(check, "problem", "startup/fed_client.json: was changed after it was signed")


# ---- all of it -------------------------------------------------------------------------------------------


def test_the_command_shows_examples() -> None:
    shown = CliRunner().invoke(app, ["preflight", "--help"], env={"COLUMNS": "200"})
    assert "medflare preflight --job jobs/fedmrg" in shown.output


def test_the_exit_code_is_that_of_the_worst_check() -> None:
    good, odd, bad = ok("a", "x"), warning("b", "x", "y", "z"), problem("c", "x", "y", "z")
    assert [exit_code(c) for c in ([], [good], [good, odd], [bad, odd])] == [0, 0, 1, 2]


def test_the_command_tells_all_checks_in_json_and_by_its_exit_code(
    tmp_path: Path, small_hospital: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=10**12))
    monkeypatch.setattr(site_checks, "free_memory", lambda device, gpus: (10**12, "CPU"))
    document = {"cohort": {"format": "manifest", "root": str(small_hospital)}, "device": "cpu"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    words = [
        "preflight",
        "--site-file",
        str(tmp_path / "site.yaml"),
        "--job",
        str(REPOSITORY / "jobs/fedmrg"),
    ]
    output = CliRunner().invoke(app, [*words, "--json"])
    facts = json.loads(output.stdout)
    assert output.exit_code == facts["exit_code"] == 0, output.stdout
    assert {check["name"] for check in facts["checks"]} == {
        *("kit", "site file", "identifiers", "job", "cohort", "labels"),
        *("backbone", "device", "memory", "disk", "policy"),
    }
    document["policy"] = {"methods": ["fed_medlora"]}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    refused = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert refused.exit_code == 2
    assert "policy.methods: method 'fedmrg' is not admitted; allowed: fed_medlora" in refused.output
    assert "1 problem(s), 0 warning(s)" in refused.output


def test_a_site_file_with_mistakes_is_one_check_that_names_them_all(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("cohort: {format: manifst, root: .}\npolicy: {methds: x}\n")
    output = CliRunner().invoke(app, ["preflight", "--site-file", str(tmp_path / "site.yaml"), "--json"])
    checks = {check["name"]: check for check in json.loads(output.stdout)["checks"]}
    assert output.exit_code == 2
    assert "no such format" in checks["site file"]["found"]
    assert "Did you mean 'methods'?" in checks["site file"]["found"]


def test_a_file_of_several_sites_asks_which(tmp_path: Path) -> None:
    cohort = {"cohort": {"format": "manifest", "root": "."}}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump({"sites": {"site-1": cohort, "site-2": cohort}}))
    checks = outcomes(preflight(PreflightRequest(site_file=tmp_path / "site.yaml")))
    assert checks["site file"] == "problem"
    named = outcomes(preflight(PreflightRequest(site_file=tmp_path / "site.yaml", site="site-2")))
    assert (named["site file"], named["cohort"]) == ("ok", "problem")


@pytest.mark.parametrize("role", ["nothing", "server"])
def test_a_folder_that_is_no_sites_kit_is_a_problem(tmp_path: Path, role: str) -> None:
    if role == "server":
        (tmp_path / "startup").mkdir()
        (tmp_path / "startup/fed_server.json").write_text("{}")
    check = next(
        c for c in preflight(PreflightRequest(site_file=tmp_path / "x.yaml", kit=tmp_path)) if c.name == "kit"
    )
    says(check, "problem", "is the kit of a server" if role == "server" else "no startup kit")
