# SPDX-License-Identifier: Apache-2.0
"""`medflare preflight`: whether this hospital's machine can take part, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json

_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}


@plain_errors
def preflight(
    site_file: Path = typer.Option(Path("local/site.yaml"), "--site-file", "-f", help="The site's own file."),
    site: str | None = typer.Option(None, "--site", help="Which site, where the file describes several."),
    job: Path | None = typer.Option(
        None, "--job", help="A job's folder: estimates its memory, and asks the policy about it."
    ),
    kit: Path | None = typer.Option(
        None, "--kit", help="The unpacked startup kit; default: the one whose local/ holds the site file."
    ),
    timeout: float = typer.Option(10.0, "--timeout", min=0.1, help="Seconds to wait for the server."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Looks at data, labels, base model, memory, disk, policy, kit, certificates, and the way to the server.

    Exit codes: 0 all is well, 1 there are warnings, 2 there is a problem. Nothing is changed, and nothing but
    the federation's server is asked.

    [bold]Example[/bold]: medflare preflight --job jobs/fedmrg
    [bold]Example[/bold]: medflare preflight --site-file local/site.yaml --kit /opt/medflare/site-1 --json
    """
    from medflare.deployment.preflight.base import exit_code
    from medflare.deployment.preflight.run import PreflightRequest
    from medflare.deployment.preflight.run import preflight as run_checks

    checks = run_checks(PreflightRequest(site_file=site_file, site=site, job=job, kit=kit, timeout=timeout))
    code = exit_code(checks)
    if as_json:
        print_json({"exit_code": code, "checks": [check.to_json() for check in checks]})
    else:
        _print(checks)
    if code:
        raise typer.Exit(code)


def _print(checks: Sequence[Any]) -> None:
    """One row for each check; what was expected and what to do where something is amiss."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("check", "", "found", "expected; what to do")
    for column in table.columns:
        column.overflow = "fold"
    for check in checks:
        colour = _COLOURS[check.outcome]
        advice = f"{check.expected}. {check.remedy}." if check.remedy else ""
        table.add_row(
            check.name, f"[{colour}]{check.outcome}[/{colour}]", escape(check.found), escape(advice)
        )
    console = Console()
    console.print(table)
    counts = {o: sum(check.outcome == o for check in checks) for o in ("problem", "warning", "ok")}
    console.print(f"{counts['problem']} problem(s), {counts['warning']} warning(s), {counts['ok']} ok")
