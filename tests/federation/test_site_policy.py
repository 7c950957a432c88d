# SPDX-License-Identifier: Apache-2.0
"""A hospital refuses jobs before anything of them is at the site: FLARE's own agent asks, we answer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext, FLContextManager
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.audit import AuditService
from nvflare.private.admin_defs import Message, MsgHeader, ReturnCode, ok_reply
from nvflare.private.defs import RequestHeader, TrainingTopic
from nvflare.private.event import fire_event
from nvflare.private.fed.client.admin import FedAdminAgent, RequestProcessor
from nvflare.private.fed.utils.fed_utils import set_message_security_data

from medflare.data.settings.policy import PolicyConfig
from medflare.egress.failures import SiteSettingsError
from medflare.egress.policy import Policy
from medflare.federation.site.policy import SitePolicy, policy_of
from medflare.worker.config import WorkerConfig

META = {
    "name": "fedmrg",
    "job_id": "0b1c",
    "submitter_name": "lead@hospital-a.org",
    "submitter_org": "hospital_a",
    "submitter_role": "lead",
}
CHECK = (TrainingTopic.CHECK_RESOURCE, "check_resources")
DEPLOY = (TrainingTopic.DEPLOY, "submit_job")


class Deployment(RequestProcessor):
    """What FLARE would do next: check resources, or unpack the job at the site."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def get_topics(self) -> list[str]:
        return [TrainingTopic.CHECK_RESOURCE, TrainingTopic.DEPLOY, TrainingTopic.ABORT]

    def process(self, req: Message, app_ctx: Any) -> Message:
        self.done.append(req.topic)
        return ok_reply()


class Site:
    """FLARE's client parent at a site: its command agent, its events, and our component as a handler."""

    def __init__(self, root: Path, policy: Any) -> None:
        self.root = root
        (root / "local").mkdir(parents=True)
        if policy is not None:
            self.write(policy)
        AuditService.initialize(str(root / "audit.log"))
        private = {FLContextKey.WORKSPACE_ROOT: str(root)}
        contexts = FLContextManager(identity_name="site-1", private_stickers=private)
        component = SitePolicy()

        def fire(event: str, ctx: FLContext) -> None:
            fire_event(event, [component], ctx)

        self.engine = SimpleNamespace(new_context=contexts.new_context, fire_event=fire)
        cell: Any = SimpleNamespace(register_request_cb=lambda **_: None)
        self.agent, self.deployment = FedAdminAgent("site-1", cell, self.engine), Deployment()
        self.agent.register_processor(self.deployment)

    def write(self, policy: Any) -> None:
        document = {"cohort": {"format": "manifest", "root": "."}, "policy": policy}
        (self.root / "local/site.yaml").write_text(yaml.safe_dump(document))

    def ask(self, topic: str, command: str, meta: dict[str, str] | None = None) -> str:
        """The reason for a refusal, or nothing."""
        request = Message(topic, b"")
        request.set_header(RequestHeader.ADMIN_COMMAND, command)
        request.set_header(ConnProps.EVENT_ID, "")
        if meta is not None:
            set_message_security_data(request, SimpleNamespace(meta=meta), FLContext())
        reply = self.agent._dispatch_request(CellMessage({}, request)).payload
        refused = reply.get_header(MsgHeader.RETURN_CODE) == ReturnCode.ERROR
        return str(reply.body) if refused else ""

    def ledger(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.root / "egress.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(("topic", "command"), [CHECK, DEPLOY])
@pytest.mark.parametrize(
    "policy",
    [
        {},
        {"jobs": ["fedmrg*"], "submitters": "*@hospital-a.org", "organisations": "hospital_a"},
        {"roles": ["lead", "project_admin"]},
    ],
)
def test_an_admitted_job_is_deployed(tmp_path: Path, policy: Any, topic: str, command: str) -> None:
    site = Site(tmp_path, policy)
    assert site.ask(topic, command, META) == ""
    assert site.deployment.done == [topic]
    assert not (tmp_path / "egress.jsonl").exists()


@pytest.mark.parametrize(("topic", "command"), [CHECK, DEPLOY])
@pytest.mark.parametrize(
    ("policy", "rule", "found"),
    [
        ({"jobs": ["fedtar"]}, "jobs", "job 'fedmrg' is not admitted; allowed: fedtar"),
        ({"submitters": "admin@*"}, "submitters", "submitter 'lead@hospital-a.org'"),
        ({"organisations": "coordinator"}, "organisations", "organisation 'hospital_a'"),
        ({"roles": "project_admin"}, "roles", "role 'lead'"),
    ],
)
def test_a_refused_job_is_not_deployed_and_the_rule_and_the_file_are_named(
    tmp_path: Path, policy: Any, rule: str, found: str, topic: str, command: str
) -> None:
    site = Site(tmp_path, policy)
    reason = site.ask(topic, command, META)
    assert site.deployment.done == []
    assert reason.startswith(f"refused by this site's site.yaml: policy.{rule}: ")
    assert found in reason
    assert str(tmp_path) not in reason
    (line,) = site.ledger()
    assert (line["event"], line["task"], line["job"], line["job_name"]) == (
        "blocked",
        command,
        "0b1c",
        "fedmrg",
    )
    assert (line["rules"], line["file"]) == ([f"policy.{rule}"], str(tmp_path / "local/site.yaml"))


@pytest.mark.parametrize(
    "text", [None, "cohort: [", "cohort: {format: manifest, root: .}\npolicy: {jbs: x}\n"]
)
def test_a_file_that_cannot_be_used_refuses_every_job_and_tells_nothing_of_it(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site(tmp_path, None)
    if text is not None:
        (tmp_path / "local/site.yaml").write_text(text)
    reason = site.ask(*DEPLOY, META)
    assert site.deployment.done == []
    assert reason == "this site's site.yaml cannot be used; its people find the reason in the site's log."
    assert str(tmp_path) in caplog.text


def test_a_change_of_the_file_takes_effect_at_the_next_question(tmp_path: Path) -> None:
    site = Site(tmp_path, {})
    assert site.ask(*DEPLOY, META) == ""
    site.write({"jobs": []})
    assert "allowed: nothing" in site.ask(*DEPLOY, META)
    site.write({})
    assert site.ask(*DEPLOY, META) == ""


def test_a_job_that_runs_can_be_aborted_by_people_who_could_not_submit_it(tmp_path: Path) -> None:
    site = Site(tmp_path, {"jobs": [], "roles": ["nobody"]})
    assert site.ask(TrainingTopic.ABORT, "abort_job") == ""
    assert site.deployment.done == [TrainingTopic.ABORT]


def test_a_job_without_a_name_or_submitter_is_not_taken_for_an_admitted_one(tmp_path: Path) -> None:
    site = Site(tmp_path, {"jobs": ["fedmrg"], "submitters": ["*@hospital-a.org"]})
    reason = site.ask(*DEPLOY, {"job_id": "0b1c"})
    assert "policy.jobs: job ''" in reason
    assert "policy.submitters: submitter ''" in reason


def config(file: Path) -> WorkerConfig:
    return WorkerConfig(
        method="fedmrg",
        settings={},
        seed=0,
        site="site-1",
        site_file=str(file),
        state_folder="",
        cache_folder="",
        run_id="run",
    )


def test_a_running_job_meets_the_rules_as_they_are_now(tmp_path: Path) -> None:
    site, file = Site(tmp_path, {"min_sites": 3}), tmp_path / "local/site.yaml"
    first = policy_of(config(file), Policy())
    assert (first.rules, first.file) == (PolicyConfig(min_sites=3), file)
    site.write({"min_sites": 5})
    second = policy_of(config(file), first)
    assert second.rules.min_sites == 5
    file.unlink()
    assert policy_of(config(file), second) is second, "rules do not go away with their file"
    file.write_text("cohort: {format: manifest, root: .}\npolicy: {min_site: 5}\n")
    with pytest.raises(SiteSettingsError, match="Did you mean 'min_sites'"):
        policy_of(config(file), second)


def test_a_site_without_the_file_has_set_no_rules(tmp_path: Path) -> None:
    assert policy_of(config(tmp_path / "site.yaml"), Policy()).rules == PolicyConfig()


@pytest.mark.parametrize(
    ("allowed", "leaving"),
    [("all", {"steps", "seconds"}), ("none", set()), (("loss", "st*"), {"steps"})],
)
def test_of_a_private_update_no_metric_leaves_that_the_hospital_withholds_of_others(
    allowed: Any, leaving: set[str]
) -> None:
    """Epsilon and delta say what the protection is; all else keeps to `metrics`."""
    update = {"loss": 0.5, "steps": 3.0, "seconds": 2.0, "epsilon": 1.0, "delta": 0.1}
    policy = Policy(rules=PolicyConfig(metrics=allowed)).within_privacy(True, "fit")
    assert set(policy.metrics(update)) == leaving | {"epsilon", "delta"}
