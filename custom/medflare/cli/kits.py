# SPDX-License-Identifier: Apache-2.0
"""`medflare kits ...`: startup kits made safe, checked, and made without a private key leaving a hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from medflare.cli import kits_distributed
from medflare.cli.output import JSON_OPTION, plain_errors, print_json

app = typer.Typer(help="Makes, hardens and checks startup kits.", no_args_is_help=True)
KITS = typer.Argument(help="Folder that `nvflare provision -w` wrote, a prod_NN folder of it, or one kit.")
FINGERPRINT = typer.Option(
    "", "--fingerprint", help="Fingerprint of the project's root certificate, told by telephone or on paper."
)


@app.command("harden")
@plain_errors
def harden(
    kits: Path = KITS,
    site_file: Path | None = typer.Option(
        None, "--site-file", help="Becomes local/site.yaml of each site that has none; default: the template."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Makes startup kits safe by default and prints what it changed; again, it changes nothing.

    [bold]Example[/bold]: medflare kits harden kits
    """
    from medflare.deployment.hardening import SITE_TEMPLATE
    from medflare.deployment.hardening import harden as apply

    changes = apply(kits, site_file or SITE_TEMPLATE)
    if as_json:
        print_json([_row(change) for change in changes])
        return
    for change in changes:
        typer.echo(_line(change, kits))
    typer.echo(f"{len(changes)} change(s)" if changes else "nothing to change")


@app.command("check")
@plain_errors
def check(kits: Path = KITS, fingerprint: str = FINGERPRINT, as_json: bool = JSON_OPTION) -> None:
    """Says what is not hardened, was tampered with, or has a certificate that does not serve. Exit 1 then.

    Warnings, as of a server that is `localhost` or a site without a policy, leave the exit code as it is.

    [bold]Example[/bold]: medflare kits check site-1 --fingerprint SHA256:6D:15:...
    """
    from medflare.deployment.kit_advice import advice
    from medflare.deployment.kit_check import authorities
    from medflare.deployment.kit_check import check as examine

    findings, warnings = examine(kits, authority=fingerprint), advice(kits)
    if as_json:
        levels = (("problem", findings), ("warning", warnings))
        print_json(
            [
                {"file": str(f.path), "level": level, "found": f.found, "remedy": f.remedy}
                for level, listed in levels
                for f in listed
            ]
        )
    else:
        for finding in findings:
            typer.echo(_line(finding, kits))
        for finding in warnings:
            typer.echo(f"warning: {_line(finding, kits)}")
        typer.echo(f"{len(findings)} finding(s)" if findings else "hardened, untouched, certificates valid")
        typer.echo(f"authority {', '.join(authorities(kits))}")
    if findings:
        raise typer.Exit(1)


@app.command("handover")
@plain_errors
def handover(
    kits: Path = KITS,
    contact: str = typer.Option(
        "", "--contact", help="Whom a hospital calls: name and telephone. Default: the admins' names."
    ),
    overwrite: bool = typer.Option(
        False, "--overwrite", help="Write pages anew that are there, perhaps completed by hand."
    ),
    as_json: bool = JSON_OPTION,
) -> None:
    """Writes HANDOVER.md into each site's kit: what it gets, what it sets, what leaves, whom to call.

    [bold]Example[/bold]: medflare kits handover kits --contact "Dr Weber, +49 30 1234"
    """
    from medflare.deployment.handover import write_handovers

    files, kept = write_handovers(kits, contact, overwrite=overwrite)
    for file in kept:
        typer.echo(f"{file}: is there already and was left as it is; --overwrite writes it anew.", err=True)
    if as_json:
        print_json([str(file) for file in files])
        return
    for file in files:
        typer.echo(str(file))


@app.command("service")
@plain_errors
def service(
    kit: Path = typer.Argument(help="Startup kit of the server or of a site, where it will run."),
    user: str = typer.Option("", "--user", help="As whom it runs; default root."),
    out: Path | None = typer.Option(None, "--out", "-o", help="File to write; default: print it."),
) -> None:
    """Writes a systemd unit that starts a kit with the machine, and again after a crash.

    [bold]Example[/bold]: medflare kits service /opt/site-1 --user medflare -o medflare.service
    """
    from medflare.deployment.service_unit import service_unit

    unit = service_unit(kit, user)
    if out is None:
        typer.echo(unit, nl=False)
    else:
        out.write_text(unit, encoding="utf-8")
        typer.echo(f"{out}: start it with `systemctl enable --now {out.name}`")


@app.command("renew")
@plain_errors
def renew(
    workspace: Path = typer.Argument(
        help="Folder that `nvflare provision -w` wrote, with the authority's key."
    ),
    names: list[str] | None = typer.Argument(
        None, help="Participants to renew; without, the ends are listed."
    ),
) -> None:
    """Has the next `make provision` give new certificates, or lists when the present ones end.

    [bold]Example[/bold]: medflare kits renew kits site-1 site-2
    """
    from medflare.deployment import renewal

    if not names:
        for name, end in sorted(renewal.expiry(workspace).items(), key=lambda item: (item[1], item[0])):
            typer.echo(f"{end:%Y-%m-%d}  {name or 'the authority'}")
        return
    renewal.renew(workspace, names)
    typer.echo("Provision again into the same folder; then replace startup/ of these kits, local/ stays.")


app.command("authority")(kits_distributed.authority)
app.command("request")(kits_distributed.request)
app.command("approve")(kits_distributed.approve)
app.command("assemble")(kits_distributed.assemble)


def _line(item: Any, kits: Path) -> str:
    """Return a change or finding with its file as seen from `kits`."""
    return str(item).replace(f"{kits}/", "", 1)


def _row(change: Any) -> dict[str, Any]:
    return {"file": str(change.path), "key": change.key, "before": change.before, "after": change.after}
