# SPDX-License-Identifier: Apache-2.0
"""A server that names another submitter than the one who signed a job: sites look at the signature."""

from __future__ import annotations

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
ALICE, BOB = "alice@hospital-a.org", "bob@hospital-b.org"
RULES = {"submitters": ["alice@*"]}


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.fixture
def asked(lying_server: Servers, monkeypatch: pytest.MonkeyPatch, root: Root) -> Callable[..., Answer]:
    """What a site with rules answers to the first request of a job that somebody signed."""

    def ask(sign: Callable[[Path], None], task: str = "prepare", **rules: Any) -> Answer:
        policy = Policy(rules=PolicyConfig(**rules))
        monkeypatch.setattr(executor, "policy_of", lambda config, before: policy)
        server = lying_server()
        kit = root.write(server.root / "site-1")
        config = server.root / "site-1/job/app/config"
        config.mkdir(parents=True, exist_ok=True)
        write_json(config / "config_fed_client.json", {"executors": []})
        sign(config)
        assert (kit / "startup/rootCA.pem").is_file()
        return server.send("site-1", task)

    return ask


def test_a_job_that_an_admitted_admin_signed_runs(asked: Callable[..., Answer], root: Root) -> None:
    assert not asked(lambda folder: root.sign(folder, ALICE), **RULES).refused


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
    asked: Callable[..., Answer], root: Root, change: Callable[[Root, Path], None], why: str
) -> None:
    answer = asked(lambda folder: change(root, folder), **RULES)
    assert why in answer.text
    assert "policy.submitters" in answer.text


@pytest.mark.parametrize("rules", [{"organisations": ["hospital_a"]}, {"roles": ["project_admin"]}])
def test_organisations_and_roles_are_of_the_certificate(
    asked: Callable[..., Answer], root: Root, rules: dict[str, Any]
) -> None:
    (key,) = rules
    assert f"policy.{key}" in asked(lambda folder: signed_by_bob(root, folder), **rules).text


def test_no_request_goes_around_the_first_one(asked: Callable[..., Answer], root: Root) -> None:
    """A process that starts again may be asked for an update at once."""
    assert "policy.submitters" in asked(lambda folder: signed_by_bob(root, folder), "fit", **RULES).text


def test_a_site_that_limits_nobody_asks_for_no_signature(asked: Callable[..., Answer], root: Root) -> None:
    assert not asked(lambda folder: None).refused
