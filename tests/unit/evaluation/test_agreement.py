# SPDX-License-Identifier: Apache-2.0
"""How well single predictions agree with their references."""

from __future__ import annotations

import numpy as np
import pytest

from medflare.evaluation.agreement import option_shares, summary_agreement
from medflare.evaluation.summary_metrics import WrittenSummary


def test_shares_of_options_sum_to_one_also_where_likelihoods_vanish() -> None:
    assert option_shares([-1.0, -1.0]) == [0.5, 0.5]
    assert option_shares([-2000.0, -2010.0])[0] == pytest.approx(1 / (1 + np.exp(-10)))


@pytest.mark.parametrize(("generated", "score"), [("No acute disease.", 1), ("", 0)])
def test_a_summary_agrees_as_far_as_its_words_follow_the_reference(generated: str, score: float) -> None:
    item = WrittenSummary(
        summary_id="s",
        patient_id="p",
        site="north",
        adapter="generic",
        source="",
        reference="No acute disease.",
        generated=generated,
        ended=True,
    )
    assert summary_agreement([item]) == [pytest.approx(score)]
