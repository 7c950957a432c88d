# SPDX-License-Identifier: Apache-2.0
"""Sites that FLARE gave no job to, and why: passed from its parent process at the server to the run.

FLARE starts a job without the sites that refused it or to which it could not be deployed, as long as enough
are left, and tells the job's own process nothing of them. The kit's job manager writes what FLARE found into
the job's folder before that process starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from medflare.egress.failures import clean_text
from medflare.wire.durable import read_json, write_json

FILE = "deployment.json"
DONE = "OK"
MOST_CHARACTERS = 500
"""Of a site's own words in a reason."""
WHAT_TO_DO = (
    "Mend that at the site, whose log says more; it takes part after `medflare resume`, as FLARE gives a "
    "running job to no further site."
)


def sites_without_the_job(
    detail: Iterable[str], checked: Mapping[str, Any], clients: Iterable[str]
) -> dict[str, str]:
    """Return site -> why it has not the job and what to do, from what FLARE found.

    Args:
        detail: FLARE's lines on a deployment, `<site>: OK` or `<site>: <why not>`.
        checked: site -> (whether it takes the job, else why not), of the check before it.
        clients: names of the sites.
    """
    known, reasons = set(clients), dict[str, str]()
    for site, result in checked.items():
        taken, reason = result if isinstance(result, tuple | list) and len(result) == 2 else (False, "")
        if not taken:
            reasons[site] = f"it did not take the job: {_words(reason)} {WHAT_TO_DO}"
    for line in detail:
        site, _, outcome = str(line).partition(": ")
        if site in known and outcome != DONE:
            reasons[site] = f"FLARE could not deploy the job to it: {_words(outcome)} {WHAT_TO_DO}"
    return reasons


def write_report(run_folder: Path, reasons: Mapping[str, str]) -> None:
    """Write which sites have not the job."""
    write_json(run_folder / FILE, dict(reasons))


def read_report(run_folder: Path) -> dict[str, str]:
    """Return site -> why it has not the job; empty where nobody wrote it, as in a simulator."""
    file = run_folder / FILE
    return {str(site): str(reason) for site, reason in read_json(file).items()} if file.exists() else {}


def _words(reason: Any) -> str:
    """Return a site's reason as a sentence."""
    text = clean_text(str(reason or "it gave no reason"), MOST_CHARACTERS).strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
