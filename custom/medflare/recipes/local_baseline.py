# SPDX-License-Identifier: Apache-2.0
"""Local baseline: each site trains alone with the run's job and budget, and is tested as the run was."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from medflare.aggregation import rule_class
from medflare.aggregation.capabilities import AsksClientTerms, SamplesClients
from medflare.core.config import read_yaml
from medflare.core.errors import ConfigError, MedflareError
from medflare.core.run_record import (
    ComparisonRecord,
    EvaluationRecord,
    LocalBaseline,
    RunRecord,
    read_record,
)
from medflare.data.settings.policy import PolicyConfig
from medflare.data.settings.site import SiteConfig
from medflare.recipes.after_run import locate, score_unseen
from medflare.recipes.job import Job, write_to_temporary
from medflare.recipes.job_check import check_job
from medflare.recipes.overrides import override
from medflare.recipes.paired_scores import ScoredSystem, paired_scores
from medflare.recipes.resume import WorkspaceState
from medflare.recipes.run_check import check_run
from medflare.worker.config import SITE_FILE

FOLDER = "local-baseline"
"""Folder of the sites' own workspaces in the run's."""
ALONE: Mapping[str, Any] = {
    "protection": "none",
    "min_responses": 1,
    "mandatory_sites": [],
    "sites": [],
    "mode": "sync",
}
"""Settings of a job for one site; keys that its workflow does not have are left out."""
OF_A_FEDERATION = ("min_sites", "partners", "require", "min_threshold", "min_site_noise")
"""Rules of a site's policy about who else takes part and what hides its update from them. A hospital that
trains alone sends nothing to anybody; its other rules hold, such as the budget of differential privacy."""


def job_alone(job: Job) -> Job:
    """Return the run's job for one site: the same method, settings, rounds and steps, and no protection.

    The weighted mean, which of one update is that update, takes the place of a rule that selects sites,
    compares their updates, steps beyond them or changes a site's own steps: a hospital alone has no server.

    Raises:
        ConfigError: the job cannot run at one site.
    """
    fields = job.flow.settings.model_fields
    one = replace(override(job, {key: value for key, value in ALONE.items() if key in fields}), n_clients=1)
    rule = rule_class(one.aggregation["rule"])
    declared = rule.facts.compares or rule.facts.server_optimiser
    if declared or rule.class_capability(SamplesClients) or rule.class_capability(AsksClientTerms):
        one = override(one, {"rule": "weighted_mean"})
    check_job(one)
    return one


def check_baselines(job: Job, known: Mapping[str, SiteConfig], sites: Sequence[str], workspace: Path) -> None:
    """Check before the federated run that each of its sites could train alone.

    Raises:
        ConfigError: one could not, with the reason.
    """
    alone = job_alone(job)
    for site in sites:
        config = known[site]
        kept = {name: value for name, value in config.policy if name not in OF_A_FEDERATION}
        config = config.model_copy(update={"policy": PolicyConfig(**kept)})
        try:
            check_run(alone, {site: config}, [site], workspace)
        except ConfigError as error:
            raise ConfigError(f"--local-baseline: {site} cannot train alone: {error}") from None


def train_alone(
    workspace: Path,
    site: str,
    run: Callable[..., RunRecord],
    on_event: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Train a site alone, test it where the run was tested, and write both into the run's record.

    A training that was completed before, for instance in a run that goes on, is not repeated.

    Args:
        workspace: of the run, which is completed.
        run: `recipes.simulate.run_simulator`.

    Raises:
        RunError: the training did not complete.
    """
    record_path, site_file = locate(workspace), workspace / "local" / SITE_FILE
    job, request = WorkspaceState(workspace).requested()
    place = workspace / FOLDER / site
    if not _completed(place):
        with write_to_temporary(job_alone(job)) as holder:
            folder = Path(holder) / job.title
            file = _file_alone(site_file, site)
            run(folder, place, [site], file, on_event=on_event, overwrite=True, changes={"preset": "job"})
    alone_path = locate(place)
    for name in request.unseen:
        score_unseen(alone_path, site_file, name)
    record, alone = read_record(record_path), read_record(alone_path)
    record.alone = [item for item in record.alone if item.trained_at != site]
    for evaluation in alone.evaluations:
        moved = _beside(evaluation, alone_path.parent, record_path.parent)
        gaps = _differences(record, record_path.parent, moved)
        record.alone.append(LocalBaseline(trained_at=site, evaluation=moved, differences=gaps))
    record.write(record_path)


def _file_alone(site_file: Path, site: str) -> Path:
    """Write beside the run's site.yaml one of a site alone, without rules OF_A_FEDERATION; return it."""
    entry = dict(read_yaml(site_file)["sites"][site])
    policy = {name: rule for name, rule in (entry.get("policy") or {}).items() if name not in OF_A_FEDERATION}
    entry["policy"] = policy
    path = site_file.with_name(f"{site}.alone.yaml")
    path.write_text(yaml.safe_dump({"sites": {site: entry}}, sort_keys=False), encoding="utf-8")
    return path


def _completed(place: Path) -> bool:
    try:
        return read_record(locate(place)).status == "completed"
    except MedflareError:
        return False


def _beside(evaluation: EvaluationRecord, folder: Path, record_folder: Path) -> EvaluationRecord:
    """Return an evaluation whose predictions are named relative to the run's record."""
    if not evaluation.predictions:
        return evaluation
    path = os.path.relpath((folder / evaluation.predictions).resolve(), record_folder.resolve())
    return evaluation.model_copy(update={"predictions": path})


def _differences(record: RunRecord, folder: Path, alone: EvaluationRecord) -> list[ComparisonRecord]:
    """Return federated minus alone on the same records; [] where predictions of both are not here."""
    same = (alone.site, alone.adapter, alone.split)
    ours = next((e for e in record.evaluations if (e.site, e.adapter, e.split) == same), None)
    if ours is None:
        return []
    federated, local = ScoredSystem("federated", ours), ScoredSystem("alone", alone)
    return paired_scores(federated, local, folder=folder, task=record.task, seed=record.seed)
