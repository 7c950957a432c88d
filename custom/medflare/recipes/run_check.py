# SPDX-License-Identifier: Apache-2.0
"""Checks a run on one machine before it starts: the job, its sites, and the disk it will write to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from medflare.core.errors import ConfigError
from medflare.core.model_folders import check_folder
from medflare.data.settings.site import SiteConfig, no_visits
from medflare.egress.policy import Policy
from medflare.federation.server.quorum import Quorum
from medflare.federation.server.settings import RoundsSettings
from medflare.learners.registry import get_method, task_of
from medflare.protections.limits import limits_of
from medflare.protections.registry import get_protection
from medflare.recipes.job import Job
from medflare.recipes.job_check import check_job
from medflare.wire.disk_space import free_megabytes

SITE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
FOLDERS = ("local", "startup")
"""Folders of the simulator's workspace beside those of the sites and the server."""
LEAST_MEGABYTES = 200
"""Free space without which no run begins: states of two rounds, adapters, logs and predictions of the
embedded models. Larger models need more: how much is known only once a site has built its model."""


def check_run(
    job: Job, known: Mapping[str, SiteConfig], sites: Sequence[str] | None, workspace: Path
) -> tuple[Job, list[str]]:
    """Check everything about a run that can be known before it starts.

    Args:
        known: the sites of the site file.
        sites: those that take part; default all of them.
        workspace: where it will write; it need not exist.

    Returns:
        The job for so many sites, and their names.

    Raises:
        ConfigError: with all problems.
    """
    chosen = list(dict.fromkeys(sites or sorted(known)))
    if missing := sorted(set(chosen) - set(known)):
        raise ConfigError(f"no site {', '.join(missing)} in site.yaml. It has: {', '.join(sorted(known))}.")
    job = replace(job, n_clients=len(chosen))
    check_job(job)
    settings = job.flow.settings.model_validate({"job": job.title, **job.controller})
    problems = [
        *_names(chosen),
        *_responses(settings, chosen),
        *_profiles(settings, chosen),
        *_too_few_sites(settings, chosen, known),
        *_backbones(job.method, chosen, known),
        *_cohorts(chosen, known),
        *_visits(job.method, chosen, known),
        *_room(workspace),
    ]
    if problems:
        raise ConfigError("\n".join(problems))
    return job, chosen


def _names(sites: Sequence[str]) -> Iterator[str]:
    """Yield the sites that FLARE cannot have, and those whose folder in the workspace is another's."""
    for site in sites:
        if not SITE_NAME.fullmatch(site):
            yield (
                f"site '{site}' in site.yaml: FLARE wants a name of at most 100 letters from A to Z, digits, "
                "'-' and '_', with a letter or a digit first. Name it otherwise."
            )
        elif site in FOLDERS:
            yield f"site '{site}' in site.yaml: FLARE keeps a folder of that name. Name it otherwise."


def _responses(settings: RoundsSettings, sites: Sequence[str]) -> Iterator[str]:
    """Yield why the sites that the job demands cannot be there."""
    if settings.mode == "async" and settings.buffer > len(sites):
        yield (
            f"buffer is {settings.buffer}, and {len(sites)} sites take part ({', '.join(sites)}), each of "
            f"which trains one update at a time. Use --set buffer={len(sites)} or less."
        )
    wanted = settings.min_responses
    if wanted is not None and wanted > len(sites):
        yield (
            f"min_responses is {wanted}, and {len(sites)} sites take part ({', '.join(sites)}): no round "
            f"could succeed. Use --set min_responses={len(sites)} or less, or more sites."
        )
    if unknown := sorted(set(settings.mandatory_sites) - set(sites)):
        yield (
            f"the job's `mandatory_sites` names {', '.join(unknown)}, which take no part; those that do are "
            f"{', '.join(sites)}. No round could succeed: correct the names, or leave them out."
        )
    if unknown := sorted(set(settings.sites) - set(sites)):
        yield (
            f"the job's `sites` names {', '.join(unknown)}, which take no part; those that do are "
            f"{', '.join(sites)}. Use --set sites=[] for whoever takes part, or name them with --sites."
        )


def _profiles(settings: RoundsSettings, sites: Sequence[str]) -> Iterator[str]:
    """Yield which sites have no profile of a simulated clock.

    A profile of somebody else is no mistake: the shipped jobs have six, for as many sites as there are.
    """
    profiles = settings.latency_profiles
    without = [site for site in sites if site not in profiles]
    if profiles and without:
        yield (
            f"the job runs by a simulated clock and has no latency profile for {', '.join(without)}, only "
            f"for {', '.join(sorted(profiles))}. Give every site one, name those that take no part with "
            "--unseen, or take the seconds that pass: --set latency_profiles={}."
        )


def _too_few_sites(
    settings: RoundsSettings, sites: Sequence[str], known: Mapping[str, SiteConfig]
) -> Iterator[str]:
    """Yield which sites would refuse a run of so few of them that it could not go on."""
    protection = get_protection(settings.protection)
    summed = protection.server_reads == "sum"
    policies = {site: Policy(rules=known[site].policy) for site in sites}
    limits = {
        site: limits_of(policy).min_sites if summed else policy.rules.min_sites
        for site, policy in policies.items()
    }
    refusing = {site: least for site, least in limits.items() if least > len(sites)}
    required = Quorum.of_round(settings.min_responses, len(sites), None, protection.min_sites).required
    if not refusing or len(sites) - len(refusing) >= max(2 if summed else 1, required):
        return
    refusals = ", ".join(f"{site} ({least})" for site, least in refusing.items())
    if summed:
        yield (
            f"under {protection.words} a site hides in the sum of all, and {len(sites)} sites are fewer than "
            f"these want: {refusals}. Let more sites take part, or lower policy.min_sites in their "
            "site.yaml; with two sites, each can compute the other's update from the sum."
        )
    else:
        yield (
            f"{len(sites)} site(s) take part, fewer than the policy of these asks for: {refusals}. "
            "`medflare cohort init A B C` writes a file of several hospitals. For a trial of fewer on this "
            "machine, lower policy.min_sites in site.yaml."
        )


def _backbones(method: str, sites: Sequence[str], known: Mapping[str, SiteConfig]) -> Iterator[str]:
    """Yield which sites name a folder that holds no model."""
    if not get_method(method).weights_in_folder:
        return  # a tokenizer's folder, which has files of its own
    for site in sites:
        folder = known[site].backbone.folder
        if folder is None:
            continue
        parts = [folder / part for part in ("encoder", "decoder")]  # of a report generator
        try:
            for part in parts if all(part.is_dir() for part in parts) else [folder]:
                check_folder(part)
        except ConfigError as error:
            yield f"{site}: {error}"


def _cohorts(sites: Sequence[str], known: Mapping[str, SiteConfig]) -> Iterator[str]:
    """Yield which sites name a folder of records that is not there."""
    for site in sites:
        for cohort in known[site].cohort:
            if not cohort.root.exists():
                yield f"{site}: cohort.root: there is no folder '{cohort.root}'. Correct it in site.yaml."


def _visits(method: str, sites: Sequence[str], known: Mapping[str, SiteConfig]) -> Iterator[str]:
    """Yield which sites are not read as patients with visits, for a method that trains on them."""
    if task_of(method).reads == "visits":
        for site in sites:
            if (missing := no_visits(known[site])) is not None:
                yield missing


def _room(workspace: Path) -> Iterator[str]:
    """Yield that the disk has no space for what a run writes."""
    free = free_megabytes(workspace)
    if free < LEAST_MEGABYTES:
        yield (
            f"{workspace}: {free} MB free, and a run needs {LEAST_MEGABYTES} MB at least. Free some space "
            "(`medflare runs prune` deletes old runs), or name a folder on another disk with --workspace."
        )
