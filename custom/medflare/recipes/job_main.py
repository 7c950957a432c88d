# SPDX-License-Identifier: Apache-2.0
"""Main program of `python jobs/<job>/job.py`: export the job's folder, or run it through FLARE's SimEnv."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from medflare.core.errors import MedflareError
from medflare.core.option_values import read_pairs, with_options
from medflare.core.stop_signals import StopSignal, stop_signals_raise
from medflare.data.settings.site import SiteConfig
from medflare.recipes import simulate
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.recipes.overrides import override
from medflare.recipes.preset_choice import with_preset
from medflare.recipes.progress_view import live
from medflare.recipes.run_check import check_run
from medflare.recipes.simulator_process import SERVER_FOLDER
from medflare.recipes.workspace_name import new_workspace


def arguments(job: Job) -> argparse.ArgumentParser:
    """Return the options of a job.py; names as in FLARE's own examples."""
    parser = argparse.ArgumentParser(
        description=f"Exports the job '{job.title}' or runs it in FLARE's simulator.",
        epilog="Example: python job.py --n_clients 3 --num_rounds 5 --sites site.yaml --set settings.lr=1e-4",
    )
    parser.add_argument("--n_clients", type=int, default=None, help="sites site-1 to site-n")
    parser.add_argument("--num_rounds", type=int, default=None)
    parser.add_argument(
        "--sites", type=Path, help="site.yaml with 'sites:'; default <workspace>/local/site.yaml"
    )
    parser.add_argument("--workspace", type=Path, help="default runs/<timestamp>-<job>")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that lies in --workspace")
    parser.add_argument("--export", action="store_true", help="write the job folder and stop")
    parser.add_argument("--export-dir", type=Path, default=Path("fl_job"))
    parser.add_argument("--set", action="append", default=[], metavar="key=value", help="change any setting")
    return parser


def wanted_job(job: Job, given: argparse.Namespace, sites: Mapping[str, SiteConfig] | None = None) -> Job:
    """Return the job with the command line's changes, checked.

    Args:
        sites: those of a run here, whose backbones may need a preset.
    """
    changes = with_options(read_pairs(given.set), num_rounds=given.num_rounds)
    job = override(job, with_preset(job, changes, sites or {}, lambda event: print(event["reason"])))
    if given.n_clients is not None:
        job = replace(job, n_clients=given.n_clients)
    check_job(job)
    return job


def run(job: Job, given: argparse.Namespace) -> Path:
    """Run a job through SimEnv; return the server's folder of the run."""
    from medflare.federation.engine_jobs import SimEnv
    from medflare.recipes.sim_job import FolderJob

    workspace = (given.workspace or new_workspace(job.title)).resolve()
    known = simulate.described_sites(workspace, given.sites)
    job = wanted_job(job, given, known)
    wanted = None if given.n_clients is None else [f"site-{i + 1}" for i in range(job.n_clients)]
    job, sites = check_run(job, known, wanted, workspace)
    with simulate.held(workspace, given.overwrite):
        simulate.prepare_workspace(workspace, given.sites)
        display, on_event = live(workspace=workspace)
        folder_job = FolderJob(job, workspace, on_event)
        with display, simulate.closing_record(workspace):
            environment = SimEnv(clients=sites, num_threads=len(sites), workspace_root=str(workspace.parent))
            environment.deploy(folder_job)
        simulate.judge(workspace)
    return workspace / SERVER_FOLDER


def main(job: Job, argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 0 for a completed run or export, the error's own otherwise."""
    given = arguments(job).parse_args(argv)
    try:
        if given.export:
            print(wanted_job(job, given).write(given.export_dir / job.title))
            return 0
        with stop_signals_raise():
            print(run(job, given))
        return 0
    except StopSignal as stop:
        print(stop.text, file=sys.stderr)
        return stop.exit_code
    except MedflareError as error:
        print(error, file=sys.stderr)
        return error.exit_code
