# SPDX-License-Identifier: Apache-2.0
"""The audit of a run at one of its sites: membership inference on the final adapter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from medflare.auditing.canaries import CanaryList
from medflare.auditing.canary_audit import audit_canaries
from medflare.auditing.report import Counted, Membership, SiteAudit
from medflare.auditing.scores import attack_scores
from medflare.auditing.shadow_adapters import Shadows, shadow_attack
from medflare.auditing.text_tasks import RecordLoss, RecordRows, audited_task, record_losses
from medflare.core.errors import ConfigError, DataError
from medflare.core.run_record import RunRecord
from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig
from medflare.tasks.scoring import adapter_kind, open_on_site

FEW = 100
"""Patients of a side below which a false positive rate of 1 % cannot be seen."""


def audit_site(
    record: RunRecord,
    result: Path,
    site: SiteConfig,
    *,
    personalised: Path | None = None,
    canaries: CanaryList | None = None,
    shadows: Shadows | None = None,
    batch: int = 16,
) -> SiteAudit:
    """Return what a run's adapter gives away of the patients that a site trained it on.

    Args:
        result: `result/adapter` of the run.
        personalised: the site's own adapter folder, instead of the result's.
        canaries: the list of those that the site was trained with; they are no members.
        shadows: for the likelihood-ratio attack; None leaves it out.
        batch: prompts at once.

    Raises:
        ConfigError: the site took no part, the canaries are of another task, or the run is of a kind that
            cannot be audited.
        DataError: a split has no patient.
    """
    if site.name not in record.sites:
        raise ConfigError(
            f"site '{site.name}' took no part in the run, so none of its patients was trained on. Sites of "
            f"the run: {', '.join(sorted(record.sites))}."
        )
    task = audited_task(record.task, result)
    if canaries is not None and canaries.task != record.task:
        raise ConfigError(f"the canaries are of task '{canaries.task}', and the run of '{record.task}'.")
    opened = open_on_site(task.open, result, site, personalised, batch=batch)
    cohort = load_cohort(site)
    made_up = set() if canaries is None else canaries.record_names
    losses, rows = {}, {}
    for split in ("train", "test"):
        records = task.records.of_split(cohort, split)
        # several cohorts of a site are numbered: 1/canary-0-1
        patients = [one for one in records if task.name(one).rpartition("/")[2] not in made_up]
        rows[split] = RecordRows.of(task, opened, patients)
        losses[split] = record_losses(task.model(opened), rows[split], batch)
    for split, values in losses.items():
        if not values:
            raise DataError(
                f"site '{site.name}': no {task.records.record_name} of the split '{split}' can be scored. An "
                "audit compares patients who were trained on with patients who were not."
            )
    sides = losses["train"], losses["test"]
    attack = None
    if shadows is not None:
        observed = [-loss.adapted for side in sides for loss in side]
        of_sides = rows["train"], rows["test"]
        attack = shadow_attack(task, record, site, of_sides, observed, shadows=shadows, batch=batch)
    return SiteAudit(
        adapter="generic" if adapter_kind(personalised) == "generic" else "personalised",
        epsilon=record.epsilon,
        membership=membership(*sides, record.seed),
        shadow_attack=attack,
        canaries=None if canaries is None else audit_canaries(task, opened, canaries, record.delta, batch),
        warnings=_warnings(record, site, losses, same_cohort=canaries is None),
    )


def membership(trained: Sequence[RecordLoss], tested: Sequence[RecordLoss], seed: int) -> Membership:
    """Return the attack by the fall of the loss, over records and over patients."""
    owners = [loss.patient for loss in trained], [loss.patient for loss in tested]
    gains = [loss.gain for loss in trained], [loss.gain for loss in tested]
    alone = [-loss.base for loss in trained], [-loss.base for loss in tested]
    over_records, over_patients = attack_scores(gains, owners, seed)
    return Membership(
        members=_counted(trained),
        others=_counted(tested),
        mean_gain_members=fmean(gains[0]),
        mean_gain_others=fmean(gains[1]),
        records=over_records,
        patients=over_patients,
        without_adapter=attack_scores(alone, owners, seed)[0].auc,
    )


def _counted(losses: Sequence[RecordLoss]) -> Counted:
    return Counted(
        patients=len({loss.patient for loss in losses}),
        records=len(losses),
        examples=sum(loss.examples for loss in losses),
    )


def _warnings(
    record: RunRecord, site: SiteConfig, losses: dict[str, list[RecordLoss]], same_cohort: bool
) -> list[str]:
    """Return what makes the numbers say less than they seem to."""
    warnings = []
    others = len({loss.patient for loss in losses["test"]})
    if others < FEW:
        warnings.append(
            f"{others} test patients: at 1 % and 0.1 % false alarms the attack may raise none at all here."
        )
    elif others < 10 * FEW:
        warnings.append(
            f"{others} test patients: at 0.1 % false alarms the attack may raise none at all here."
        )
    shared = {loss.patient for loss in losses["train"]} & {loss.patient for loss in losses["test"]}
    if shared:
        warnings.append(f"{len(shared)} patients are on both sides; the attack looks weaker than it is.")
    then, examples = record.sites[site.name].examples.get("train"), sum(v.examples for v in losses["train"])
    # under differential privacy a site tells its patients in place of its examples
    if same_cohort and then not in (None, examples, len({loss.patient for loss in losses["train"]})):
        warnings.append(
            f"the run trained on {then} examples, and site.yaml now gives {examples} in the split train: "
            "were its cohorts or splits changed since?"
        )
    return warnings
