# SPDX-License-Identifier: Apache-2.0
"""A job's configuration can name environment variables; its process has none of the hospital's."""

from __future__ import annotations

import json
import shlex
import sys
import time
from pathlib import Path

import pytest
from nvflare.apis.fl_context import FLContext

from medflare.deployment.kit_settings import site_resources
from medflare.federation.site.job_launcher import SiteJobLauncher, job_environment
from medflare.recipes.allow_list import class_path

SECRETS = {
    "HOSPITAL_DB_PASSWORD": "hunter2",
    "AWS_SECRET_ACCESS_KEY": "x",
    "HF_TOKEN": "y",
    "PGPASSWORD": "z",
    "https_proxy": "http://user:secret@proxy",
}


class Launcher(SiteJobLauncher):
    """Starts a program that writes down its environment in place of FLARE's."""

    def __init__(self, out: Path, **args: object) -> None:
        super().__init__(**args)
        self.out = out

    def get_command(self, job_meta: object, fl_ctx: object) -> str:
        code = f"import json, os; json.dump(dict(os.environ), open({str(self.out)!r}, 'w'))"
        return shlex.join([sys.executable, "-c", code])


def environment_of_a_job(launcher: Launcher) -> dict[str, str]:
    handle = launcher.launch_job({}, FLContext())
    handle.wait()
    for _ in range(200):
        if launcher.out.exists() and launcher.out.read_text():
            break
        time.sleep(0.05)
    return json.loads(launcher.out.read_text())


def test_no_secret_of_the_service_reaches_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    environment = environment_of_a_job(Launcher(tmp_path / "env.json"))
    assert not set(SECRETS) & set(environment)
    assert not set(SECRETS.values()) & set(environment.values())
    assert environment["OMP_NUM_THREADS"] == "1"
    assert "PATH" in environment
    assert environment["NVFLARE_SUBMIT_TASK_RESULT_TIMEOUT"] == "300"


def test_a_site_can_pass_on_what_its_jobs_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:secret@proxy")
    monkeypatch.setenv("HF_TOKEN", "y")
    environment = environment_of_a_job(Launcher(tmp_path / "env.json", more=["https_proxy"]))
    assert environment["https_proxy"] == "http://user:secret@proxy"
    assert "HF_TOKEN" not in environment


def test_a_job_connects_through_the_proxy_of_its_site_unless_its_address_holds_a_password() -> None:
    plain = {"https_proxy": "http://proxy:3128", "NO_PROXY": "localhost", "grpc_proxy": "http://10.0.0.1:1"}
    assert job_environment(plain) == plain
    assert job_environment({"https_proxy": "http://ward@proxy:3128", "ALL_PROXY": "socks://u:p@proxy"}) == {}


def test_a_name_that_only_looks_like_a_listed_one_is_not_passed() -> None:
    models = {"XDG_DATA_HOME": "/data", "MEDFLARE_MODELS": "/models"}
    assert job_environment(models) == models, "where models lie that site.yaml names"
    assert job_environment({"MYSQL_PWD": "a", "XPATH": "b", "PATHS": "c", "PATH": "d"}) == {"PATH": "d"}


@pytest.mark.parametrize("other", ["k8s_launcher.ClientK8sJobLauncher", "x.DockerJobLauncher"])
def test_hardened_kits_start_jobs_by_it(other: str) -> None:
    flare = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    for path, expected in ((flare, class_path(SiteJobLauncher)), (other, other)):
        given = {
            "components": [
                {"id": "process_launcher", "path": path},
                {"id": "secure_logging", "path": "x"},
                {"id": "site_policy", "path": "x"},
            ]
        }
        parts = {part["id"]: part["path"] for part in site_resources(given)["components"]}
        assert parts["process_launcher"] == expected
