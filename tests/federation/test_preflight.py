# SPDX-License-Identifier: Apache-2.0
"""Each check of `medflare preflight` says what is wrong, what was expected and what to do."""

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
from preflight_kit import PATIENT, YEAR, Project, listening, proxy_answer, tls_answer, write_kit
from typer.testing import CliRunner

from medflare.cli.main import app
from medflare.data.cohort_summary import summarise
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig
from medflare.deployment.kits import Kit
from medflare.deployment.preflight import kit_files, network, site_checks
from medflare.deployment.preflight.base import Check, exit_code, ok, problem, warning
from medflare.deployment.preflight.run import PreflightRequest, preflight
from medflare.egress.policy import Policy
from medflare.learners.footprint import Footprint
from medflare.learners.registry import METHODS, task_of
from medflare.recipes.job import Job
from medflare.wire.durable import write_json
from medflare.worker.memory_check import free_memory

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


def site(root: Path, reader: str = "manifest", device: str = "auto", **more: Any) -> SiteConfig:
    """Settings of a site; `backbone` is a block of its own, all else is of the cohort."""
    blocks = {"backbone": more.pop("backbone")} if "backbone" in more else {}
    cohort = {"format": reader, "root": str(root), **more}
    return SiteConfig.model_validate({"cohort": cohort, "device": device, **blocks})


def outcomes(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


def says(check: Check, outcome: str, found: str, remedy: str = "") -> None:
    assert check.outcome == outcome, check
    assert found in check.found
    assert outcome == "ok" or (check.expected and check.remedy)
    assert remedy in check.remedy


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


# ---- what the hospital brings ----------------------------------------------------------------------------


def test_a_cohort_is_counted_and_its_labels_named(small_hospital: Path) -> None:
    read, opened = site_checks.open_cohort(site(small_hospital), "fedmrg")
    says(read, "ok", "60 patients, 60 studies (train ")
    says(site_checks.labels(summarise(opened)), "ok", "conditions occur: ")


@pytest.mark.parametrize("method", METHODS)
def test_a_cohort_is_counted_for_every_method(method: str, small_hospital: Path) -> None:
    """Whatever a method reads; where that is another kind of record, the check says which."""
    read, _ = site_checks.open_cohort(site(small_hospital, visits={}), method)
    if task_of(method).reads in ("studies", "visits"):
        says(read, "ok", "60 patients, 60 studies (train ")
    else:
        says(read, "problem", "(train 0, val 0, test 0)", "to train on")


def test_a_site_without_visits_is_told_what_a_method_of_visits_needs(small_hospital: Path) -> None:
    read, _ = site_checks.open_cohort(site(small_hospital), "fedtar")
    says(read, "problem", "needs patients with visits", "Add 'visits: {}' to the cohort")


def test_questions_are_counted_without_a_method_too(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "options": ["x", "y"], "answer": "AB"[i % 2]} for i in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    read, opened = site_checks.open_cohort(site(tmp_path, "questions_jsonl"), None)
    says(read, "ok", "40 questions (train ")
    says(site_checks.labels(summarise(opened)), "ok", "answers A 20, B 20")


@pytest.mark.parametrize(
    ("summary", "outcome", "found"),
    [
        ({"labels": {"edema": 0, "pneumonia": 0}}, "problem", "no study has a positive condition"),
        ({"labels": {"edema": 3, "pneumonia": 0}}, "warning", "1 of 2 conditions occur: edema 3"),
        ({"entities": {}, "relations": {}}, "problem", "no note has an entity"),
        ({"entities": {"problem": 4}, "relations": {"severity": 2}}, "ok", "problem 4; 2 relations"),
        ({"asked": {"answers": {"A": 9}, "groups": {}}}, "problem", "every answer is A 9"),
        ({"asked": {"answers": {"A": 4, "B": 5}, "groups": {"none": 9}}}, "ok", "answers A 4, B 5; 1 groups"),
        (
            {"summarised": {"target_words": {"median": 8.0}, "masked": 3}, "summaries": 7},
            "ok",
            "8 words in the median target, 3 of 7 with de-identification marks",
        ),
    ],
)
def test_labels_that_teach_nothing_are_told(summary: Any, outcome: str, found: str) -> None:
    counts = {name: {"positive": n} for name, n in summary.get("labels", {}).items()}
    facts = {**summary, "labels": counts, "notes": int("entities" in summary)}
    says(site_checks.labels(facts), outcome, found)


FEDMRG = Job(title="fedmrg", method="fedmrg")
NEED = Footprint(frozen=10**8, learning=10**8, exchange=10**8, activations=10**8, runtime=6 * 10**8)
ONE_GB = "about 1.0 GB (frozen weights 0.10, learning weights and optimiser 0.10, exchange 0.10"
NEW_ENCODER = "no backbone.folder: a new encoder"
ALL_TRAIN = {"split": {"train": 1, "val": 0, "test": 0}, "columns": {"split": None}}
"""A source with a split of its own keeps it."""


def cohort(root: Path, method: str | None, **more: Any) -> Check:
    return site_checks.open_cohort(site(root, **more), method)[0]


def backbone(root: Path, folder: str) -> Check:
    return site_checks.backbone(site(root, backbone={"folder": str(root / folder)}), None)


def memory(root: Path, free: int, patch: pytest.MonkeyPatch) -> Check:
    patch.setattr(site_checks, "footprint", lambda *given: NEED)
    patch.setattr(site_checks, "free_memory", lambda device, gpus: (free, "CPU"))
    check = site_checks.memory(site(root), FEDMRG)
    assert "GB free on the CPU" in check.found
    assert check.outcome == "ok" or "an estimate, not a measurement" in check.expected
    return check


def disk(root: Path, free: int, patch: pytest.MonkeyPatch) -> Check:
    patch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (check,) = site_checks.disk([root / "not/yet/there", root])
    assert check.found.endswith(f"GB free at {root}")
    return check


@pytest.mark.parametrize(
    ("make", "outcome", "found"),
    [
        (lambda root, _: cohort(root / "nowhere", None), "problem", "nowhere"),
        (lambda root, _: cohort(root, "fed_medlora"), "problem", "0 notes"),
        (lambda root, _: cohort(root, "fedmrg", **ALL_TRAIN), "warning", "val 0"),
        (lambda root, _: backbone(root, "llama"), "problem", "there is no folder"),
        (lambda root, _: backbone(root, "."), "problem", "has no *.safetensors file"),
        (lambda root, _: site_checks.backbone(site(root), "fed_medlora"), "ok", "embedded notes_decoder"),
        (lambda root, _: site_checks.backbone(site(root), "token_classification"), "ok", NEW_ENCODER),
        (lambda root, _: site_checks.device(site(root, device="cuda")), "problem", "torch sees no GPU"),
        (lambda root, _: site_checks.device(site(root)), "ok", "CPU"),
        (lambda root, _: site_checks.memory(site(root), None), "ok", "name a job with --job"),
        (lambda root, patch: memory(root, 10**12, patch), "ok", ONE_GB),
        (lambda root, patch: memory(root, 11 * 10**8, patch), "warning", ONE_GB),
        (lambda root, patch: memory(root, 10**8, patch), "problem", ONE_GB),
        (lambda root, patch: disk(root, 10**12, patch), "ok", "1000.0 GB free"),
        (lambda root, patch: disk(root, 5 * 10**9, patch), "warning", "5.0 GB free"),
        (lambda root, patch: disk(root, 10**9, patch), "problem", "1.0 GB free"),
    ],
)
def test_what_a_site_brings_is_told(
    small_hospital: Path, monkeypatch: pytest.MonkeyPatch, make: Any, outcome: str, found: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    check = make(small_hospital, monkeypatch)
    says(check, outcome, found, "medflare cohort inspect" if found == "nowhere" else "")


def test_gpus_that_a_site_names_are_looked_for_and_their_memory_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda number: f"card {number}")
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda number: ((number + 1) * 10**9, 10**10))
    monkeypatch.setattr(site_checks, "footprint", lambda *given: NEED)

    def hospital(devices: list[Any], spread: bool = False) -> SiteConfig:
        return site(tmp_path).model_copy(update={"devices": tuple(devices), "spread_layers": spread})

    says(site_checks.device(hospital([])), "ok", "card 0")
    says(site_checks.device(hospital([0, 1])), "ok", "card 0, card 1")
    says(site_checks.device(hospital([1, 4, 7])), "problem", "GPU 4, 7, and torch sees 2", "nvidia-smi -L")
    says(site_checks.device(hospital(["cpu", "cpu"])), "ok", "CPU")
    found = {
        spread: site_checks.memory(hospital([1, 0], spread), FEDMRG).found.rsplit("; ", 1)[-1]
        for spread in (False, True)
    }
    assert found == {False: "2.0 GB free on the GPU", True: "3.0 GB free on the 2 GPUs"}


def test_an_embedded_backbone_has_a_fingerprint(tmp_path: Path) -> None:
    embedded = site_checks.backbone(site(tmp_path), "fedmrg")
    says(embedded, "ok", "embedded decoder, fingerprint ")
    assert len(embedded.found.split()[-1]) == 64


def test_free_memory_of_this_machine_is_known() -> None:
    free, where = free_memory("cpu")
    assert where == "CPU"
    assert 10**7 < free < 10**14


def test_the_policy_is_told_in_words_and_asked_about_the_job() -> None:
    policy = Policy(rules=PolicyConfig(min_sites=4, require=("mask",)))
    job = Job(title="fedmrg", method="fedmrg", n_clients=3, controller={"num_rounds": 5})
    words, asked = site_checks.rules(policy, job)
    says(words, "ok", "Every update must have: mask. At least 4 sites must take part.")
    says(asked, "problem", "policy.require: ")
    assert "policy.min_sites: 3 sites take part" in asked.found
    masked = Job(title="fedmrg", method="fedmrg", n_clients=4, controller={"protection": "masking"})
    assert [check.outcome for check in site_checks.rules(policy, masked)] == ["ok", "ok"]


def test_the_policy_is_asked_about_what_rule_and_method_send() -> None:
    drfa = Job(title="fedmrg", method="fedmrg", aggregation={"rule": "drfa"})
    says(site_checks.rules(Policy(), drfa)[1], "problem", "policy.train_losses: ")
    paper = Job(title="fedmrg", method="fedmrg", settings={"preset": "paper"})
    says(site_checks.rules(Policy(), paper)[1], "problem", "write 'features: raw' under 'policy'")
    agreed = Policy(rules=PolicyConfig(train_losses=True, features="raw"))
    for job in (drfa, paper):
        assert [check.outcome for check in site_checks.rules(agreed, job)] == ["ok", "ok"]


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
