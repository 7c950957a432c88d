# SPDX-License-Identifier: Apache-2.0
"""`medflare serve`: runs in a browser, on this machine alone."""

from __future__ import annotations

from pathlib import Path

import typer

from medflare.cli.output import plain_errors


@plain_errors
def serve(
    folder: Path = typer.Argument(
        Path("runs"), help="A folder of runs, one run's workspace, or a startup kit."
    ),
    port: int = typer.Option(8765, "--port", min=0, max=65535, help="0 takes a free one."),
    gallery: int = typer.Option(
        4, "--gallery", min=0, help="Studies shown of each site; 0 leaves patients out."
    ),
) -> None:
    """Shows runs in a browser: a list, a page that follows a run, two runs side by side, CSV and figures.

    Answers on 127.0.0.1 only; from another machine use a tunnel (ssh -L). Nothing is changed. `/metrics` is
    for Prometheus. Ends with Ctrl-C.

    [bold]Example[/bold]: medflare serve runs
    """
    from werkzeug.serving import make_server

    from medflare.core.stop_signals import StopSignal
    from medflare.serving.app import create_app

    server = make_server("127.0.0.1", port, create_app(folder, gallery), threaded=True)
    typer.echo(
        f"http://127.0.0.1:{server.server_port}/  shows the runs of {folder.resolve()}. Ctrl-C ends it."
    )
    try:
        server.serve_forever()
    except (KeyboardInterrupt, StopSignal):
        typer.echo("ended.")
    finally:
        server.server_close()
