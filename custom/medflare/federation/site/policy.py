# SPDX-License-Identifier: Apache-2.0
"""The hospital's policy where FLARE asks for authorization: before a job is deployed, and while one runs.

`SitePolicy` stands in the site's own `local/resources.json`; no job can add, configure or remove it.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from medflare.data.settings.site import load_site
from medflare.egress.ledger import FILE, Ledger
from medflare.egress.policy import Policy, PolicyError
from medflare.federation.engine import EventType, FLComponent, FLContext, FLContextKey
from medflare.secure_aggregation.certificates import read_certificates
from medflare.worker import config as worker_config
from medflare.worker.config import SITE_FILE, WorkerConfig

CERTIFICATE = Path("startup/client.crt")
WARN_AHEAD = timedelta(days=30)
UNUSABLE = f"this site's {SITE_FILE} cannot be used; its people find the reason in the site's log."


class SitePolicy(FLComponent):
    """Refuse jobs by name, submitter, organisation and role as site.yaml's `policy` says.

    A site whose own certificate has expired refuses too: the process of a new job could not connect, and
    FLARE would abort the job for every other site as well.

    FLARE's client parent asks its components before it checks resources for a job and again before it deploys
    one. The file is read at each question, so a change takes effect at once; a file that cannot be read
    refuses every job. Refusals are written to `egress.jsonl` in the kit's own folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._ledger: Ledger | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer FLARE's question whether a command about a job may run here."""
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
        """Return why this site refuses the job; empty where it does not."""
        root, site = Path(fl_ctx.get_prop(FLContextKey.WORKSPACE_ROOT)), fl_ctx.get_identity_name()
        expired, ahead = certificate_state(root / CERTIFICATE, datetime.now(UTC))
        if ahead:
            self.logger.warning(ahead)
        if expired:
            return expired
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


def certificate_state(file: Path, moment: datetime) -> tuple[str, str]:
    """Return (why no job can start with the site's certificate, what to do soon), each empty for nothing.

    Args:
        file: the kit's certificate; in a simulator there is none.
    """
    if not file.is_file():
        return "", ""
    until = min(certificate.not_valid_after_utc for certificate in read_certificates(file))
    remedy = "The project's administrator makes a new one: medflare kits renew."
    if moment > until:
        return f"this site's certificate expired on {until:%Y-%m-%d}: it takes part in no job. {remedy}", ""
    if until - moment < WARN_AHEAD:
        days = (until - moment).days
        return "", f"this site's certificate expires on {until:%Y-%m-%d}, in {days} days. {remedy}"
    return "", ""


def policy_of(config: WorkerConfig, before: Policy) -> Policy:
    """Return the rules in force for a running job, read from site.yaml for each request.

    A site without the file has no rules, and its learner reports what is missing. If the file disappears
    during a run, the rules of `before` stay in force.

    Raises:
        SiteSettingsError: the file cannot be used.
    """
    file = Path(config.site_file)
    if not file.exists():
        return before
    return Policy(rules=worker_config.load_site_settings(config).policy, file=file)


def job_name(fl_ctx: FLContext) -> str:
    """Return the name of the running job in its meta.json; empty where FLARE does not know it."""
    return str(job_meta(fl_ctx).get("name", ""))


def job_meta(fl_ctx: FLContext) -> dict[str, Any]:
    """Return the running job's meta.json; empty where FLARE does not know it."""
    return dict(fl_ctx.get_prop(FLContextKey.JOB_META) or {})
