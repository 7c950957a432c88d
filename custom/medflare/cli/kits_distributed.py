# SPDX-License-Identifier: Apache-2.0
"""`medflare kits authority | request | approve | assemble`: kits made where they are used."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from medflare.cli.output import plain_errors

PROFILE = typer.Argument(help="The project's profile, provisioning/profile.yml.")


class CertificatePurpose(StrEnum):
    """Purpose of a certificate."""

    SERVER = "server"
    CLIENT = "client"
    ADMIN = "admin"


@plain_errors
def authority(profile: Path = PROFILE, out: Path = typer.Argument(help="New folder for its key.")) -> None:
    """Coordinating centre, once: makes the project's certificate authority and prints its fingerprint.

    [bold]Example[/bold]: medflare kits authority provisioning/profile.yml ca
    """
    from medflare.deployment import distributed

    typer.echo(f"fingerprint: {distributed.authority(profile, out)}")
    typer.echo(f"Tell it by telephone. Keep {out} offline; whoever has it can be anybody.")


@plain_errors
def request(
    name: str = typer.Argument(help="site-1; for the server the host that others dial; a person's e-mail."),
    org: str = typer.Option(..., "--org", help="Organisation, as the project knows it."),
    kind: CertificatePurpose = typer.Option(
        CertificatePurpose.CLIENT, "--kind", help="What the certificate is for."
    ),
    role: str = typer.Option("", "--role", help="Of a person: lead, org_admin or member."),
    project: str = typer.Option("medflare", "--project", help="Name of the project."),
    out: Path = typer.Option(Path(), "--out", help="Folder for the request's own folder."),
) -> None:
    """Every participant: makes a key that stays here, and a request to send to the coordinating centre.

    [bold]Example[/bold]: medflare kits request site-1 --org hospital_a
    """
    from medflare.deployment import distributed

    written = distributed.request(name, kind.value, org, out, project, role)
    typer.echo(f"send {written}")
    typer.echo(
        f"keep {written.with_name(f'{name}.key')}: it is the private key and never leaves this machine"
    )


@plain_errors
def approve(
    request_zip: Path = typer.Argument(help="The request that came, <name>.request.zip."),
    profile: Path = typer.Option(
        Path("provisioning/profile.yml"), "--profile", help="The project's profile."
    ),
    ca: Path = typer.Option(Path("ca"), "--authority", help="Folder made by `medflare kits authority`."),
    valid_days: int = typer.Option(1095, "--valid-days", min=1, help="Days the certificate is valid."),
) -> None:
    """Coordinating centre: signs a request after it is clear from whom it came.

    [bold]Example[/bold]: medflare kits approve site-1.request.zip --authority ca
    """
    from medflare.deployment import distributed

    typer.echo(f"send back {distributed.approve(request_zip, profile, ca, valid_days)}")


@plain_errors
def assemble(
    signed_zip: Path = typer.Argument(help="What came back, <name>.signed.zip."),
    fingerprint: str = typer.Option(
        ..., "--fingerprint", help="Fingerprint of the authority, told by telephone."
    ),
    request_folder: Path = typer.Option(
        ..., "--request", help="Folder of the request, which holds the private key."
    ),
    out: Path = typer.Option(Path("kits"), "--out", help="Folder for the kit."),
) -> None:
    """Every participant: makes the hardened kit from the signed request and the key that stayed here.

    [bold]Example[/bold]: medflare kits assemble site-1.signed.zip --request site-1 --fingerprint SHA256:...
    """
    from medflare.deployment import distributed

    typer.echo(distributed.assemble(signed_zip, request_folder, fingerprint, out))
