# SPDX-License-Identifier: Apache-2.0
"""Scores of a membership attack over records and over patients, as a report holds them."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.auditing.membership import Attack, means_of_patients, membership_attack
from medflare.auditing.report import AttackScores


def attack_scores(
    scores: tuple[Sequence[float], Sequence[float]],
    patients: tuple[Sequence[str], Sequence[str]],
    seed: int,
) -> tuple[AttackScores, AttackScores]:
    """Return the attack over records, and over patients by the means of their records.

    Args:
        scores: of records that were trained on, and of others; a higher one means "trained on".
        patients: whose each is.
        seed: of the intervals.
    """
    over_records = membership_attack(
        *scores, member_patients=patients[0], other_patients=patients[1], seed=seed
    )
    members, others = (means_of_patients(*side) for side in zip(scores, patients, strict=True))
    return _scores(over_records), _scores(membership_attack(members, others, seed=seed))


def _scores(attack: Attack) -> AttackScores:
    return AttackScores(
        auc=attack.auc,
        tpr_at_1_percent=attack.true_positives[0.01],
        tpr_at_01_percent=attack.true_positives[0.001],
    )
