# SPDX-License-Identifier: Apache-2.0
"""A server that names another submitter, or another job, than was signed, or runs a signed job twice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lying_server import Answer, LyingServer

from federation_root import Root
from medflare.data.settings.policy import PolicyConfig
from medflare.egress.policy import Policy
from medflare.federation.site import executor
from medflare.wire.durable import write_json

Servers = Callable[..., LyingServer]
Sign = Callable[[Path], None]
ALICE, BOB = "alice@hospital-a.org", "bob@hospital-b.org"
RULES = {"submitters": ["alice@*"]}
SITE = "site-1"


class SignedJobs:
    """A server, and what it deploys of signed jobs at a site with rules."""

    def __init__(self, server: LyingServer, root: Root) -> None:
        self.server = server
        self.kit = root.write(server.root / SITE)
        assert (self.kit / "startup/rootCA.pem").is_file()

    def folder(self, job: str = "job") -> Path:
        """The site's configuration of a job."""
        config = self.kit / job / "app/config"
        config.mkdir(parents=True, exist_ok=True)
        return config

    def sign(self, sign: Sign, job: str = "job") -> SignedJobs:
        """Deploy a job that somebody signed."""
        write_json(self.folder(job) / "config_fed_client.json", {"executors": []})
        sign(self.folder(job))
        return self

    def copy(self, other: str, job: str = "job") -> None:
        """Deploy a signed job under another id."""
        for file in self.folder(job).iterdir():
            (self.folder(other) / file.name).write_bytes(file.read_bytes())

    def ask(self, task: str = "prepare", job: str = "job") -> Answer:
        """What the site answers to the first request of a job, in a process of its own."""
        self.server.restart(SITE)
        return self.server.send(SITE, task, job=job)


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def jobs(lying_server: Servers, monkeypatch: pytest.MonkeyPatch, root: Root) -> Callable[..., SignedJobs]:
    """Make a server, and a site with these rules; `title` is the name in the job's own configuration."""

    def make(title: str = "", **rules: Any) -> SignedJobs:
        policy = Policy(rules=PolicyConfig(**rules))
        monkeypatch.setattr(executor, "policy_of", lambda config, before: policy)
        return SignedJobs(lying_server(title=title), root)

    return make


@pytest.fixture
def by_alice(root: Root) -> Sign:
    return lambda folder: root.sign(folder, ALICE)


@pytest.fixture
def by_bob(root: Root) -> Sign:
    return lambda folder: root.sign(folder, BOB, "hospital_b")


# ---- whose job it is ---------------------------------------------------------------------------------------


def test_a_job_that_an_admitted_admin_signed_runs(jobs: Callable[..., SignedJobs], by_alice: Sign) -> None:
    assert not jobs(**RULES).sign(by_alice).ask().refused


def signed_by_bob(root: Root, folder: Path) -> None:
    root.sign(folder, BOB, "hospital_b")


def signed_by_the_server(root: Root, folder: Path) -> None:
    root.sign(folder, ALICE, role=None)


def signed_under_another_root(root: Root, folder: Path) -> None:
    Root().sign(folder, ALICE)


def changed_afterwards(root: Root, folder: Path) -> None:
    root.sign(folder, ALICE)
    write_json(folder / "config_fed_client.json", {"executors": ["others"]})


def not_signed(root: Root, folder: Path) -> None: ...


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (signed_by_bob, f"submitter '{BOB}' is not admitted"),
        (signed_by_the_server, "no admin of this federation signed"),
        (signed_under_another_root, "no admin of this federation signed"),
        (changed_afterwards, "no admin of this federation signed"),
        (not_signed, "no admin of this federation signed"),
    ],
)
def test_whomever_the_server_names_a_site_holds_its_rules_against_who_signed(
    jobs: Callable[..., SignedJobs], root: Root, change: Callable[[Root, Path], None], why: str
) -> None:
    answer = jobs(**RULES).sign(lambda folder: change(root, folder)).ask()
    assert why in answer.text
    assert "policy.submitters" in answer.text


@pytest.mark.parametrize("rules", [{"organisations": ["hospital_a"]}, {"roles": ["project_admin"]}])
def test_organisations_and_roles_are_of_the_certificate(
    jobs: Callable[..., SignedJobs], by_bob: Sign, rules: dict[str, Any]
) -> None:
    (key,) = rules
    assert f"policy.{key}" in jobs(**rules).sign(by_bob).ask().text


def test_no_request_goes_around_the_first_one(jobs: Callable[..., SignedJobs], by_bob: Sign) -> None:
    """A process that starts again may be asked for an update at once."""
    assert "policy.submitters" in jobs(**RULES).sign(by_bob).ask("fit").text


def test_a_site_without_rules_asks_for_a_signature(
    jobs: Callable[..., SignedJobs], root: Root, by_bob: Sign
) -> None:
    answer = jobs().sign(lambda folder: None).ask()
    assert "policy.unsigned_jobs: no admin of this federation signed the job's files" in answer.text
    assert not jobs().sign(by_bob).ask().refused


def test_only_the_hospital_admits_jobs_that_nobody_signed(jobs: Callable[..., SignedJobs]) -> None:
    assert not jobs(unsigned_jobs=True).sign(lambda folder: None).ask().refused
    answer = jobs(unsigned_jobs=True, **RULES).sign(lambda folder: None).ask()
    assert "policy.submitters" in answer.text, "a rule on people still asks who signed"


# ---- which job it is ---------------------------------------------------------------------------------------


def test_a_job_has_the_name_that_was_signed_whatever_the_server_calls_it(
    jobs: Callable[..., SignedJobs], by_alice: Sign
) -> None:
    """Before deployment the server said that it is called "audit"; the toy's own name is another."""
    assert not jobs("audit", jobs=["audit"]).sign(by_alice).ask().refused
    answer = jobs("harvest", jobs=["audit"]).sign(by_alice).ask()
    assert "policy.jobs: job 'harvest' is not admitted; allowed: audit" in answer.text


@pytest.mark.parametrize(
    ("title", "sign", "why"),
    [
        ("audit", not_signed, "no admin of this federation signed"),
        ("audit", changed_afterwards, "no admin of this federation signed"),
        ("", lambda root, folder: root.sign(folder, ALICE), "configuration does not name it"),
    ],
)
def test_a_name_that_nobody_signed_is_none(
    jobs: Callable[..., SignedJobs], root: Root, title: str, sign: Callable[[Root, Path], None], why: str
) -> None:
    answer = jobs(title, jobs=["audit"]).sign(lambda folder: sign(root, folder)).ask()
    assert "policy.jobs" in answer.text
    assert why in answer.text


# ---- how often it runs -------------------------------------------------------------------------------------


def test_a_signed_job_is_one_job_whatever_ids_the_server_gives_it(
    jobs: Callable[..., SignedJobs], by_alice: Sign
) -> None:
    """Else it would have its rounds and evaluations anew."""
    given = jobs(**RULES).sign(by_alice)
    assert not given.ask().refused
    given.copy("again")
    answer = given.ask(job="again")
    assert "this submission came here before, as job 'job'" in answer.text
    assert not given.ask().refused, "the job itself goes on, in another process too"


def test_other_letters_for_the_same_signature_make_no_other_submission(
    jobs: Callable[..., SignedJobs], by_alice: Sign
) -> None:
    """FLARE reads base64 that has line breaks in it, and any order and space in JSON."""
    given = jobs(**RULES).sign(by_alice)
    assert not given.ask().refused
    given.copy("again")
    file = given.folder("again") / ".__nvfl_sig.json"
    signatures = {name: f"\n{text[:7]}\n{text[7:]}" for name, text in json.loads(file.read_text()).items()}
    file.write_text(json.dumps({"another": "file", **signatures}, indent=3))
    assert "came here before" in given.ask(job="again").text


def test_the_same_job_submitted_twice_is_two_jobs(jobs: Callable[..., SignedJobs], by_alice: Sign) -> None:
    given = jobs(**RULES).sign(by_alice).sign(by_alice, "second")
    assert not given.ask().refused
    assert not given.ask(job="second").refused


def test_a_damaged_memory_of_submissions_refuses(jobs: Callable[..., SignedJobs], by_alice: Sign) -> None:
    given = jobs(**RULES).sign(by_alice)
    assert not given.ask().refused
    (file,) = (given.kit / "submissions").glob("*.json")
    file.write_text("{")
    assert "memory of submitted jobs is damaged" in given.ask().text


# ---- whose run it goes on with -----------------------------------------------------------------------------


def test_only_who_signed_the_first_job_goes_on_with_its_run(
    jobs: Callable[..., SignedJobs], by_alice: Sign, by_bob: Sign
) -> None:
    """Whomever the server names as the submitter."""
    given = jobs().sign(by_alice).sign(by_bob, "bobs").sign(by_alice, "second")
    assert not given.ask().refused
    for job, name in (("bobs", BOB), ("second", "")):
        given.server.executors[SITE].close()
        given.server.deploy(SITE, resumes="job")
        answer = given.server.send(SITE, "prepare", job=job)
        assert (name in answer.text) if name else not answer.refused
