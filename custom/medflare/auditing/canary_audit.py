# SPDX-License-Identifier: Apache-2.0
"""Audit of what an adapter kept of canaries: exposure, secrets written out, and a lower bound on epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

from medflare.auditing.canaries import KINDS, OTHERS, Canary, CanaryList
from medflare.auditing.exposure import exposure
from medflare.auditing.one_run import epsilon_lower_bound
from medflare.auditing.report import Canaries, RepetitionScores
from medflare.auditing.text_tasks import AuditedTask, example_losses
from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC

Opened = TypeVar("Opened")
DELTA = 1e-5
"""At which epsilon is bounded where the run counted none."""


@dataclass(frozen=True, slots=True)
class CanaryScore:
    """One canary after training.

    Attributes:
        bits: its exposure; gain: how much more the adapter lowers its secret's loss than that of the others;
        extracted: whether the model writes the secret out.
    """

    canary: Canary
    bits: float
    gain: float
    extracted: bool


def audit_canaries(
    task: AuditedTask[Opened], opened: Opened, canaries: CanaryList, delta: float | None, batch: int
) -> Canaries:
    """Return what is found of canaries; the adapter is in use afterwards."""
    scores = score_canaries(task, opened, canaries, batch)
    chosen = DELTA if delta is None else delta
    coins = [score.canary.included for score in scores]
    bound = epsilon_lower_bound([score.gain for score in scores], coins, chosen)
    repeats = sorted({canary.repeat for canary in canaries.canaries})
    return Canaries(
        count=len(scores),
        candidates=OTHERS,
        repetitions=[_repetition([s for s in scores if s.canary.repeat == k], k) for k in repeats],
        epsilon_lower_bound=bound.epsilon,
        delta=chosen,
        guesses=bound.guesses,
        right=bound.right,
    )


def score_canaries(
    task: AuditedTask[Opened], opened: Opened, canaries: CanaryList, batch: int
) -> list[CanaryScore]:
    """Return the score of each canary; the adapter is in use afterwards.

    Raises:
        ConfigError: a canary is too long for the run's settings.
    """
    record, model = KINDS[canaries.task].record, task.model(opened)
    rows = []
    for canary in canaries.canaries:
        for secret in (canary.secret, *canary.others):
            # of a note, the question for its entities comes first
            found = task.rows(opened, [record(canary.name, canary.name, canary.key, secret)])
            if not found:
                raise ConfigError(f"{canary.name} does not fit into the run's max_tokens.")
            rows.append(found[0])
    model.adapters.use(())
    base = example_losses(model, rows, batch)
    model.adapters.use((GENERIC,))
    adapted = example_losses(model, rows, batch)
    step = OTHERS + 1
    inserted = rows[::step]
    budgets = [len(row.ids) - row.start for row in inserted]
    written = model.continue_prompts([list(row.ids[: row.start]) for row in inserted], budgets, batch)
    scores = []
    for number, canary in enumerate(canaries.canaries):
        losses = slice(number * step, (number + 1) * step)
        # less the frozen model's loss, or the secret of the fewest tokens would rank first
        kept, *others = (a - b for a, b in zip(adapted[losses], base[losses], strict=True))
        expected = model.decoded(list(inserted[number].ids[inserted[number].start : -1]))
        scores.append(
            CanaryScore(
                canary=canary,
                bits=exposure(kept, others),
                gain=fmean(others) - kept,
                extracted=written[number].text == expected,
            )
        )
    return scores


def _repetition(scores: Sequence[CanaryScore], repeat: int) -> RepetitionScores:
    inside = [score for score in scores if score.canary.included]
    outside = [score for score in scores if not score.canary.included]
    return RepetitionScores(
        repeat=repeat,
        inserted=len(inside),
        left_out=len(outside),
        exposure=fmean(s.bits for s in inside) if inside else None,
        exposure_left_out=fmean(s.bits for s in outside) if outside else None,
        extracted=fmean(s.extracted for s in inside) if inside else None,
        extracted_left_out=fmean(s.extracted for s in outside) if outside else None,
    )
