# SPDX-License-Identifier: Apache-2.0
"""The page of an audit: every number with two sentences, nothing loaded, everything escaped."""

from __future__ import annotations

import re

import pytest

from medflare.auditing.report import (
    AttackScores,
    AuditReport,
    Canaries,
    Counted,
    Membership,
    RepetitionScores,
    ShadowAttack,
    SiteAudit,
)
from medflare.core.run_record import Estimate
from medflare.reporting.audit_page import MEANINGS, render_audit


def report(run_id: str = "r", canaries: bool = True) -> AuditReport:
    auc, share = Estimate(value=0.731, low=0.65, high=0.81), Estimate(value=0.125, low=0.0, high=0.25)
    scores = AttackScores(auc=auc, tpr_at_1_percent=share, tpr_at_01_percent=share)
    counted = Counted(patients=40, records=80, examples=160)
    membership = Membership(
        members=counted,
        others=counted,
        mean_gain_members=0.5,
        mean_gain_others=0.3,
        records=scores,
        patients=scores,
        without_adapter=Estimate(value=0.51, low=0.4, high=0.6),
    )
    shadows = ShadowAttack(
        shadows=8, records=scores, patients=scores, offline_records=scores, offline_patients=scores
    )
    repetition = RepetitionScores(
        repeat=16,
        inserted=3,
        left_out=0,
        exposure=4.75,
        exposure_left_out=None,
        extracted=1.0,
        extracted_left_out=None,
    )
    found = Canaries(
        count=3,
        candidates=31,
        repetitions=[repetition],
        epsilon_lower_bound=2.25,
        delta=1e-5,
        guesses=2,
        right=2,
    )
    site = SiteAudit(
        adapter="generic",
        epsilon=8.5,
        membership=membership,
        shadow_attack=shadows,
        canaries=found if canaries else None,
        warnings=["40 test patients"],
    )
    return AuditReport(
        run_id=run_id, method="summarisation", task="summaries", version="1", sites={"h<1>": site}
    )


def test_the_page_shows_every_number_with_its_meaning() -> None:
    page = render_audit(report())
    for shown in ("0.731", "0.650 to 0.810", "2.25", "8.50", "4.75", "100%", "40 test patients"):
        assert shown in page
    for name, meaning in MEANINGS.items():
        assert name in page
        assert meaning.replace("'", "&#39;") in page


@pytest.mark.parametrize("meaning", MEANINGS.values())
def test_a_meaning_has_two_sentences(meaning: str) -> None:
    assert len(re.findall(r"\.(?= [A-Z0-9]|$)", meaning)) == 2


def test_it_loads_nothing_and_escapes_names() -> None:
    page = render_audit(report("<script>alert(1)</script>"))
    assert "<script" not in page
    assert "h&lt;1&gt;" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


def test_without_canaries_it_says_nothing_of_them() -> None:
    assert "Canaries by repetitions" not in render_audit(report(canaries=False))
