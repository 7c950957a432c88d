# SPDX-License-Identifier: Apache-2.0
"""ROUGE-1 to 4, METEOR without Java, short references, Japanese words and GREEN, in fixed numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from medflare.data.text import tokens
from medflare.evaluation.green import green_score
from medflare.evaluation.meteor import meteor_without_java
from medflare.evaluation.overlap import bleu_statistics, rouge_n
from medflare.evaluation.report_metrics import report_statistics, tokenised
from medflare.evaluation.scorers import optional_statistics

REFERENCE, DRAFT = "the heart is enlarged today .", "the heart is normal today ."


def test_rouge_counts_n_grams_by_hand() -> None:
    """5 of 6 words, 3 of 5 pairs, 1 of 4 triples, 0 of 3 quadruples are shared on both sides."""
    found = rouge_n([REFERENCE], [DRAFT])
    expected = {"rouge_1": 5 / 6, "rouge_2": 3 / 5, "rouge_3": 1 / 4, "rouge_4": 0.0}
    assert {name: one.value for name, one in found.items()} == pytest.approx(expected)


def test_meteor_without_java_matches_words_and_stems() -> None:
    """Two chunks of five matches: F = 10 P R / (R + 9 P) = 5/6, penalty 0.5 (2/5)^3."""
    assert meteor_without_java([REFERENCE], [DRAFT]).value == pytest.approx(5 / 6 * (1 - 0.5 * 0.4**3))
    stems = meteor_without_java(["effusions increased"], ["effusion increases"]).value
    assert stems == pytest.approx(1 - 0.5 * 0.5**3)
    assert meteor_without_java(["lungs clear"], [""]).value == 0


def test_a_reference_cut_at_its_first_words_raises_scores_of_short_drafts_by_r2gens_rules_alone() -> None:
    draft = " ".join(f"word{n}" for n in range(100))
    reference = draft + " " + " ".join(f"more{n}" for n in range(60))
    whole, cut = (report_statistics([reference], [draft], words) for words in (None, 100))
    assert whole["r2gen_bleu_4"].value < 0.6
    assert cut["r2gen_bleu_4"].value == pytest.approx(1.0, abs=0.02)
    assert cut["bleu_4"].value == whole["bleu_4"].value


def test_japanese_is_cut_where_its_scripts_change() -> None:
    text = "右肺上葉に約12mmのすりガラス影を認める。CTで変化なし、3.5cm。"
    assert tokens(text) == [
        *("右肺上葉", "に", "約", "12mm", "のすり", "ガラス", "影", "を", "認", "める", "。"),
        *("ct", "で", "変化", "なし", "、", "3.5", "cm", "。"),
    ]
    assert tokens("No pleural effusion; 3.5 cm, follow-up X-ray.") == [
        *("no", "pleural", "effusion", ";", "3.5", "cm", ",", "follow-up", "x-ray", "."),
    ]
    gold, draft = tokenised(["胸水を認めない。心拡大なし。"]), tokenised(["胸水を認める。心拡大なし。"])
    bleu = bleu_statistics([gold], draft)["bleu_1"].value  # 6 of 7 tokens: 認めない is 認 + めない
    assert bleu == pytest.approx(8 / 9, abs=0.05)


ANALYSIS = """[Explanation]:
The candidate misses the effusion.

[Clinically Significant Errors]:
(a) False report of a finding in the candidate: 1. Pneumothorax
(b) Missing a finding present in the reference: 2. Effusion; edema

[Clinically Insignificant Errors]:
(d) Misassessment of the severity of a finding: 4. x

[Matched Findings]:
3. Clear lungs; normal heart; old fracture
"""


def test_green_counts_significant_errors_and_matched_findings() -> None:
    assert green_score(ANALYSIS) == 3 / 6
    assert green_score(ANALYSIS.replace("\n3. Clear", "\n0. Clear")) == 0
    assert green_score("I cannot say.") == 0


def test_green_judges_with_the_model_and_the_prompt_of_a_local_folder(
    tiny_backbone: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_backbone, tmp_path / "green")
    pair = ["clear lungs", "effusion"], ["clear lungs", ""]
    assert "lacks green_prompt.txt" in optional_statistics(*pair, {"green": folder})[1]["green"]
    (folder / "green_prompt.txt").write_text("Reference: {reference}")
    assert "lacks {candidate}" in optional_statistics(*pair, {"green": folder})[1]["green"]
    (folder / "green_prompt.txt").write_text("Reference: {reference} Candidate: {candidate}")
    found, skipped = optional_statistics(*pair, {"green": folder})
    assert "green" not in skipped, skipped
    assert found["green"].sums[:, 0].tolist() == [0.0, 0.0]  # of random weights no analysis can be read
