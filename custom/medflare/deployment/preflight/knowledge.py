# SPDX-License-Identifier: Apache-2.0
"""Checks of what a site's knowledge graph is made of: key, vocabularies, graphs made elsewhere, encoder."""

from __future__ import annotations

from typing import Any

from medflare.aggregation import make_rule
from medflare.aggregation.capabilities import NeedsExactSizes, NeedsSketches
from medflare.core.errors import MedflareError
from medflare.data.settings.knowledge import KnowledgeConfig
from medflare.data.settings.site import SiteConfig
from medflare.deployment.preflight.base import Check, ok, problem, warning
from medflare.knowledge.name_encoder import check_encoder
from medflare.knowledge.private_intersection import available
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.vocabulary import read_concepts
from medflare.recipes.job import Job
from medflare.worker.sketch import knowledge_files

NAME = "knowledge"


def knowledge(site: SiteConfig, job: Job | None) -> list[Check]:
    """Return the checks of `knowledge`; none where site.yaml has no such block and the job no use for it."""
    rule = make_rule(*_rule(job)) if job is not None else None
    wanted = rule is not None and rule.capability(NeedsSketches) is not None
    exact = rule is not None and rule.capability(NeedsExactSizes) is not None
    if site.knowledge is None:
        return [_without()] if wanted or exact else []
    if wanted and site.policy.knowledge_sketch == "deny":
        found, expected = "policy.knowledge_sketch is deny", "a policy that lets the sketch go"
        return [
            warning(NAME, found, expected, "The job goes on without this site's sketch; allow it, or not")
        ]
    config = site.knowledge
    checks = [_key(config), _vocabulary(config), *_graphs(config), *_encoder(config)]
    return [*checks, *_exactly(site)] if exact else checks


def _rule(job: Job) -> tuple[str, dict[str, Any]]:
    return str(job.aggregation["rule"]), dict(job.aggregation.get("rule_settings", {}))


def _exactly(site: SiteConfig) -> list[Check]:
    """Check whether the site can take part in exact comparison."""
    found, goes_on = [], "else the site counts as far from the others as is typical"
    if site.policy.knowledge_exact == "deny":
        finding, expected = "policy.knowledge_exact is deny (the default)", "a policy that lets sizes be told"
        remedy = f"Set policy.knowledge_exact: allow, or have the job take distances: sketches; {goes_on}"
        found.append(warning(NAME, finding, expected, remedy))
    if not available():
        finding, expected = "openmined.psi cannot be imported", "the package for exact comparison"
        found.append(warning(NAME, finding, expected, f"pip install 'medflare[psi]'; {goes_on}"))
    return found or [ok(NAME, "the policy lets exact sizes be told, and openmined.psi is there")]


def _without() -> Check:
    found = "site.yaml has no block `knowledge`, and the job's rule compares knowledge graphs"
    remedy = "Add vocabulary and key; without a graph the site counts as far from the others as is typical"
    return warning(NAME, found, "a vocabulary and the hospitals' shared key", remedy)


def _key(config: KnowledgeConfig) -> Check:
    """Check that the key is valid and only its owner can read it; its fingerprint is no secret."""
    try:
        mark = SketchKey.read(config.key, config.context).fingerprint(config.kind, config.hashes).hex()[:8]
    except MedflareError as error:
        remedy = "Get the file from the hospital that made it (`medflare knowledge key`), never by the server"
        return problem(NAME, str(error), "the key file that all hospitals share", remedy)
    if config.key.stat().st_mode & 0o077:
        found = f"{config.key}: others can read or write it (fingerprint {mark})"
        return warning(NAME, found, "mode 600", f"chmod 600 {config.key}")
    return ok(NAME, f"key {config.key}, fingerprint {mark}: must be the same at every hospital")


def _vocabulary(config: KnowledgeConfig) -> Check:
    try:
        concepts = read_concepts(config.vocabulary)
    except MedflareError as error:
        return problem(NAME, str(error), "vocabularies that can be read", "Mend knowledge.vocabulary")
    names = ", ".join(str(file) for file in config.vocabulary) or "none"
    return ok(NAME, f"vocabulary {names}: {len(concepts):,} concepts")


def _graphs(config: KnowledgeConfig) -> list[Check]:
    """Check that all other files exist; their content is read when a sketch is computed."""
    others = [file for file in knowledge_files(config) if file != config.encoder]
    missing = [str(file) for file in others if not file.exists()]
    if not missing:
        return []
    remedy = "Mend the paths under `knowledge`"
    return [problem(NAME, f"{', '.join(missing)}: not there", "the files that site.yaml names", remedy)]


def _encoder(config: KnowledgeConfig) -> list[Check]:
    """Check that the folder holds an encoder; its weights are not opened."""
    if config.encoder is None:
        return []
    try:
        pooling = check_encoder(config.encoder, config.pooling)
    except MedflareError as error:
        remedy = "Mend knowledge.encoder, or set nearest_by: characters"
        return [problem(NAME, str(error), "a local folder with an encoder of texts", remedy)]
    return [ok(NAME, f"encoder {config.encoder}, pooling {pooling}: should be the same at every hospital")]
