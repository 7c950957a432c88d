# SPDX-License-Identifier: Apache-2.0
"""Scorers of candidates, for rules that weigh updates by a loss (ML-4, VG-4).

The server's own scorer is a worker like a site's, with the method and settings the sites report, the base
model and the validation data D_v that the server's own site.yaml names; nothing of D_v travels. Or every site
measures every candidate, which sends each site's model to all others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from medflare.core.errors import RunError, UpdateError
from medflare.core.hints import RoundHints
from medflare.core.plan import RoundPlan
from medflare.core.site_description import description_of
from medflare.core.tensors import State
from medflare.egress.failures import SiteSettingsError, TaskError
from medflare.federation.server.preparation import agree
from medflare.protocol.submitted_job import SubmittedJob
from medflare.wire.plan_codec import plan_to_json
from medflare.wire.task_messages import TaskRequest
from medflare.worker import config as worker_config
from medflare.worker.config import WorkerConfig, site_file
from medflare.worker.workers import Worker

SERVER = "server"
"""The server's name where sites go by theirs: in site.yaml, and in messages about what must agree."""
SPLIT: Literal["val"] = "val"
ADVICE = (
    "The job's aggregation rule scores every update on validation data at the server. Write {file} there, "
    "with `cohort:` (format and root of the data) and `backbone:` (the same base model as at the sites); in "
    "a simulator, add an entry `server:` under `sites:` of the one file. Or take a rule, or a mode of it, "
    "that needs none at the server."
)


def server_worker_config(
    workspace: Any, submitted: SubmittedJob, run_id: str, seed: int, folder: Path
) -> WorkerConfig:
    """Return what the server's worker needs: the job's method and settings, its own data and folders.

    RunError, which says what to write where, unless the server has a site.yaml that can be used.
    """
    root = Path(workspace.get_root_dir())
    config = WorkerConfig(
        method=submitted.method,
        settings=submitted.settings,
        seed=seed,
        site=SERVER,
        site_file=str(site_file(root, Path(workspace.get_site_config_dir()))),
        state_folder=str(folder / "state"),
        cache_folder=str(root / "cache"),
        run_id=run_id,
        split=SPLIT,
    )
    try:
        worker_config.load_site_settings(config)
    except SiteSettingsError as error:
        raise RunError(f"{error} {ADVICE.format(file=config.site_file)}") from error
    return config


class Scorer:
    """Loss of a candidate state on D_v; give it to `rule.set_score`.

    Args:
        worker: one whose `WorkerConfig` is the server's own.
        deadline: seconds a score may take.
        aborted: whether the job was stopped.
        report_event: called with "scored" and the facts of each score.
    """

    def __init__(
        self, worker: Worker, deadline: float, aborted: Callable[[], bool], report_event: Callable[..., None]
    ) -> None:
        self.worker, self.deadline, self.aborted, self.report_event = worker, deadline, aborted, report_event
        self.plan = RoundPlan(round=0, rounds=1)

    def prepare(self, facts: Mapping[str, Mapping[str, Any]], sites: Sequence[str]) -> None:
        """Load model and data; RunError if they do not fit what the sites declared, or there are none."""
        work = TaskRequest(task="prepare", plan={}, options={"sites": len(sites)})
        try:
            declared = self.worker.run_task(work, self.deadline, self.aborted).facts
        except TaskError as error:
            text = str(error).replace("at the site", "in the folder `scorer` of the server's run")
            raise RunError(f"the server cannot score updates: {text}") from error
        agree({**facts, SERVER: declared}, [*sites, SERVER])
        if description_of(declared, SERVER).examples.get(SPLIT, 0) < 1:
            raise RunError(
                f"the server's site.yaml names no record of the split '{SPLIT}'. Records without a split of "
                f"their own all count there; where the source has a split column, write '{SPLIT}' into it."
            )

    def __call__(self, site: str, state: State) -> float:
        """Return the loss of `site`'s candidate θ + Δ_k; UpdateError if there is none."""
        started = time.monotonic()
        plan = plan_to_json(replace(self.plan, hints=self.plan.hints | RoundHints(loss_only=True)))
        work = TaskRequest(task="evaluate", plan=plan, options={"split": SPLIT}, tensors=state)
        try:
            metrics = self.worker.run_task(work, self.deadline, self.aborted).facts["metrics"]
        except TaskError as error:
            raise UpdateError(f"could not be scored at the server: {error}") from error
        loss = float(metrics.get("loss", math.nan))
        if not math.isfinite(loss):
            raise UpdateError(f"scored a loss of {loss} on the server's validation data, expected a number")
        seconds = round(time.monotonic() - started, 3)
        self.report_event("scored", round=self.plan.round, site=site, server_loss=loss, seconds=seconds)
        return loss

    def close(self) -> None:
        """End the worker."""
        self.worker.close()


class CrossScorer:
    """Loss of a candidate over the validation data of all sites, each of which measures it on its own (VG-4).

    Args:
        measure: (plan, candidate) -> the metrics of every site that answered.
        examples: site -> validation examples, the weight of its word.
        report_event: called with "scored" and the facts of each score.
    """

    def __init__(
        self,
        measure: Callable[[RoundPlan, State], Mapping[str, Mapping[str, float]]],
        examples: Mapping[str, int],
        report_event: Callable[..., None],
    ) -> None:
        self.measure, self.examples, self.report_event = measure, examples, report_event
        self.plan = RoundPlan(round=0, rounds=1)

    def __call__(self, site: str, state: State) -> float:
        """Return the mean over sites with validation data; UpdateError if there is none."""
        started = time.monotonic()
        metrics = self.measure(replace(self.plan, hints=self.plan.hints | RoundHints(loss_only=True)), state)
        losses = {judge: values.get("loss", math.nan) for judge, values in metrics.items()}
        losses = {judge: loss for judge, loss in losses.items() if math.isfinite(loss)}
        examples = sum(self.examples.get(judge, 0) for judge in losses)
        if not examples:
            raise UpdateError("could not be scored: no site with validation data measured a finite loss")
        mean = sum(self.examples.get(judge, 0) * loss for judge, loss in losses.items()) / examples
        seconds = round(time.monotonic() - started, 3)
        self.report_event(
            "scored", round=self.plan.round, site=site, cross_loss=mean, measured=losses, seconds=seconds
        )
        return mean

    def close(self) -> None:
        """Nothing is open."""
