# SPDX-License-Identifier: Apache-2.0
"""Checks of what the hospital brings: site.yaml, its cohort and labels, the base model, disk and memory."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from medflare.aggregation import rule_class
from medflare.aggregation.capabilities import ProbesLosses
from medflare.core.errors import MedflareError
from medflare.core.model_folders import check_folder
from medflare.data.cohort import Cohort
from medflare.data.cohort_summary import summarise
from medflare.data.deidentification import detector_of, places
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig, no_visits
from medflare.deployment.preflight.base import Check, ok, problem, warning
from medflare.egress.policy import Policy, PolicyError, in_words
from medflare.evaluation.scorers import fault_of_weights
from medflare.learners.footprint import footprint
from medflare.learners.registry import get_method, task_of
from medflare.models.backbone import device_of, fingerprint
from medflare.models.embedded import decoder_folder
from medflare.models.generators.writing import ReportVocabulary
from medflare.models.vit_gpt2_folder import check_parts, fingerprint_of_parts
from medflare.recipes.job import Job
from medflare.worker.memory_check import free_memory

LEAST_DISK, GOOD_DISK = 2 * 10**9, 10**10
"""Bytes free below which a run cannot keep its state and logs, and below which somebody should look."""
SAFE_SHARE = 0.8
"""Share of the free memory that an estimate may come to; estimates are no measurements."""
MOST_PLACES = 1000
"""Identifiers after which preflight looks no further: it has seen enough to warn."""
GB = 10**9


def open_cohort(site: SiteConfig, method: str | None) -> tuple[Check, Cohort | None]:
    """Return (whether the data can be read and serve the method, the cohort or None)."""
    name = "cohort"
    try:
        cohort = load_cohort(site)
    except (MedflareError, OSError) as error:
        remedy = "Mend the files or the key 'cohort'; `medflare cohort inspect` says more"
        return problem(name, str(error), "a cohort that can be read", remedy), None
    facts = summarise(cohort)
    present = [name for name in ("studies", "notes", "questions", "summaries") if facts[name]]
    records = task_of(method).reads if method else present[0]
    if records == "visits":
        records = "studies"  # the rows that visits are made of
        if (missing := no_visits(site)) is not None:
            found, _, remedy = missing.removesuffix(".").partition("; ")
            return problem(name, found, "patients with visits", f"{remedy[:1].upper()}{remedy[1:]}"), cohort
    splits = ", ".join(f"{split} {counts[records]}" for split, counts in facts["splits"].items())
    patients = f"{facts['patients']} patients, " if facts["patients"] else ""
    summarised = f"{patients}{facts[records]} {records} ({splits})"
    if skipped := sum(reason["count"] for reason in facts["skipped"].values()):
        summarised += f"; {skipped} of {facts['records']} records skipped"
    if not facts["splits"]["train"][records]:
        remedy = f"Give the site {records} to train on, or look at 'split' and 'select'"
        return problem(name, summarised, f"{records} in the split 'train'", remedy), cohort
    empty = [split for split, counts in facts["splits"].items() if not counts[records]]
    if empty:
        remedy = "Without them the site reports no quality; look at 'split'"
        return warning(name, summarised, f"{records} in {' and '.join(empty)}", remedy), cohort
    return ok(name, summarised), cohort


def identifiers(site: SiteConfig, cohort: Cohort) -> Check:
    """Check that the texts to learn from name nobody, or that the site has decided what to do about it."""
    name = "identifiers"
    decided = {part.deidentify for part in site.cohort}
    if decided == {"replace"}:
        replaced = sum(cohort.identifiers.values())
        return ok(name, f"{replaced} were replaced by surrogates (deidentify: replace)")
    kinds = Counter(
        place.identifier.kind for place in islice(places(cohort, detector_of(site.cohort[0])), MOST_PLACES)
    )
    if not kinds:
        return ok(name, "none found in the texts")
    listed = ", ".join(f"{kind.replace('_', ' ')} {count}" for kind, count in kinds.most_common())
    remedy = "`medflare cohort inspect --identifiers` lists places; 'deidentify: replace' puts surrogates in"
    return warning(name, f"at least {sum(kinds.values())}: {listed}", "texts that name nobody", remedy)


def labels(facts: Mapping[str, Any]) -> Check:
    """Check that a cohort has something to learn: conditions, entities, answers or impressions.

    Args:
        facts: as `summarise` returns them.
    """
    if facts["notes"]:
        return _entities(facts)
    if facts.get("asked") or facts.get("summarised"):
        return _texts(facts)
    positive = {name: counts["positive"] for name, counts in facts["labels"].items()}
    counted = {name: count for name, count in positive.items() if count}
    summarised = f"{len(counted)} of {len(positive)} conditions occur: " + ", ".join(
        f"{name} {count}" for name, count in sorted(counted.items(), key=lambda item: -item[1])[:5]
    )
    if not counted:
        remedy = "Set 'labels' in site.yaml: source, rules or chexbert"
        return problem("labels", "no study has a positive condition", "some of the 14 conditions", remedy)
    if len(counted) < 3:
        remedy = "Look at 'labels' and 'columns' in site.yaml"
        return warning("labels", summarised, "more than two of the 14 conditions", remedy)
    return ok("labels", summarised)


def _entities(facts: Mapping[str, Any]) -> Check:
    """Check the entities and relations of annotated notes."""
    counts = ", ".join(f"{name} {count}" for name, count in facts["entities"].items())
    if not facts["entities"]:
        remedy = (
            "Look at 'label_map' and 'tasks' in site.yaml; `medflare cohort inspect` says what was left out"
        )
        return problem("labels", "no note has an entity", "annotated notes", remedy)
    return ok("labels", f"{counts}; {sum(facts['relations'].values())} relations")


def _texts(facts: Mapping[str, Any]) -> Check:
    """Check that answers are spread over the letters; count the words of impressions."""
    if asked := facts.get("asked"):
        answers, total = asked["answers"], sum(asked["answers"].values())
        counts = ", ".join(f"{letter} {count}" for letter, count in answers.items())
        if len(answers) == 1 and total > 1:
            remedy = "Look at 'columns' and 'first_index' in site.yaml"
            return problem("labels", f"every answer is {counts}", "right answers at every letter", remedy)
        return ok("labels", f"answers {counts}; {len(asked['groups'])} groups")
    asked, total = facts["summarised"], facts["summaries"]
    masked = f"{asked['masked']} of {total} with de-identification marks"
    return ok("labels", f"{asked['target_words']['median']:.0f} words in the median target, {masked}")


def backbone(site: SiteConfig, method: str | None) -> Check:
    """Check that the base model exists, and show the fingerprint by which the server compares sites."""
    folder = site.backbone.folder
    try:
        if folder is None:
            if method and (new := get_method(method).new_model):
                return ok("backbone", f"no backbone.folder: {new}; its first weights come before round 1")
            name = task_of(method).embedded_backbone if method else "decoder"
            return ok("backbone", f"embedded {name}, fingerprint {fingerprint(decoder_folder(name))}")
        if method and not get_method(method).weights_in_folder:
            words = ReportVocabulary(folder)
            return ok("backbone", f"{folder}, {words.size} tokens, digest {words.digest}")
        if (folder / "encoder").is_dir() and (folder / "decoder").is_dir():
            check_parts(folder)
            return ok("backbone", f"{folder}, fingerprint {fingerprint_of_parts(folder)}")
        check_folder(folder)
        return ok("backbone", f"{folder}, fingerprint {fingerprint(folder)}")
    except (MedflareError, OSError, ValueError) as error:
        remedy = "Copy the model there (safetensors), or mend backbone.folder in site.yaml"
        return problem("backbone", str(error), "the folder of the base model that all sites use", remedy)


def scorers(site: SiteConfig) -> list[Check]:
    """Check that the weights of the optional scorers are there, where a site names any."""
    if not site.scorers:
        return []
    faults = [fault for name, folder in site.scorers.items() if (fault := fault_of_weights(name, folder))]
    if not faults:
        return [ok("scorers", ", ".join(site.scorers))]
    remedy = "Copy the weights there, or leave the scorer out: final tests go without its scores"
    return [warning("scorers", "; ".join(faults), "folders with the scorers' weights", remedy)]


def device(site: SiteConfig) -> Check:
    """Check that the devices of site.yaml exist."""
    try:
        chosen, gpus = _devices(site)
    except MedflareError as error:
        remedy = "Install the GPU's driver and a torch for it, or set device: auto"
        return problem("device", str(error), "a GPU that torch sees", remedy)
    if chosen == "cpu":
        return ok("device", f"CPU, {site.threads} thread(s)")
    there = torch.cuda.device_count()
    if missing := [number for number in gpus if number >= there]:
        found = f"devices names GPU {', '.join(map(str, missing))}, and torch sees {there}, numbered from 0"
        remedy = "Name those that `nvidia-smi -L` lists"
        return problem("device", found, "GPUs that torch sees", remedy)
    return ok("device", ", ".join(torch.cuda.get_device_name(number) for number in gpus))


def _devices(site: SiteConfig) -> tuple[str, Sequence[int]]:
    """Return cuda or cpu, and the numbers of the site's GPUs; ConfigError where torch sees none."""
    numbers = [device for device in site.devices if device != "cpu"]
    if site.devices and not numbers:
        return "cpu", []
    return device_of("cuda" if numbers else site.device), numbers or [0]


def memory(site: SiteConfig, job: Job | None) -> Check:
    """Compare an estimate of the memory for one training step of the job with what is free here."""
    if job is None:
        return ok("memory", "not estimated; name a job with --job")
    try:
        need = footprint(job.method, job.settings, site)
        chosen, gpus = _devices(site)
        free, where = free_memory(chosen, gpus if site.spread_layers else gpus[:1])
    except (MedflareError, OSError, ValueError, RuntimeError) as error:
        remedy = "Mend what the other checks say, then run this again"
        return warning("memory", f"cannot be estimated: {error}", "a job and a base model to read", remedy)
    if need is None:
        return ok("memory", f"{free / GB:.1f} GB free on the {where}; no estimate for this job's method")
    parts = {
        "frozen weights": need.frozen,
        "learning weights and optimiser": need.learning,
        "exchange": need.exchange,
        "activations": need.activations,
        "runtime": need.runtime,
    }
    sizes = ", ".join(f"{part} {size / GB:.2f}" for part, size in parts.items())
    summarised = f"about {need.total / GB:.1f} GB ({sizes}); {free / GB:.1f} GB free on the {where}"
    expected = "an estimate below what is free; it is an estimate, not a measurement"
    remedy = "Use a smaller batch, shorter texts, gradient checkpointing, or backbone.precision int8 or nf4"
    if need.total > free:
        return problem("memory", summarised, expected, remedy)
    if need.total > SAFE_SHARE * free:
        return warning("memory", summarised, f"{expected}, with a fifth to spare", remedy)
    return ok("memory", summarised)


def disk(folders: Sequence[Path]) -> list[Check]:
    """Check the free space for logs, states and caches; one check for each file system."""
    checks, devices = [], set()
    for folder in folders:
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        if existing.stat().st_dev in devices:
            continue
        devices.add(existing.stat().st_dev)
        checks.append(_room(existing))
    return checks


def _room(folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    summarised = f"{free / GB:.1f} GB free at {folder}"
    remedy = "Free some room: FLARE never deletes the folders of old jobs in a kit"
    if free < LEAST_DISK:
        return problem("disk", summarised, f"at least {LEAST_DISK / GB:.0f} GB", remedy)
    if free < GOOD_DISK:
        return warning("disk", summarised, f"{GOOD_DISK / GB:.0f} GB", remedy)
    return ok("disk", summarised)


def rules(policy: Policy, job: Job | None) -> list[Check]:
    """Return the policy in force in words, and whether it would refuse the job."""
    checks = [ok("policy", f"{policy.file}: {' '.join(in_words(policy))}")]
    if job is None:
        return checks
    rounds = job.controller.get("num_rounds")
    probes_losses = rule_class(job.aggregation["rule"]).class_capability(ProbesLosses) is not None
    protection = {"masking": ["mask"], "he": ["he"]}.get(job.controller.get("protection", "none"), [])
    try:
        policy.admit(
            job=job.title,
            method=job.method,
            protections=protection,
            sites=job.n_clients,
            rounds=rounds,
            limit=job.settings.get("eval_limit"),
            split="train" if probes_losses else None,
        )
        policy.features([get_method(job.method).resolve(job.settings).sends_features])
    except PolicyError as error:
        remedy = "Change the rule if the hospital agrees to the job, or ask for another job"
        return [*checks, problem("policy", str(error), "a job that the policy admits", remedy)]
    return [*checks, ok("policy", f"admits the job '{job.title}' (method {job.method})")]
