# SPDX-License-Identifier: Apache-2.0
"""Each check of `medflare preflight` says what is wrong, what was expected and what to do."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from preflight_kit import PATIENT, Project, listening, proxy_answer, tls_answer, write_kit
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
from medflare.recipes.job import Job

REPOSITORY = Path(__file__).parents[2]
PROXY_NAMES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "FIRST_WORDS", PATIENT)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PROXY_NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def project() -> Project:
    return Project()


def site(root: Path, **more: Any) -> SiteConfig:
    return SiteConfig.model_validate({"cohort": {"format": "manifest", "root": str(root)}, **more})


def outcomes(checks: list[Check]) -> dict[str, str]:
    return {check.name: check.outcome for check in checks}


def says(check: Check, outcome: str, found: str) -> None:
    assert check.outcome == outcome, check
    assert found in check.found
    assert outcome == "ok" or (check.expected and check.remedy)


# ---- the way to the server -------------------------------------------------------------------------------


def test_a_server_that_accepts_the_kit_is_reached(tmp_path: Path, project: Project) -> None:
    with listening(tls_answer(project, tmp_path / "server")) as port:
        kit = Kit(folder=write_kit(tmp_path / "kit", project, port), role="site")
        reached, accepted = network.reach(kit, PATIENT)
    says(reached, "ok", f"localhost:{port} answers")
    says(accepted, "ok", "both sides accept each other")


def test_a_port_that_nobody_listens_on_is_a_problem(tmp_path: Path, project: Project) -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        (said,) = network.reach(Kit(folder=write_kit(tmp_path / "kit", project, port), role="site"), PATIENT)
    says(said, "problem", "refused")
    assert f"port {port}" in said.remedy


def test_a_server_of_another_project_is_not_trusted(tmp_path: Path, project: Project) -> None:
    with listening(tls_answer(Project("somebody else"), tmp_path / "server")) as port:
        kit = Kit(folder=write_kit(tmp_path / "kit", project, port), role="site")
        _, said = network.reach(kit, PATIENT)
    says(said, "problem", "refused: ")
    assert "Do not start the kit" in said.remedy


def test_a_kit_that_the_server_does_not_know_is_told_so(tmp_path: Path, project: Project) -> None:
    """With TLS 1.3 our side of the handshake ends well, and the refusal comes afterwards."""
    other = Project("medflare")
    with listening(tls_answer(project, tmp_path / "server")) as port:
        folder = write_kit(tmp_path / "kit", other, port)
        shutil.copy(tmp_path / "server/rootCA.pem", folder / "startup/rootCA.pem")
        _, said = network.reach(Kit(folder=folder, role="site"), PATIENT)
    says(said, "problem", "no TLS handshake")


def test_a_server_whose_certificate_ends_soon_is_a_warning(tmp_path: Path, project: Project) -> None:
    with listening(tls_answer(project, tmp_path / "server", timedelta(days=9))) as port:
        kit = Kit(folder=write_kit(tmp_path / "kit", project, port), role="site")
        _, said = network.reach(kit, PATIENT)
    says(said, "warning", "the server's is valid until")


def test_a_port_that_speaks_something_else_is_a_problem(tmp_path: Path, project: Project) -> None:
    with listening(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")) as port:
        kit = Kit(folder=write_kit(tmp_path / "kit", project, port), role="site")
        _, said = network.reach(kit, PATIENT)
    says(said, "problem", "no TLS handshake")


def test_the_proxy_is_asked_for_a_way_to_the_server(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    with listening(tls_answer(project, tmp_path / "server")) as port, listening(proxy_answer(asked)) as proxy:
        monkeypatch.setenv("https_proxy", f"http://ward:p%40ss@127.0.0.1:{proxy}")
        kit = Kit(folder=write_kit(tmp_path / "kit", project, port), role="site")
        reached, accepted = network.reach(kit, PATIENT)
    says(reached, "ok", f"through the proxy 127.0.0.1:{proxy}")
    assert "p%40ss" not in reached.found
    says(accepted, "ok", "both sides accept each other")
    assert asked[0].startswith(f"CONNECT localhost:{port} HTTP/1.1\r\n")
    assert "Proxy-Authorization: Basic d2FyZDpwQHNz\r\n" in asked[0]


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
def test_a_proxy_that_refuses_is_named_with_its_answer(
    tmp_path: Path, project: Project, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    with listening(proxy_answer([], status)) as proxy:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{proxy}")
        (said,) = network.reach(Kit(folder=write_kit(tmp_path / "kit", project, 8002), role="site"), PATIENT)
    says(said, "problem", f"the proxy answered 'HTTP/1.1 {status}'")
    assert "allow the proxy to localhost port 8002" in said.remedy


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
def test_a_certificates_end_is_told_in_time(
    tmp_path: Path, project: Project, days: int, outcome: str, found: str
) -> None:
    kit = Kit(folder=write_kit(tmp_path / "kit", project, 1, timedelta(days=days)), role="site")
    own, root = kit_files.certificates(kit)
    says(own, outcome, found)
    says(root, "ok", "valid until")


def test_a_certificate_of_tomorrow_is_about_the_clock(tmp_path: Path, project: Project) -> None:
    kit = Kit(folder=write_kit(tmp_path / "kit", project, 1), role="site")
    before = project.root.not_valid_before_utc - timedelta(days=400)
    assert {check.remedy for check in kit_files.certificates(kit, before)} == {"Look at this machine's clock"}


def test_a_certificate_that_is_gone_is_a_problem(tmp_path: Path, project: Project) -> None:
    kit = Kit(folder=write_kit(tmp_path / "kit", project, 1), role="site")
    (kit.startup / "client.crt").write_text("nothing")
    (kit.startup / "rootCA.pem").unlink()
    assert [check.outcome for check in kit_files.certificates(kit)] == ["problem", "problem"]


def test_a_key_that_others_can_read_is_a_problem(tmp_path: Path, project: Project) -> None:
    kit = Kit(folder=write_kit(tmp_path / "kit", project, 1), role="site")
    says(kit_files.permissions(kit), "ok", "1 readable by their owner alone")
    (kit.startup / "client.key").chmod(0o640)
    says(kit_files.permissions(kit), "problem", "client.key 0640")


def test_a_provisioned_and_hardened_kit_passes_and_a_tampered_one_does_not(tmp_path: Path) -> None:
    project_file = REPOSITORY / "provisioning/project.yml"
    provision = [
        sys.executable,
        "-m",
        "nvflare.cli",
        "provision",
        "-p",
        str(project_file),
        "-w",
        str(tmp_path),
    ]
    subprocess.run(provision, capture_output=True, timeout=400, check=True)
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
    (said,) = kit_files.hardened(Kit(folder=folder, role="site"))
    says(said, "problem", "startup/fed_client.json: was changed after it was signed")


# ---- what the hospital brings ----------------------------------------------------------------------------


def test_a_cohort_is_counted_and_its_labels_named(small_hospital: Path) -> None:
    read, cohort = site_checks.open_cohort(site(small_hospital), "fedmrg")
    says(read, "ok", "60 patients, 60 studies (train ")
    assert cohort is not None
    says(site_checks.labels(summarise(cohort)), "ok", "conditions occur: ")


def test_a_cohort_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    said, cohort = site_checks.open_cohort(site(tmp_path / "nowhere"), None)
    says(said, "problem", "nowhere")
    assert cohort is None
    assert "medflare cohort inspect" in said.remedy


def test_a_method_that_reads_notes_finds_none_in_a_cohort_of_studies(small_hospital: Path) -> None:
    said, _ = site_checks.open_cohort(site(small_hospital), "fed_medlora")
    says(said, "problem", "0 notes")


def test_questions_are_counted_without_a_method_too(tmp_path: Path) -> None:
    rows = [{"question": f"{i}?", "options": ["x", "y"], "answer": "AB"[i % 2]} for i in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    document = {"format": "questions_jsonl", "root": str(tmp_path)}
    said, cohort = site_checks.open_cohort(SiteConfig.model_validate({"cohort": document}), None)
    says(said, "ok", "40 questions (train ")
    assert cohort is not None
    says(site_checks.labels(summarise(cohort)), "ok", "answers A 20, B 20")


def test_empty_splits_are_a_warning(small_hospital: Path) -> None:
    split = {"train": 1, "val": 0, "test": 0}
    document = {"format": "manifest", "root": str(small_hospital), "split": split}
    said, _ = site_checks.open_cohort(SiteConfig.model_validate({"cohort": document}), "fedmrg")
    if said.outcome != "warning":  # a source with a split of its own keeps it
        says(said, "ok", "val ")
    else:
        says(said, "warning", "val 0")


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


def test_a_missing_backbone_is_a_problem_and_a_present_one_has_a_fingerprint(tmp_path: Path) -> None:
    gone = site(tmp_path, backbone={"folder": str(tmp_path / "llama")})
    says(site_checks.backbone(gone, None), "problem", "there is no folder")
    (tmp_path / "llama").mkdir()
    says(site_checks.backbone(gone, None), "problem", "has no *.safetensors file")
    embedded = site_checks.backbone(site(tmp_path), "fedmrg")
    says(embedded, "ok", "embedded decoder, fingerprint ")
    assert len(embedded.found.split()[-1]) == 64
    says(site_checks.backbone(site(tmp_path), "fed_medlora"), "ok", "embedded notes_decoder")


def test_a_gpu_that_is_not_there_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    says(site_checks.device(site(tmp_path, device="cuda")), "problem", "torch sees no GPU")
    says(site_checks.device(site(tmp_path)), "ok", "CPU")


@pytest.mark.parametrize(("free", "outcome"), [(10**12, "ok"), (11 * 10**8, "warning"), (10**8, "problem")])
def test_the_estimate_is_held_against_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
) -> None:
    need = Footprint(frozen=10**8, learning=10**8, exchange=10**8, activations=10**8, runtime=6 * 10**8)
    monkeypatch.setattr(site_checks, "footprint", lambda *given: need)
    monkeypatch.setattr(site_checks, "free_memory", lambda device: (free, "CPU"))
    said = site_checks.memory(site(tmp_path), Job(title="fedmrg", method="fedmrg"))
    says(
        said, outcome, "about 1.0 GB (frozen weights 0.10, learning weights and optimiser 0.10, exchange 0.10"
    )
    assert "GB free on the CPU" in said.found
    assert outcome == "ok" or "an estimate, not a measurement" in said.expected


def test_without_a_job_nothing_is_estimated(tmp_path: Path) -> None:
    says(site_checks.memory(site(tmp_path), None), "ok", "name a job with --job")


def test_free_memory_of_this_machine_is_known() -> None:
    free, where = site_checks.free_memory("cpu")
    assert where == "CPU"
    assert 10**7 < free < 10**14


@pytest.mark.parametrize(("free", "outcome"), [(10**12, "ok"), (5 * 10**9, "warning"), (10**9, "problem")])
def test_a_full_disk_is_told_before_it_stops_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, outcome: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    (said,) = site_checks.disk([tmp_path / "not/yet/there", tmp_path])
    says(said, outcome, f"{free / 10**9:.1f} GB free at {tmp_path}")


def test_the_policy_is_told_in_words_and_asked_about_the_job() -> None:
    policy = Policy(rules=PolicyConfig(min_sites=4, require=("mask",)))
    job = Job(title="fedmrg", method="fedmrg", n_clients=3, controller={"num_rounds": 5})
    words, asked = site_checks.rules(policy, job)
    says(words, "ok", "Every update must have: mask. At least 4 sites must take part.")
    says(asked, "problem", "policy.require: ")
    assert "policy.min_sites: 3 sites take part" in asked.found
    masked = Job(title="fedmrg", method="fedmrg", n_clients=4, controller={"protection": "masking"})
    assert [check.outcome for check in site_checks.rules(policy, masked)] == ["ok", "ok"]


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
    monkeypatch.setattr(site_checks, "free_memory", lambda device: (10**12, "CPU"))
    document = {"cohort": {"format": "manifest", "root": str(small_hospital)}, "device": "cpu"}
    (tmp_path / "site.yaml").write_text(yaml.safe_dump(document))
    words = [
        "preflight",
        "--site-file",
        str(tmp_path / "site.yaml"),
        "--job",
        str(REPOSITORY / "jobs/fedmrg"),
    ]
    found = CliRunner().invoke(app, [*words, "--json"])
    facts = json.loads(found.stdout)
    assert found.exit_code == facts["exit_code"] == 0, found.stdout
    assert {check["name"] for check in facts["checks"]} == {
        *("kit", "site file", "job", "cohort", "labels"),
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
    found = CliRunner().invoke(app, ["preflight", "--site-file", str(tmp_path / "site.yaml"), "--json"])
    checks = {check["name"]: check for check in json.loads(found.stdout)["checks"]}
    assert found.exit_code == 2
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
    said = next(
        c for c in preflight(PreflightRequest(site_file=tmp_path / "x.yaml", kit=tmp_path)) if c.name == "kit"
    )
    says(said, "problem", "is the kit of a server" if role == "server" else "no startup kit")
