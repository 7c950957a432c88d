# SPDX-License-Identifier: Apache-2.0
"""`medflare serve`: runs in a browser, on this machine alone; `medflare track`: in MLflow or W&B."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from medflare.cli.output import JSON_OPTION, plain_errors, print_json


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


@plain_errors
def track(
    folder: Path = typer.Argument(
        ..., help="A run's workspace, a folder of runs, or the server's startup kit."
    ),
    to: Literal["mlflow", "wandb"] = typer.Option(..., "--to", help="Where the numbers go."),
    run: str | None = typer.Option(None, "--run", help="Which run, where the folder has several."),
    project: str = typer.Option("medflare", "--project", help="MLflow's experiment, W&B's project."),
    uri: str | None = typer.Option(None, "--uri", help="MLflow's tracking URI; default as MLflow has it."),
    online: bool = typer.Option(
        False, "--online", help="W&B: send to its server, a service on the internet; default: a folder."
    ),
    follow: bool = typer.Option(False, "--follow", help="Wait for further rounds until the run has ended."),
    as_json: bool = JSON_OPTION,
) -> None:
    """Copies a run's rounds and scores into MLflow or Weights & Biases, with --follow while it goes on.

    It reads the run's record and changes nothing. Names of sites and their numbers go where you say.

    [bold]Example[/bold]: medflare track runs/first --to mlflow --uri sqlite:///mlflow.db --follow
    """
    from medflare.core.errors import ConfigError, DataError
    from medflare.serving.run_index import RunIndex
    from medflare.serving.trackers import MlflowTracker, WandbTracker
    from medflare.serving.trackers import track as copy

    if online and to == "mlflow":
        raise ConfigError("--online is W&B's; MLflow's server is named by --uri. Leave it out.")
    if uri and to == "wandb":
        raise ConfigError("--uri is MLflow's; W&B's server is its own, with --online. Leave it out.")
    index = RunIndex(folder)
    chosen = index.only(run)
    if chosen.record is None:
        raise DataError(f"run {chosen.name} has no record yet; it is written when round 1 begins.")
    tracker = MlflowTracker(project, uri) if to == "mlflow" else WandbTracker(project, online)

    def goes_on() -> bool:
        return follow and index.only(chosen.name).state == "running"

    rounds = copy(chosen.record, tracker, goes_on)
    if as_json:
        print_json({"run": chosen.name, "to": to, "rounds": rounds})
    else:
        typer.echo(f"{rounds} round(s) of {chosen.name} are in {to}, project {project}")
