# SPDX-License-Identifier: Apache-2.0
"""What an adapter gives away of who was trained on, after so many rounds of Fed-MedLoRA on synthetic notes.

Every hospital attacks the global adapter: its training notes against as many held-out notes of the same
hospital, one of each patient. Records of all hospitals are pooled for the loss attack; the likelihood-ratio
attack is hospital 1's, whose shadows are trained as long as the run was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator

from medflare.core.config import Settings
from medflare.data.settings.site import SiteConfig
from method_comparison.markdown_table import Column
from method_comparison.result import Measured
from method_comparison.tasks.base import ComparisonTask, Unit
from method_comparison.tasks.extraction_cohorts import whole_cohort

if TYPE_CHECKING:
    from medflare.auditing.text_tasks import RecordRows

JOB = Path(__file__).parents[2] / "jobs" / "fed_medlora"
SITES = ("site-1", "site-2", "site-3")
TARGET = SITES[0]
"""The hospital that the shadows attack."""
ALARMS = 0.01
"""Share of false alarms at which recognised notes are counted."""
BATCH = 32
COMPLETE = "complete"


class MembershipSettings(Settings):
    """notes: that a hospital trains on, and as many that it does not."""

    notes: int = Field(default=20, ge=2)


class MembershipMethod(Settings):
    """One row.

    Attributes:
        rounds: of training before the attack; 0 for the adapter before training.
        shadows: adapters of hospital 1 for the likelihood-ratio attack; 0 for the loss alone.
    """

    rounds: int = Field(ge=0)
    shadows: int = Field(default=0, ge=0)

    @field_validator("shadows")
    @classmethod
    def _each_note_in_half_of_them(cls, value: int) -> int:
        if value % 2:
            raise ValueError("an odd number of shadows; each note is in half of them")
        return value


class Membership(ComparisonTask[MembershipSettings, MembershipMethod]):
    """A seed decides the notes of all hospitals and the training."""

    name = "membership"
    settings, method_settings = MembershipSettings, MembershipMethod
    columns: ClassVar[Mapping[str, Column]] = {
        "loss_auc": Column(title="loss, all hospitals: AUC"),
        "loss_found": Column(title="recognised at 1 % false alarms"),
        "one_auc": Column(title="loss, hospital 1: AUC"),
        "one_found": Column(title="recognised"),
        "online_auc": Column(title="likelihood ratio, hospital 1: AUC"),
        "online_found": Column(title="recognised"),
        "offline_auc": Column(title="by shadows without the note: AUC"),
        "offline_found": Column(title="recognised"),
    }

    def prepare(self, settings: MembershipSettings, partition: str, seed: int, shared: Path) -> None:
        from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital

        folder = shared / str(seed)
        if (folder / COMPLETE).is_file():
            return
        for house in (house for house in NOTE_HOSPITALS if house.name in SITES):
            for part, number in (("train", 2 * seed + 100), ("test", 2 * seed + 101)):
                write_notes_hospital(
                    house.with_seed(number), folder / part / house.name, settings.notes, "jsonl"
                )
        (folder / COMPLETE).touch()

    def train(self, unit: Unit[MembershipSettings, MembershipMethod]) -> Measured:
        from medflare.aggregation import make_rule
        from medflare.auditing.text_tasks import AUDITED, RecordRows, record_losses
        from medflare.core.plan import RoundPlan
        from medflare.in_process.loop import federate

        own, seed = unit.own, unit.seed
        learners = {name: make_learner(name, unit) for name in SITES}
        plans = [RoundPlan(round=number, rounds=own.rounds, seed=seed) for number in range(own.rounds)]
        state = federate(learners, make_rule("weighted_mean", {}), own.rounds, plans.__getitem__)
        scores: tuple[list[float], list[float]] = ([], [])  # of training notes, and of held-out ones
        values = dict[str, float]()
        for name, learner in learners.items():
            first, second = (
                RecordRows.of(AUDITED["extraction"], learner.predictor, learner.records(split))
                for split in ("train", "test")
            )
            learner.load_shared(state)
            found = [record_losses(learner.model, rows, BATCH) for rows in (first, second)]
            for side, losses in zip(scores, found, strict=True):
                side.extend(item.gain for item in losses)
            if name == TARGET:
                values |= attack("one", *([item.gain for item in losses] for losses in found))
                if own.shadows:
                    observed = [-item.adapted for losses in found for item in losses]
                    values |= likelihood_ratio(unit, plans, first, second, observed)
        return Measured(values=values | attack("loss", *scores))


def make_learner(name: str, unit: Unit[MembershipSettings, MembershipMethod]) -> Any:
    """Return the learner of a hospital with a seed's training and held-out notes."""
    from medflare.learners.registry import build_learner
    from medflare.recipes.job_reader import read_job

    folder, parts = unit.shared / str(unit.seed), ("train", "test")
    cohorts = tuple(whole_cohort(folder / part / name, part) for part in parts)
    job = read_job(JOB)
    return build_learner(job.method, dict(job.settings), SiteConfig(name=name, cohort=cohorts), unit.seed)


def attack(name: str, members: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    """Return AUC and the share recognised at ALARMS by scores that are higher for members."""
    from medflare.auditing.membership import membership_attack

    found = membership_attack(list(members), list(others))
    return {f"{name}_auc": found.auc.value, f"{name}_found": found.true_positives[ALARMS].value}


def likelihood_ratio(
    unit: Unit[MembershipSettings, MembershipMethod],
    plans: Sequence[Any],
    members: RecordRows,
    others: RecordRows,
    observed: Sequence[float],
) -> dict[str, float]:
    """Return the attacks of hospital 1 by shadows, with and without those that saw the note."""
    import numpy as np

    from medflare.auditing.likelihood_ratio import likelihood_ratios
    from medflare.auditing.shadow_adapters import halves, shadow_scores
    from medflare.auditing.text_tasks import AUDITED

    both, cut = members.joined(others), len(members.records)
    inside = halves(both.patients, unit.own.shadows, unit.seed)
    learner = make_learner(TARGET, unit)
    shadows = shadow_scores(AUDITED["extraction"], learner, both, inside, plans, BATCH)
    found = likelihood_ratios(np.array(observed), shadows, inside)
    return {
        key: value
        for name, scores in (("online", found.online), ("offline", found.offline))
        for key, value in attack(name, scores[:cut].tolist(), scores[cut:].tolist()).items()
    }
