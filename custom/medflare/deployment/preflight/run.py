# SPDX-License-Identifier: Apache-2.0
"""All checks of `medflare preflight`, in the order in which a hospital would correct what they find."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from medflare.core.errors import ConfigError, MedflareError
from medflare.data.cohort_summary import summarise
from medflare.data.settings.site import SiteConfig, load_site, load_site_file
from medflare.deployment.kits import Kit, as_kit
from medflare.deployment.preflight import kit_files, network, site_checks
from medflare.deployment.preflight.base import Check, ok, problem
from medflare.deployment.preflight.knowledge import knowledge
from medflare.egress.policy import Policy
from medflare.recipes.job import Job
from medflare.recipes.job_reader import read_job


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """Request for a preflight check.

    Attributes:
        site: which site of a file that describes several; None for the kit's, or the only one.
        kit: None for the kit whose `local/` holds the file, if there is one.
    """

    site_file: Path = Path("local/site.yaml")
    site: str | None = None
    job: Path | None = None
    kit: Path | None = None
    timeout: float = network.TIMEOUT


def preflight(request: PreflightRequest) -> list[Check]:
    """Run every check. None of them raises, changes anything, or contacts anything but the federation's
    server."""
    kit, unpacked = _kit(request)
    job, described = _job(request.job)
    site, settings = _site(request, kit)
    checks = [*unpacked, *settings, *described]
    if site is not None:
        checks += _site_checks(site, request.site_file, job, kit)
    if kit is not None:
        checks += [
            kit_files.location(kit),
            *kit_files.certificates(kit),
            kit_files.permissions(kit),
            *kit_files.hardened(kit),
            *kit_files.advised(kit),
            *network.reach(kit, request.timeout),
        ]
    return checks


def _site_checks(site: SiteConfig, file: Path, job: Job | None, kit: Kit | None) -> list[Check]:
    method = job.method if job else None
    readable, cohort = site_checks.open_cohort(site, method)
    folders = [folder for folder in (site.state, kit.folder if kit else file.resolve().parent) if folder]
    return [
        readable,
        *([site_checks.labels(summarise(cohort))] if cohort is not None else []),
        *([site_checks.identifiers(site, cohort)] if cohort is not None else []),
        site_checks.backbone(site, method),
        *site_checks.scorers(site),
        site_checks.device(site),
        site_checks.memory(site, job),
        *knowledge(site, job),
        *site_checks.disk(folders),
        *site_checks.rules(Policy(rules=site.policy, file=file), job),
    ]


def _kit(request: PreflightRequest) -> tuple[Kit | None, list[Check]]:
    """Return the site's kit; without one, certificates and server are not checked."""
    folder = request.kit or request.site_file.resolve().parent.parent
    kit = as_kit(folder)
    if kit is not None and kit.role == "site":
        return kit, []
    if request.kit is None:
        return None, [
            ok("kit", f"none around {request.site_file}; certificates and server are not looked at")
        ]
    found = f"{folder}: {'is the kit of a ' + kit.role if kit else 'no startup kit'}"
    expected = "a site's kit, with startup/fed_client.json"
    return None, [problem("kit", found, expected, "Name the folder that was unpacked with --kit")]


def _job(folder: Path | None) -> tuple[Job | None, list[Check]]:
    if folder is None:
        return None, []
    try:
        return (job := read_job(folder)), [ok("job", f"{job.title}: method {job.method}")]
    except (MedflareError, OSError) as error:
        remedy = "Name a job's folder with --job, for instance jobs/fedmrg"
        return None, [problem("job", str(error), "a job folder", remedy)]


def _site(request: PreflightRequest, kit: Kit | None) -> tuple[SiteConfig | None, list[Check]]:
    """Return the settings of one site, or all errors of the file together."""
    file, name = request.site_file, request.site or (kit.name if kit else None)
    try:
        if name is None:
            names = sorted(load_site_file(file))
            if len(names) > 1:
                raise ConfigError(f"{file}: describes {', '.join(names)}; say which with --site.")
            name = names[0]
        return load_site(file, name), [ok("site file", f"{file}: read, every key is known")]
    except (MedflareError, OSError) as error:
        remedy = "Mend the file; workspace_templates/ has a commented one"
        return None, [problem("site file", str(error), "a site.yaml without mistakes", remedy)]
