# SPDX-License-Identifier: Apache-2.0
"""`medflare audit`: what a run's adapter gives away of a hospital's patients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from medflare.cli.output import JSON_OPTION, ItemBatch, names, plain_errors

if TYPE_CHECKING:
    from medflare.auditing.report import SiteAudit
    from medflare.core.run_record import RunRecord


@plain_errors
def audit(
    run: Path = typer.Argument(..., help="A run's folder, or its run.json."),
    site_file: Path = typer.Option(..., "--site-file", "-f", help="site.yaml that the run was trained with."),
    sites: str | None = typer.Option(
        None, "--site", "--sites", help="Which of its sites; default all that took part."
    ),
    personalised: Path | None = typer.Option(None, "--personalised", help="A site's own adapter folder."),
    canaries: Path | None = typer.Option(
        None, "--canaries", help="The secret list of `medflare cohort canaries`, of a run on its site.yaml."
    ),
    shadows: int = typer.Option(
        0, "--shadows", min=0, help="Shadow adapters to train for the likelihood-ratio attack; 16 is usual."
    ),
    batch: int = typer.Option(16, "--batch", min=1, help="Prompts of one batch."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Attacks a run's final adapter at a hospital and says how well its training patients are recognised.

    Writes audit.json and audit.html beside the record, audit_personalised with --personalised: numbers over
    all patients, never a text or one patient's score. Audits of other sites that are there stay.

    [bold]Example[/bold]: medflare audit runs/20261120-fed_medlora -f site.yaml
    """
    from medflare.auditing.canaries import read_canaries
    from medflare.auditing.report import FILE, PERSONALISED, AuditReport, audits_in
    from medflare.auditing.shadow_adapters import Shadows
    from medflare.auditing.site_audit import audit_site
    from medflare.core.run_record import read_record
    from medflare.data.settings.site import load_site
    from medflare.learners.registry import build_learner
    from medflare.recipes.after_run import locate
    from medflare.recipes.result_origin import adapter_folder
    from medflare.reporting.audit_page import write_audit_page
    from medflare.version import __version__

    record_path = locate(run)
    record, result = read_record(record_path), adapter_folder(run)
    secrets = None if canaries is None else read_canaries(canaries)
    file = record_path.with_name(PERSONALISED if personalised else FILE)
    audits_in(file, record.run_id)  # a damaged one is said before hours of work
    found: dict[str, SiteAudit] = {}
    items = ItemBatch()
    for name in names(sites) or _took_part(record, site_file):
        with items.item(name):
            site = load_site(site_file, name)
            found[name] = audit_site(
                record,
                result,
                site,
                personalised=personalised,
                canaries=secrets,
                shadows=Shadows(shadows, build_learner) if shadows else None,
                batch=batch,
            )
    items.require_some()
    report = AuditReport(
        run_id=record.run_id, method=record.method, task=record.task, version=__version__, sites=found
    )
    earlier = audits_in(file, record.run_id)  # another hospital's may have been written meanwhile
    every = report.model_copy(update={"sites": earlier | found})
    written = every.write(file)
    page = write_audit_page(every, written.with_suffix(".html"))
    if as_json:
        typer.echo(report.model_dump_json(indent=1))
    else:
        from medflare.cli.audit_view import print_audit

        print_audit(report)
        typer.echo(f"\n{written}\n{page}")
    items.finish()


def _took_part(record: RunRecord, site_file: Path) -> list[str]:
    """Return the sites of a file that took part in the run.

    Raises:
        ConfigError: none did.
    """
    from medflare.core.errors import ConfigError
    from medflare.data.settings.site import load_site_file

    known = sorted(load_site_file(site_file))
    # a hospital's own file may leave its name out; the run then has one name for it that only it knows
    if chosen := [name for name in known if name in record.sites]:
        return chosen
    raise ConfigError(
        f"{site_file}: of its sites ({', '.join(name or 'one without a name' for name in known)}) none took "
        f"part in the run, which has {', '.join(sorted(record.sites))}. Name yours with --site."
    )
