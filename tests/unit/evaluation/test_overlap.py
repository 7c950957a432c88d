# SPDX-License-Identifier: Apache-2.0
"""Text metrics against hand computation, published numbers and the libraries they come from."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medflare.evaluation import meteor as meteor_program
from medflare.evaluation import report_metrics
from medflare.evaluation.meteor_program import ADDRESS, meteor_lines, own_program, shared_program
from medflare.evaluation.overlap import bleu_statistics, cider, rouge_l, sacrebleu_statistic
from medflare.evaluation.report_metrics import report_statistics, tokenised
from medflare.evaluation.statistics import bootstrap

needs_java = pytest.mark.skipif(not meteor_program.java_present(), reason="METEOR needs Java")
CORPUS = "corpus(hyp.txt vs ref1.txt,ref2.txt)"
TEXTS = [
    ("no acute disease .", "no acute cardiopulmonary disease ."),
    ("the heart is enlarged .", "the heart size is normal ."),
    ("small left pleural effusion .", "small left effusion ."),
    ("lungs are clear .", ""),
]
REFERENCES, HYPOTHESES = [r for r, _ in TEXTS], [h for _, h in TEXTS]


@pytest.fixture(scope="module")
def nlg_eval(public_data: Path) -> tuple[list[list[str]], list[str], dict[str, float]]:
    """References, hypotheses and the published scores of nlg-eval."""
    folder = public_data / "metric_refs" / "nlg_eval"
    said, one, two = (
        (folder / name).read_text(encoding="utf-8").splitlines()
        for name in ("hyp.txt", "ref1.txt", "ref2.txt")
    )
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return [list(pair) for pair in zip(one, two, strict=True)], said, expected[CORPUS]


def test_bleu_rouge_and_cider_give_nlg_evals_published_numbers(nlg_eval: Any) -> None:
    references, predicted, expected = nlg_eval
    statistics = bleu_statistics(references, predicted)
    for n in range(1, 5):
        assert statistics[f"bleu_{n}"].value == pytest.approx(expected[f"Bleu_{n}"], abs=1e-6)
    assert rouge_l(references, predicted).value == pytest.approx(expected["ROUGE_L"], abs=1e-6)
    assert cider(references, predicted).value == pytest.approx(expected["CIDEr"], abs=1e-6)


@needs_java
def test_meteor_gives_nlg_evals_published_number(nlg_eval: Any) -> None:
    references, predicted, expected = nlg_eval
    assert meteor_program.meteor(references, predicted).value == pytest.approx(expected["METEOR"], abs=1e-6)


@needs_java
def test_meteor_of_sums_is_the_programs_own_corpus_score() -> None:
    gold = [[text] for text in REFERENCES]
    *each, total = program_scores(gold, HYPOTHESES)
    scores = meteor_program.meteor(gold, HYPOTHESES)
    assert scores.value == pytest.approx(total, abs=1e-12)
    # a study matched in one piece counts as unfragmented, alone as in a corpus
    np.testing.assert_allclose(scores.score(scores.sums), each, atol=1e-12)


def program_scores(references: list[list[str]], hypotheses: list[str]) -> list[float]:
    """The Java program's own score of each pair, and of all together."""
    program = own_program()
    lines = program.lines(list(zip(hypotheses, references, strict=True)))
    assert program._process.stdin is not None
    assert program._process.stdout is not None
    program._process.stdin.write(" ||| ".join(["EVAL", *lines]) + "\n")
    program._process.stdin.flush()
    return [float(program._process.stdout.readline()) for _ in range(len(lines) + 1)]


@needs_java
def test_a_process_without_java_is_answered_by_the_shared_program() -> None:
    pairs = [("no effusion is seen .", ["there is no pleural effusion ."]), ("", ["normal ."])]
    ask = f"from medflare.evaluation.meteor_program import meteor_lines; print(meteor_lines({pairs}))"
    with shared_program():
        child = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
    assert ast.literal_eval(child.stdout) == own_program().lines(pairs)
    assert ADDRESS not in os.environ


@needs_java
def test_a_shared_program_that_does_not_answer_is_replaced_by_ones_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ADDRESS, str(tmp_path / "nobody"))
    assert meteor_lines([("normal .", ["normal ."])]) == own_program().lines([("normal .", ["normal ."])])


def test_meteor_without_java_is_skipped_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    codes = [[0] * 14] * 4
    evaluation = report_metrics.evaluate_reports(REFERENCES, HYPOTHESES, codes, codes, replicates=10)
    assert evaluation.skipped["meteor"] == "skipped: METEOR needs Java"
    assert "meteor" not in evaluation.estimates


def test_bleu_by_hand() -> None:
    """2 of 3 words, 1 of 2 bigrams, no trigram; four words against three: exp(1 - 4/3)."""
    statistics = bleu_statistics([["a b c d"]], ["a b x"])
    brevity = math.exp(1 - 4 / 3)
    assert statistics["bleu_1"].value == pytest.approx(brevity * 2 / 3)
    assert statistics["bleu_2"].value == pytest.approx(brevity * math.sqrt(2 / 3 * 1 / 2))
    assert statistics["bleu_3"].value < 1e-4


def test_corpus_bleu_sums_counts_and_does_not_average_sentences() -> None:
    bleu_1 = bleu_statistics([["a b c d"], ["e f"]], ["a b c d", "x y"])["bleu_1"]
    assert bleu_1.value == pytest.approx(4 / 6)
    assert np.mean(bleu_1.score(bleu_1.sums)) == pytest.approx(1 / 2)


def test_bleu_of_the_identity_resample_is_pycocoevalcaps() -> None:
    from pycocoevalcap.bleu.bleu import Bleu

    gold = {i: [text] for i, text in enumerate(REFERENCES)}
    predicted = {i: [text] for i, text in enumerate(HYPOTHESES)}
    expected = Bleu(4).compute_score(gold, predicted, verbose=0)[0]
    statistics = bleu_statistics(list(gold.values()), HYPOTHESES)
    for n, value in enumerate(expected, start=1):
        item = statistics[f"bleu_{n}"]
        assert item.score(np.ones((1, 4)) @ item.sums)[0] == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    ("references", "predicted"),
    [
        (REFERENCES, HYPOTHESES),
        (["The heart is big."], ["The heart is small."]),
        (["a b c d e"], ["v w x y z"]),
        (["a b c d e f"], ["a b"]),
        (["a b c d e f g"], ["a c e g x f b"]),
    ],
)
def test_sacrebleu_of_sums_is_sacrebleus(references: list[str], predicted: list[str]) -> None:
    import sacrebleu

    expected = sacrebleu.corpus_bleu(predicted, [references]).score / 100
    assert sacrebleu_statistic(references, predicted).value == pytest.approx(expected, abs=1e-9)


def test_rouge_l_agrees_with_rouge_score_on_real_sentences(public_data: Path) -> None:
    """pltrdy/rouge's own ROUGE-L is an older variant, hence only its texts serve (SOURCE.md)."""
    from rouge_score.rouge_scorer import RougeScorer

    pairs = json.loads((public_data / "metric_refs/pltrdy_rouge/data.json").read_text(encoding="utf-8"))
    scorer, beta = RougeScorer(["rougeL"]), 1.2
    for pair in pairs:
        reference, predicted = (
            "".join(c if c.isalnum() else " " for c in pair[k]).lower() for k in ("ref", "hyp")
        )
        reference, predicted = " ".join(reference.split()), " ".join(predicted.split())
        theirs = scorer.score(reference, predicted)["rougeL"]
        p, r = theirs.precision, theirs.recall
        assert rouge_l([[reference]], [predicted]).value == pytest.approx(
            (1 + beta**2) * p * r / (r + beta**2 * p)
        )


def test_identical_reports_score_full_marks_and_an_empty_one_nothing() -> None:
    same = report_statistics(REFERENCES, REFERENCES)
    assert {round(same[name].value, 6) for name in ("bleu_4", "rouge_l", "sacrebleu", "r2gen_bleu_4")} == {
        1.0
    }
    empty = report_statistics(REFERENCES, [""] * 4)
    assert max(empty[name].value for name in ("bleu_1", "rouge_l", "cider", "sacrebleu")) == pytest.approx(
        0, abs=1e-9
    )


def test_tokens_are_lower_case_words_and_marks() -> None:
    assert tokenised(["No X-ray, 2.5 cm."]) == ["no x-ray , 2.5 cm ."]


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    bootstrap(report_statistics(REFERENCES, HYPOTHESES), replicates=10)
    assert capfd.readouterr() == ("", "")


def test_report_statistics_score_each_study_against_its_one_reference() -> None:
    from pycocoevalcap.bleu.bleu import Bleu

    gold = {i: [text] for i, text in enumerate(tokenised(REFERENCES))}
    predicted = {i: [text] for i, text in enumerate(tokenised(HYPOTHESES))}
    statistics = report_statistics(REFERENCES, HYPOTHESES)
    assert statistics["bleu_4"].value == pytest.approx(
        Bleu(4).compute_score(gold, predicted, verbose=0)[0][3]
    )


def test_lists_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="3 references and 4 generated"):
        report_statistics(REFERENCES[:3], HYPOTHESES)
