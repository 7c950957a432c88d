# SPDX-License-Identifier: Apache-2.0
"""The site's veto where FLARE asks for it: before a job is deployed, and the rules a running job meets.

`SitePolicy` stands in the site's own `local/resources.json`; no job can add, configure or remove it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import load_site
from medflare.egress.ledger import FILE, Ledger
from medflare.egress.policy import Policy, PolicyError
from medflare.federation.engine import EventType, FLComponent, FLContext, FLContextKey
from medflare.federation.site import worker_config
from medflare.federation.site.worker_config import WorkerConfig

SITE_FILE = "site.yaml"
UNUSABLE = f"this site's {SITE_FILE} cannot be used; its people find the reason in the site's log."


class SitePolicy(FLComponent):
    """Refuses jobs by name, submitter, organisation and role as site.yaml's `policy` says.

    FLARE's client parent asks its components before it checks resources for a job and again before it deploys
    one. The file is read at each question, so a change takes effect at once; a file that cannot be read
    refuses every job. Refusals are written to `egress.jsonl` in the kit's own folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type != EventType.AUTHORIZE_COMMAND_CHECK:
            return
        items = fl_ctx.get_prop(FLContextKey.SECURITY_ITEMS) or {}
        meta = items.get(FLContextKey.JOB_META) or {}
        if not meta:
            return  # a command about no job, or about one that runs already
        try:
            reason = self._reason(meta, items, fl_ctx)
        except Exception as error:  # FLARE would log an exception here and go on as if we had agreed
            reason = UNUSABLE
            self.logger.error(f"job refused, because {SITE_FILE} cannot be used: {error}")
        if reason:
            fl_ctx.set_prop(FLContextKey.AUTHORIZATION_RESULT, False, sticky=False)
            fl_ctx.set_prop(FLContextKey.AUTHORIZATION_REASON, reason, sticky=False)

    def _reason(self, meta: dict[str, Any], items: dict[str, Any], fl_ctx: FLContext) -> str:
        """Why this site refuses the job, or nothing."""
        root, site = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)), fl_ctx.get_identity_name()
        file = root / "local" / SITE_FILE
        policy = Policy(rules=load_site(file, site).policy, file=file)
        try:
            policy.submitted(
                job=str(meta.get("name", "")),
                submitter=str(items.get(FLContextKey.SUBMITTER_NAME) or ""),
                organisation=str(items.get(FLContextKey.SUBMITTER_ORG) or ""),
                role=str(items.get(FLContextKey.SUBMITTER_ROLE) or ""),
            )
        except PolicyError as error:
            self._record(root, site, meta, str(fl_ctx.get_prop(FLContextKey.COMMAND_NAME)), error)
            return str(error)
        return ""

    def _record(self, root: Path, site: str, meta: dict[str, Any], command: str, error: PolicyError) -> None:
        with self._lock:
            self._ledger = self._ledger or Ledger(root / FILE, site, "")
            self._ledger.job, self._ledger.job_name = str(meta.get("job_id", "")), str(meta.get("name", ""))
            rules = [refusal.rule for refusal in error.refusals]
            self._ledger.blocked(command, -1, rules, str(error), error.file)


def policy_of(config: WorkerConfig, before: Policy) -> Policy:
    """The rules in force for a running job, read anew each time: a hospital may change its mind.

    A site without the file has set no rules, and its learner says what is missing; if the file goes away
    during a run, the rules of `before` stay.
    """
    if config.site_file and not Path(config.site_file).exists():
        return before
    site = worker_config.load_site_settings(config)
    rules = getattr(site, "policy", PolicyConfig())
    return Policy(rules=rules, file=Path(config.site_file or SITE_FILE))


def job_name(fl_ctx: FLContext) -> str:
    """What the running job's meta.json calls it; empty where FLARE does not say."""
    meta = fl_ctx.get_prop(FLContextKey.JOB_META) or {}
    return str(meta.get("name", ""))
