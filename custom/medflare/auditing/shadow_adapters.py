# SPDX-License-Identifier: Apache-2.0
"""Shadow adapters: trained as the run's was, on random halves of a hospital's own patients.

Every shadow has a twin that is trained on the other half, so that each patient is inside as many shadows as
outside. They are trained at this hospital alone: what others contributed to the run nobody here can repeat.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medflare.auditing.likelihood_ratio import LEAST, RatioScores, likelihood_ratios
from medflare.auditing.report import ShadowAttack
from medflare.auditing.scores import attack_scores
from medflare.auditing.text_tasks import AuditedTask, RecordRows, losses_of_records
from medflare.core.errors import ConfigError
from medflare.core.plan import RoundPlan
from medflare.core.run_record import RunRecord
from medflare.core.tensors import State, apply_delta
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.statistics import Array
from medflare.models.adapters.base import GENERIC


@dataclass(frozen=True, slots=True)
class Shadows:
    """Number of shadow adapters, and the function that builds their learner.

    Attributes:
        count: an even number. build: (method, settings, site, seed) -> learner, `learners.build_learner`;
            given here because attacks need no method of training and stay below all of them.
    """

    count: int
    build: Callable[[str, dict[str, Any], SiteConfig, int], Any]


@dataclass(frozen=True, slots=True)
class PastTraining:
    """Rounds in which a site's update was accepted, and what its plans asked for."""

    settings: dict[str, Any]
    rounds: int
    steps: int | None
    fraction: float | None

    @classmethod
    def of(cls, record: RunRecord, site: str) -> PastTraining:
        """Return how a run trained at a site.

        Raises:
            ConfigError: the record does not say.
        """
        chosen, controller = (record.configuration.get(name) for name in ("settings", "controller"))
        rounds = sum(site in entry.accepted for entry in record.rounds)
        if not isinstance(chosen, dict) or not isinstance(controller, dict) or not rounds:
            raise ConfigError(
                f"the record of run {record.run_id} does not say how '{site}' trained, so no shadow adapter "
                "can be trained like it. Audit without --shadows."
            )
        return cls(chosen, rounds, controller.get("steps"), controller.get("fraction"))

    def plan(self, number: int, seed: int) -> RoundPlan:
        """Return the plan of a round."""
        return RoundPlan(
            round=number, rounds=self.rounds, steps=self.steps, fraction=self.fraction, seed=seed
        )


def shadow_attack(
    task: AuditedTask[Any],
    record: RunRecord,
    site: SiteConfig,
    sides: tuple[RecordRows, RecordRows],
    observed: Sequence[float],
    *,
    shadows: Shadows,
    batch: int,
) -> ShadowAttack:
    """Return the likelihood-ratio attack on a run's adapter.

    Args:
        sides: records that were trained on and others, with their rows.
        observed: the score of each by the run's adapter, those trained on first: less its loss.

    Raises:
        ConfigError: there are too few shadows, or the record does not say how the run trained.
    """
    if shadows.count < LEAST or shadows.count % 2:
        raise ConfigError(f"--shadows is {shadows.count}; expected an even number of {LEAST} or more.")
    past = PastTraining.of(record, site.name)
    both = sides[0].joined(sides[1])
    inside = halves(both.patients, shadows.count, record.seed)
    learner = shadows.build(record.method, past.settings, site, record.seed)
    plans = [past.plan(number, record.seed) for number in range(past.rounds)]
    scores = shadow_scores(task, learner, both, inside, plans, batch)
    found = likelihood_ratios(np.array(observed), scores, inside)
    return _attack(found, sides, shadows.count, record.seed)


def shadow_scores(
    task: AuditedTask[Any],
    learner: Any,
    rows: RecordRows,
    inside: NDArray[np.bool_],
    plans: Sequence[RoundPlan],
    batch: int,
) -> NDArray[np.float64]:
    """Return the score of each record by each shadow, (K, R): less its loss.

    Args:
        learner: of the site, as it was before any training.
        inside: which records each shadow is trained on, (K, R).
        plans: of the rounds; each shadow has another seed.
    """
    first, (local, values) = learner.initial_shared(), learner.local_state()
    local = copied(local)
    scores = []
    for number, chosen in enumerate(inside):
        learner.load_local_state(copied(local), values)
        learner.learn_from(task.cohort(learner.site, _split(rows.records, chosen)))
        state = copied(first)
        for plan in plans:
            learner.load_shared(state)
            state = apply_delta(state, learner.fit(replace(plan, seed=plan.seed + number)).delta)
        learner.load_shared(state)
        learner.model.adapters.use((GENERIC,))
        scores.append([-loss for loss in losses_of_records(learner.model, rows, batch)])
    return np.array(scores)


def halves(patients: Sequence[str], shadows: int, seed: int) -> NDArray[np.bool_]:
    """Return which records each shadow is trained on, (K, R): random halves of the patients, and the rest."""
    names, drawn = sorted(set(patients)), random.Random(seed)
    masks = []
    for _ in range(shadows // 2):
        chosen = set(drawn.sample(names, len(names) // 2))
        mask = [patient in chosen for patient in patients]
        masks += [mask, [not member for member in mask]]
    return np.array(masks, dtype=bool)


def copied(state: State) -> State:
    """Return a state in memory of its own."""
    return {name: value.detach().clone() for name, value in state.items()}


def _split(records: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    return [
        replace(record, split="train" if member else "test")
        for record, member in zip(records, chosen, strict=True)
    ]


def _attack(
    found: RatioScores, sides: tuple[RecordRows, RecordRows], shadows: int, seed: int
) -> ShadowAttack:
    """Return the attack's report; the first records are those that were trained on."""
    owners, cut = (sides[0].patients, sides[1].patients), len(sides[0].patients)

    def parts(scores: Array) -> tuple[list[float], list[float]]:
        return scores[:cut].tolist(), scores[cut:].tolist()

    online, offline = (attack_scores(parts(s), owners, seed) for s in (found.online, found.offline))
    return ShadowAttack(
        shadows=shadows,
        records=online[0],
        patients=online[1],
        offline_records=offline[0],
        offline_patients=offline[1],
    )
