# SPDX-License-Identifier: Apache-2.0
"""What docs/results/real_notes.md says of the test note that nearly stands in a training note."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parents[3] / "docs/results/data/real_entities/entities"
NOTE = 8
"""Place of 65_20210604143822_Booma among the 19 test notes."""


def f1(counts: np.ndarray) -> float:
    hits, spurious, missed = counts.sum(0)
    return float(200 * hits / (2 * hits + spurious + missed))


def test_without_that_note_no_score_moves_by_more_than_the_page_says() -> None:
    moved = []
    for file in sorted(FOLDER.glob("*/*/test_counts.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        for metric in ("ner_strict_f1", "ner_lenient_f1"):
            counts = np.array(found[metric]["counts"])
            assert len(counts) == 19
            moved.append(abs(f1(counts) - f1(np.delete(counts, NOTE, 0))))
    assert len(moved) > 40
    assert 0 < max(moved) < 0.45
