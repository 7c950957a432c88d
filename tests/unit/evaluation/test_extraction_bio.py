# SPDX-License-Identifier: Apache-2.0
"""Sequences as seqeval and nervaluate score them: recorded values, and live where those are installed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from medflare.evaluation.extraction_metrics import evaluate_extraction, quick_extraction_metrics
from medflare.evaluation.extraction_predictions import EntityMention, ScoredDocument
from medflare.evaluation.extraction_statistics import Types

Tags = list[list[str]]
NEWS = Types(entities=("LOC", "PER", "MISC"), modifiers=())
RECORDED = {
    # seqeval 1.2.2, v1, scheme IOB2: P, R, F1 micro; P, R, F1 macro; F1 of both types
    0: (
        (0.8253968253968254, 0.7878787878787878, 0.8062015503875969),
        (0.8240740740740741, 0.7847157502329916, 0.8038160469667319),
        (0.78571429, 0.82191781),
    ),
    1: (
        (0.7540983606557377, 0.7419354838709677, 0.7479674796747967),
        (0.7284382284382285, 0.7146042363433668, 0.7213675213675215),
        (0.62222222, 0.82051282),
    ),
    2: (
        (0.8125, 0.7647058823529411, 0.787878787878788),
        (0.8123167155425219, 0.765625, 0.7881297446514837),
        (0.79365079, 0.7826087),
    ),
}


def mentions(tags: list[str]) -> tuple[EntityMention, ...]:
    """Strict IOB2: a mention begins with B- and goes on with I- of its type; offsets count tokens."""
    found: list[EntityMention] = []
    for place, tag in enumerate(tags):
        mark, _, label = tag.partition("-")
        if mark == "B":
            found.append(EntityMention(label, ((place, place + 1),)))
        elif mark == "I" and found and found[-1].label == label and found[-1].spans[0][1] == place:
            found[-1] = EntityMention(label, ((found[-1].spans[0][0], place + 1),))
    return tuple(found)


def documents(gold: Tags, predicted: Tags) -> list[ScoredDocument]:
    return [
        ScoredDocument(
            note_id=str(number),
            site="news",
            adapter="none",
            tasks=("ner",),
            gold_entities=mentions(first),
            predicted_entities=mentions(second),
        )
        for number, (first, second) in enumerate(zip(gold, predicted, strict=True))
    ]


def draw(seed: int) -> tuple[Tags, Tags]:
    """Six sequences of 30 tags, broken ones among them, and copies with one tag in five drawn again."""
    rng = random.Random(seed)
    tags = ["O", "O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    gold = [[rng.choice(tags) for _ in range(30)] for _ in range(6)]
    return gold, [[tag if rng.random() < 0.8 else rng.choice(tags) for tag in row] for row in gold]


def mended(rows: Tags) -> Tags:
    """Sequences without I- that nothing begins."""
    found = []
    for row in rows:
        tags = ["O"] * len(row)
        for mention in mentions(row):
            (start, end), label = mention.spans[0], mention.label
            tags[start:end] = [f"B-{label}"] + [f"I-{label}"] * (end - start - 1)
        found.append(tags)
    return found


def ratios(found: dict[str, float], kind: str) -> tuple[float, ...]:
    return tuple(found[f"ner_{kind}_{ratio}"] for ratio in ("precision", "recall", "f1"))


def values(gold: Tags, predicted: Tags) -> dict[str, float]:
    evaluation = evaluate_extraction(documents(gold, predicted), types=NEWS, replicates=1)
    return {name: item.value for name, item in evaluation.estimates.items()}


def test_the_example_of_seqevals_readme(public_data: Path) -> None:
    facts = json.loads((public_data / "metric_refs/seqeval/expected.json").read_text(encoding="utf-8"))
    scores = values(facts["y_true"], facts["y_pred"])
    assert scores["ner_strict_f1"] == facts["micro_f1"] == 0.5
    assert scores["ner_strict_f1/MISC"] == facts["MISC_f1"] == 0
    assert scores["ner_strict_f1/PER"] == facts["PER_f1"] == 1
    assert scores["ner_lenient_f1"] == 1


@pytest.mark.parametrize("seed", RECORDED)
def test_values_recorded_from_seqeval(seed: int) -> None:
    micro, macro, (location, person) = RECORDED[seed]
    scores = values(*draw(seed))
    assert ratios(scores, "strict") == pytest.approx(micro)
    assert ratios(scores, "macro_strict") == pytest.approx(macro)
    assert scores["ner_strict_f1/LOC"] == pytest.approx(location)
    assert scores["ner_strict_f1/PER"] == pytest.approx(person)


def test_two_hundred_random_corpora_as_seqeval_scores_them() -> None:
    seqeval = pytest.importorskip("seqeval.metrics.v1")
    scheme = pytest.importorskip("seqeval.scheme").IOB2
    for seed in range(200):
        gold, predicted = draw(seed)
        scores = values(gold, predicted)
        for average, kind in (("micro", "strict"), ("macro", "macro_strict")):
            theirs = seqeval.precision_recall_fscore_support(
                gold, predicted, average=average, scheme=scheme, zero_division=0
            )
            assert ratios(scores, kind) == pytest.approx(theirs[:3]), (seed, kind)


def test_two_hundred_random_corpora_as_nervaluate_scores_them() -> None:
    """Its `strict` is ours; its `exact` ignores the type, which is our untyped strict."""
    nervaluate = pytest.importorskip("nervaluate")
    for seed in range(200):
        gold, predicted = (mended(rows) for rows in draw(seed))
        theirs = nervaluate.Evaluator(gold, predicted, tags=["LOC", "PER"], loader="list").evaluate()[
            "overall"
        ]
        metrics = quick_extraction_metrics(documents(gold, predicted), types=NEWS)
        for schema, name in (("strict", "ner_strict_f1"), ("exact", "ner_strict_untyped_f1")):
            assert metrics[name] == pytest.approx(theirs[schema].f1), (seed, schema)
