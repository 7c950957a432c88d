# SPDX-License-Identifier: Apache-2.0
"""Scores of a membership attack over records and over patients, as a report holds them."""

from __future__ import annotations

from collections.abc import Sequence

from medflare.auditing.membership import Attack, means_of_patients, membership_attack
from medflare.auditing.report import AttackScores


def attack_scores(
    members: Sequence[float],
    others: Sequence[float],
    member_patients: Sequence[str],
    other_patients: Sequence[str],
    seed: int,
) -> tuple[AttackScores, AttackScores]:
    """Return the attack over records, and over patients by the means of their records.

    Args:
        members, others: scores of records; a higher one means "trained on".
        member_patients, other_patients: whose each is.
        seed: of the intervals.
    """
    over_records = membership_attack(
        members, others, member_patients=member_patients, other_patients=other_patients, seed=seed
    )
    of_patients = [
        means_of_patients(scores, owners)
        for scores, owners in ((members, member_patients), (others, other_patients))
    ]
    return _scores(over_records), _scores(membership_attack(*of_patients, seed=seed))


def _scores(attack: Attack) -> AttackScores:
    return AttackScores(
        auc=attack.auc,
        tpr_at_1_percent=attack.true_positives[0.01],
        tpr_at_01_percent=attack.true_positives[0.001],
    )
