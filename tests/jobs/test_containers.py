# SPDX-License-Identifier: Apache-2.0
"""Docker image, compose file, health command and Kubernetes preparation, as far as no engine is needed."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit_folders import REPOSITORY, local, provision

from medflare.deployment import health
from medflare.deployment.hardening import harden
from medflare.deployment.kit_check import check
from medflare.deployment.kits import as_kit
from medflare.version import __version__

FOLDER = REPOSITORY / "provisioning"
DOCKERFILE = (FOLDER / "docker/Dockerfile").read_text()
COMPOSE = yaml.safe_load((FOLDER / "docker/compose.yml").read_text())
SERVICES = COMPOSE["services"]
PORT = next(
    p["fed_learn_port"]
    for p in yaml.safe_load((FOLDER / "project.yml").read_text())["participants"]
    if p["type"] == "server"
)


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, argument) of a Dockerfile, continued lines joined."""
    joined = re.sub(r"\\\n\s*", "", text)
    lines = [line for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


STEPS = instructions(DOCKERFILE)


# ---- image ---------------------------------------------------------------------------------------


def test_the_image_pins_its_python_and_it_is_one_that_medflare_supports() -> None:
    bases = {value.split()[0] for name, value in STEPS if name == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.1[12]\.\d+-slim-bookworm", bases.pop())


def test_the_last_user_is_not_root_and_what_starts_is_the_signed_script() -> None:
    last = dict(STEPS)
    assert last["USER"] == "10001:10001"
    assert last["ENTRYPOINT"] == '["bash", "/kit/startup/sub_start.sh", "--once"]'
    assert '"medflare.deployment.health", "/kit"' in last["HEALTHCHECK"]
    assert last["WORKDIR"] == "/kit"


def test_the_image_asks_no_hub_and_logs_no_exception_texts() -> None:
    environment = next(value for name, value in STEPS if name == "ENV" and "HF_HUB_OFFLINE" in value)
    assert "HF_HUB_OFFLINE=1" in environment
    assert "NVFLARE_SECURE_LOGGING=true" in environment


def test_only_the_package_reaches_the_image() -> None:
    copied = [value for name, value in STEPS if name == "COPY" and "--from" not in value]
    package = "setup.cfg pyproject.toml README.md LICENSE"
    assert copied == ["provisioning/docker/*.lock ./", f"{package} ./", "custom custom"]
    for name in package.split():
        assert (REPOSITORY / name).is_file()
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {"!custom", "!setup.cfg", "!pyproject.toml", "!README.md", "!LICENSE"} < set(ignored)
    assert not {"ADD", "EXPOSE"} & {name for name, _ in STEPS}


def engine() -> str | None:
    """A program that builds and runs images here; None where none does, as without its service."""
    for program in ("docker", "podman"):
        if shutil.which(program) and subprocess.run([program, "info"], capture_output=True).returncode == 0:
            return program
    return None


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_the_image_is_built_and_runs_without_privileges() -> None:
    """Needs an engine and a package index; all packages are installed into the image."""
    program = engine()
    if program is None:
        pytest.skip("no container engine answers on this machine")
    image = f"medflare-test:{__version__}"
    build = ["build", "-f", str(FOLDER / "docker/Dockerfile"), "-t", image, str(REPOSITORY)]
    subprocess.run([program, *build], check=True)
    confined = ["run", "--rm", "--read-only", "--cap-drop=ALL", "--network=none", "--tmpfs=/tmp"]
    try:
        for command, expected in (
            (["medflare", "--version"], __version__),
            (["id", "-u"], "10001"),
            (["medflare", "methods"], "fedmrg"),
        ):
            run = [program, *confined, f"--entrypoint={command[0]}", image, *command[1:]]
            done = subprocess.run(run, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            assert expected in done.stdout
    finally:
        subprocess.run([program, "rmi", "--force", image], capture_output=True)


# ---- compose -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["server", "site"])
def test_a_service_has_no_privilege_and_writes_only_into_its_kit(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"].startswith("${MEDFLARE_UID")
    assert not {"privileged", "network_mode", "devices", "pid"} & set(service)
    writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert writable == ["${MEDFLARE_KIT:?folder of the hardened kit}:/kit"]


@pytest.mark.parametrize("name", ["server", "site"])
def test_signed_files_and_settings_are_read_only(name: str) -> None:
    mounts = {volume.split(":")[-2] for volume in SERVICES[name]["volumes"] if volume.endswith(":ro")}
    assert {"/kit/startup", "/kit/local"} <= mounts


def test_one_port_is_open_at_the_server_and_none_at_a_site() -> None:
    assert SERVICES["server"]["ports"] == [f"{PORT}:{PORT}"]
    assert "ports" not in SERVICES["site"]


def test_the_cohort_is_where_site_yaml_looks_for_it_and_cannot_be_written(tmp_path: Path) -> None:
    template = yaml.safe_load((REPOSITORY / "workspace_templates/site/local/site.yaml").read_text())
    assert template["cohort"]["root"] == "../cohort"
    assert [volume for volume in SERVICES["site"]["volumes"] if volume.endswith(":/kit/cohort:ro")]


def test_every_file_names_the_same_image() -> None:
    named = {service["image"] for service in SERVICES.values()}
    for role in ("server", "site"):
        named.add(kubernetes(role)["parent"]["docker_image"])
    assert named == {f"medflare:{'.'.join(__version__.split('.')[:2])}"}


# ---- health --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("kits")
    result = provision(workspace)
    harden(result)
    return result


@pytest.fixture
def listening(kits: Path) -> Iterator[int]:
    """A listener on a free port, which the kits then name as the server's."""
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
        for kit, file in (("flserver", "fed_server.json"), ("site-1", "fed_client.json")):
            path = kits / kit / "startup" / file
            path.write_text(re.sub(r"localhost:\d+", f"localhost:{port}", path.read_text()))
            path.write_text(re.sub(r'"admin_port": \d+', f'"admin_port": {port}', path.read_text()))
        yield port


def test_a_server_is_up_while_its_port_answers(kits: Path, listening: int) -> None:
    assert health.health(as_kit(kits / "flserver")) is None
    assert health.main([str(kits / "flserver")]) == 0


def test_a_site_is_up_while_it_is_connected(kits: Path, listening: int) -> None:
    site = as_kit(kits / "site-1")
    assert f"no connection to localhost:{listening}" in str(health.health(site))
    with socket.create_connection(("localhost", listening)):
        assert health.health(site) is None


def test_behind_a_proxy_the_connection_is_to_the_proxy(
    kits: Path, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("localhost", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://localhost:{proxy.getsockname()[1]}")
        with socket.create_connection(proxy.getsockname()):
            assert health.health(as_kit(kits / "site-1")) is None


def test_a_dead_server_is_told(kits: Path, listening: int, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        free = probe.getsockname()[1]
    path = kits / "flserver/startup/fed_server.json"
    path.write_text(re.sub(r'"admin_port": \d+', f'"admin_port": {free}', path.read_text()))
    assert health.main([str(kits / "flserver")]) == 1
    assert f"does not answer on its port {free}" in capsys.readouterr().out


def test_the_health_command_loads_no_torch() -> None:
    code = (
        "import sys, medflare.deployment.health; sys.exit('torch' in sys.modules or 'nvflare' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# ---- Kubernetes ----------------------------------------------------------------------------------


def kubernetes(role: str) -> dict[str, Any]:
    return yaml.safe_load((FOLDER / f"kubernetes/{role}.yaml").read_text())


@pytest.mark.parametrize(("role", "name"), [("server", "flserver"), ("site", "site-1")])
def test_flare_prepares_the_kit_and_hardening_comes_after_it(tmp_path: Path, role: str, name: str) -> None:
    kit = provision(tmp_path / "kits") / name
    harden(kit)
    prepared = tmp_path / "prepared"
    config = FOLDER / f"kubernetes/{role}.yaml"
    command = [sys.executable, "-m", "nvflare.cli", "deploy", "prepare", str(kit)]
    done = subprocess.run(
        [*command, "--config", str(config), "--output", str(prepared)],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [found for found in check(prepared) if "class_allow_list" in found.found], (
        "prepare undid hardening"
    )
    harden(prepared)
    assert check(prepared) == []
    launchers = [
        part for part in local(prepared, "resources.json")["components"] if part["id"] == "k8s_launcher"
    ]
    assert launchers[0]["args"]["security_context"]["runAsNonRoot"] is True
    values = yaml.safe_load((prepared / "helm_chart/values.yaml").read_text())
    assert values["securityContext"]["runAsUser"] == 10001
    assert values["command"] == ["/opt/medflare/bin/python"]
    assert (
        f"{values['image']['repository']}:{values['image']['tag']}"
        == kubernetes(role)["parent"]["docker_image"]
    )
