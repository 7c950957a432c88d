# SPDX-License-Identifier: Apache-2.0
"""Scores of extraction: what counts where, names, intervals, paired comparisons."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medflare.core.errors import DataError
from medflare.core.inventory import ENTITY_TYPES, MODIFIERS
from medflare.data.load import load_cohort
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.egress.declaration import MAX_METRICS, METRIC
from medflare.evaluation import statistics
from medflare.evaluation.extraction_metrics import (
    HEADLINE,
    QUICK,
    compare,
    evaluate_extraction,
    quick_extraction_metrics,
)
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.evaluation.extraction_statistics import task_scores


def at(start: int, end: int, label: str = "problem") -> EntityMention:
    return EntityMention(label, ((start, end),))


def note(number: int = 0, /, **changes: Any) -> ScoredDocument:
    facts: dict[str, Any] = {"note_id": f"n{number}", "site": "site-1", "adapter": "generic"}
    return ScoredDocument(**facts | changes)


def invent(count: int, skill: float, seed: int = 0, said: int = 1) -> list[ScoredDocument]:
    """Notes with gold entities and modifiers, of which a model finds each with probability `skill`."""
    gold, model = random.Random(seed), random.Random(said)
    found = []
    for number in range(count):
        heads = [at(10 * i, 10 * i + 6, gold.choice(ENTITY_TYPES)) for i in range(gold.randint(2, 12))]
        links = [
            Link(head, at(head.spans[0][1] + 1, head.spans[0][1] + 3, gold.choice(MODIFIERS[head.label])))
            for head in heads
        ]
        moved = [at(m.spans[0][0] + 1, m.spans[0][1], m.label) for m in heads]
        kept = [old if model.random() < skill else new for old, new in zip(heads, moved, strict=True)]
        found.append(
            note(
                number,
                gold_entities=heads,
                gold_links=links,
                predicted_entities=kept,
                links_gold_heads=[link for link in links if model.random() < skill],
                links_end_to_end=[link for link in links if link.head in kept],
                outputs=1 + len(heads),
                faults={"parse_failure": int(model.random() > skill), "unclosed_tag": 1},
            )
        )
    return found


def values(documents: Sequence[ScoredDocument]) -> dict[str, float]:
    return {n: e.value for n, e in evaluate_extraction(documents, replicates=1).estimates.items()}


def test_every_name_may_leave_a_hospital_and_there_are_not_too_many() -> None:
    estimates = evaluate_extraction(invent(40, 0.8), replicates=10).estimates
    assert [name for name in estimates if not METRIC.fullmatch(name)] == []
    assert set(HEADLINE) <= set(estimates)
    assert 150 < len(estimates) < MAX_METRICS - 100


@pytest.mark.parametrize(
    "name",
    [
        "ner_strict_f1", "ner_strict_precision", "ner_strict_recall", "ner_lenient_f1",
        "ner_strict_f1/problem", "ner_strict_untyped_f1", "ner_macro_strict_f1", "re_gold_strict_f1",
        "re_gold_lenient_f1", "re_e2e_strict_f1", "re_gold_strict_f1/bodyloc", "re_gold_lenient_f1/bodyloc",
        "parse_failure_rate", "fault/unclosed_tag", "duplicate_rate",
    ],
)  # fmt: skip
def test_the_names_that_tables_and_curves_use(name: str) -> None:
    assert name in evaluate_extraction(invent(40, 0.8), replicates=1).estimates


def test_perfect_predictions_score_one_everywhere() -> None:
    for name, value in values(invent(40, 1.0)).items():
        assert value == (0 if "rate" in name else pytest.approx(0.13, abs=0.1) if "fault" in name else 1), (
            name
        )


def test_micro_f1_adds_counts_and_macro_f1_averages_types() -> None:
    documents = [
        note(0, gold_entities=[at(0, 5), at(6, 9)], predicted_entities=[at(0, 5), at(6, 9)]),
        note(1, gold_entities=[at(0, 5, "drug")], predicted_entities=[at(0, 5)]),
    ]
    scores = values(documents)
    assert scores["ner_strict_f1"] == pytest.approx(2 / 3)
    assert scores["ner_strict_untyped_f1"] == 1
    assert scores["ner_strict_f1/problem"] == pytest.approx(2 * 2 / 5)
    assert scores["ner_strict_f1/drug"] == 0
    assert scores["ner_macro_strict_f1"] == pytest.approx((2 * 2 / 5 + 0) / 2)


def test_predictions_of_a_type_without_gold_cost_precision() -> None:
    """They used to vanish in the released code of Fed-MedLoRA."""
    scores = values([note(gold_entities=[at(0, 5)], predicted_entities=[at(0, 5), at(6, 9, "test")])])
    assert scores["ner_strict_precision"] == 0.5
    assert scores["ner_strict_precision/test"] == 0
    assert scores["ner_macro_strict_f1"] == 1


def test_only_annotated_types_are_scored() -> None:
    link, other = Link(at(0, 5), at(6, 7, "bodyloc")), Link(at(0, 5), at(6, 7, "negation"))
    facts: dict[str, Any] = {
        "gold_entities": [at(0, 5)],
        "predicted_entities": [at(0, 5), at(6, 9, "drug")],
        "gold_links": [link],
        "links_gold_heads": [link, other],
    }
    everything, some = values([note(**facts)]), values([note(annotated=("problem", "bodyloc"), **facts)])
    assert (everything["ner_strict_precision"], some["ner_strict_precision"]) == (0.5, 1)
    assert (everything["re_gold_strict_precision"], some["re_gold_strict_precision"]) == (0.5, 1)
    assert "ner_strict_f1/drug" not in some


def test_documents_count_only_in_their_tasks_and_where_the_model_was_asked() -> None:
    gold = {"gold_entities": [at(0, 5)], "predicted_entities": [at(0, 5)]}
    documents = [note(0, tasks=("ner",), **gold), note(1, tasks=("re",), **gold | {"predicted_entities": []})]
    evaluation = evaluate_extraction(documents, replicates=5)
    assert evaluation.counts["ner_strict"] == (1, 0, 0)
    assert set(evaluation.skipped) == {"ner/", "re_gold", "re_e2e", "outputs"}
    assert not any(name.startswith("re_") for name in evaluation.estimates)


def test_given_heads_need_not_be_annotated_but_heads_that_the_model_looks_for_must() -> None:
    link = Link(at(0, 5), at(6, 7, "bodyloc"))
    predicted = {"gold_links": [link], "links_gold_heads": [link], "links_end_to_end": [link]}
    modifiers_only = evaluate_extraction(
        [note(tasks=("re",), annotated=("bodyloc",), **predicted)], replicates=5
    )
    assert modifiers_only.counts["re_gold_strict"] == (1, 0, 0)
    assert "re_e2e" in modifiers_only.skipped
    another_head = evaluate_extraction([note(annotated=("drug", "bodyloc"), **predicted)], replicates=5)
    assert another_head.counts["re_e2e_strict"] == (0, 0, 0)


def test_end_to_end_needs_the_right_head() -> None:
    gold, moved = (Link(head, at(6, 7, "bodyloc")) for head in (at(0, 5), at(1, 5)))
    scores = values([note(gold_links=[gold], links_gold_heads=[gold], links_end_to_end=[moved])])
    assert (scores["re_gold_strict_f1"], scores["re_e2e_strict_f1"], scores["re_e2e_lenient_f1"]) == (1, 0, 1)


def test_faults_are_shares_of_outputs_and_duplicates_of_items() -> None:
    predicted = [at(0, 5), at(0, 5), at(6, 9)]
    documents = [
        note(0, outputs=4, faults={"parse_failure": 1, "unclosed_tag": 3}, predicted_entities=predicted),
        note(1, outputs=6, predicted_entities=predicted[:1]),
    ]
    scores = values(documents)
    assert (scores["parse_failure_rate"], scores["fault/unclosed_tag"], scores["duplicate_rate"]) == (
        0.1,
        0.3,
        0.25,
    )


def test_nothing_marked_and_nothing_found_is_zero_without_an_error() -> None:
    evaluation = evaluate_extraction([note(predicted_entities=())], replicates=10)
    assert (
        evaluation.estimates["ner_strict_f1"].value == evaluation.estimates["ner_macro_strict_f1"].value == 0
    )
    assert evaluation.skipped["ner/"] == "neither marked nor predicted: problem, treatment, test, drug"


def test_types_outside_the_inventory_are_refused() -> None:
    with pytest.raises(
        DataError, match=r"note 'n0' of site 'site-1', ner: the type 'bodyloc' is not in the inv"
    ):
        evaluate_extraction([note(predicted_entities=[at(0, 5, "bodyloc")])])
    wrong = Link(at(0, 5, "severity"), at(6, 7, "bodyloc"))
    with pytest.raises(DataError, match="re_gold: the type 'severity'"):
        evaluate_extraction([note(links_gold_heads=[wrong])])


def test_a_note_twice_is_refused() -> None:
    with pytest.raises(
        DataError, match=r"note 'n0' of site 'site-1' occurs twice \(adapters generic and none\)"
    ):
        evaluate_extraction([note(), note(adapter="none")])
    with pytest.raises(DataError, match="no document"):
        evaluate_extraction([])


def test_intervals_equal_those_of_scoring_resampled_documents_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(statistics, "SMALL", 0)  # the percentile interval, as of many documents
    documents, rng = invent(12, 0.7), np.random.default_rng(3)
    slow: dict[str, list[float]] = {name: [] for name in ("ner_strict_f1", "ner_lenient_recall")}
    for rows in rng.integers(12, size=(150, 12)):
        drawn = [documents[i].model_copy(update={"note_id": str(k)}) for k, i in enumerate(rows)]
        quick = {n: s.value for part in task_scores(drawn).values() for n, s in part.statistics.items()}
        for name in slow:
            slow[name].append(quick[name])
    estimates = evaluate_extraction(documents, replicates=150, seed=3).estimates
    for name, drawn_values in slow.items():
        expected = tuple(np.quantile(drawn_values, [0.025, 0.975]))
        assert (estimates[name].low, estimates[name].high) == pytest.approx(expected), name


def test_notes_of_one_patient_are_drawn_together() -> None:
    documents = invent(40, 0.7)
    together = [item.model_copy(update={"patient_id": f"p{i // 20}"}) for i, item in enumerate(documents)]
    alone, grouped = (evaluate_extraction(d, replicates=300).estimates for d in (documents, together))
    apart = [item.model_copy(update={"patient_id": f"p{i}"}) for i, item in enumerate(documents)]
    assert alone == evaluate_extraction(apart, replicates=300).estimates
    assert grouped["ner_strict_f1"].value == alone["ner_strict_f1"].value
    assert grouped["ner_strict_f1"] != alone["ner_strict_f1"]


def mtsamples(folder: Path) -> list[ScoredDocument]:
    """The public MTSamples annotation, predicted with every first code point missing where there are two."""
    config = CohortConfig(format="brat", root=folder / "ie" / "mtsamples_brat")
    found = []
    for item in load_cohort(SiteConfig(cohort=(config,))).notes:
        gold = {e.entity_id: EntityMention(e.label, e.spans) for e in item.entities}
        short = {name: without_first(mention) for name, mention in gold.items()}
        ends = [(relation.head, relation.tail) for relation in item.relations]
        found.append(
            note(
                note_id=item.note_id,
                gold_entities=[m for m in gold.values() if m.label in ENTITY_TYPES],
                gold_links=[Link(gold[head], gold[tail]) for head, tail in ends],
                predicted_entities=[short[k] for k, m in gold.items() if m.label in ENTITY_TYPES],
                links_end_to_end=[Link(short[head], short[tail]) for head, tail in ends],
            )
        )
    return found


def without_first(mention: EntityMention) -> EntityMention:
    (start, end), *rest = mention.spans
    return EntityMention(mention.label, ((min(start + 1, end - 1), end), *rest))


def test_mtsamples_cut_by_one_code_point_is_right_only_leniently(public_data: Path) -> None:
    """Nested and overlapping annotation, 6,919 entities and 4,742 links; one-letter spans stay whole."""
    evaluation = evaluate_extraction(mtsamples(public_data), replicates=20)
    assert evaluation.counts["ner_lenient"] == (6919, 0, 0)
    assert evaluation.counts["re_e2e_lenient"] == (4742, 0, 0)
    assert evaluation.estimates["ner_strict_f1"].value < 0.01
    assert [evaluation.counts[f"ner_strict/{name}"].gold for name in ENTITY_TYPES] == [4059, 584, 1529, 747]
    assert evaluation.skipped["re_e2e/"] == "neither marked nor predicted: reference_range"


def test_the_same_seed_gives_the_same_intervals() -> None:
    documents = invent(20, 0.7)
    one, two, three = (evaluate_extraction(documents, replicates=50, seed=s).estimates for s in (1, 1, 2))
    assert one == two != three


def test_a_thousand_replicates_of_all_metrics_on_300_notes_are_quick() -> None:
    documents = invent(300, 0.8)
    started = time.process_time()
    evaluate_extraction(documents, replicates=1000)
    assert time.process_time() - started < 60  # 0.4 s where it was written


def test_quick_metrics_are_the_same_values() -> None:
    documents = invent(30, 0.7)
    quick, full = quick_extraction_metrics(documents), values(documents)
    assert tuple(quick) == QUICK
    assert quick == pytest.approx({name: full[name] for name in QUICK})
    assert set(quick_extraction_metrics([note(predicted_entities=())])) < set(QUICK)


def test_a_better_system_is_found_better() -> None:
    comparison = compare(invent(60, 0.9), invent(60, 0.6, said=2), "ner_strict_f1")
    assert 0.2 < comparison.low < comparison.value < comparison.high < 0.4
    assert comparison.p == pytest.approx(1 / 10_001)
    back = compare(invent(60, 0.6, said=2), invent(60, 0.9), "ner_strict_f1")
    assert (back.value, back.p) == pytest.approx((-comparison.value, comparison.p))


def test_order_of_documents_does_not_matter_when_comparing() -> None:
    ours, theirs = invent(30, 0.9), invent(30, 0.8, said=2)
    assert compare(ours, theirs, "re_gold_macro_strict_f1") == compare(
        ours, theirs[::-1], "re_gold_macro_strict_f1"
    )


def test_a_system_does_not_differ_from_itself() -> None:
    comparison = compare(invent(20, 0.8), invent(20, 0.8), "re_e2e_strict_f1/bodyloc")
    assert (comparison.value, comparison.low, comparison.high, comparison.p) == (0, 0, 0, 1)


def test_p_values_of_equally_good_systems_are_not_small_too_often() -> None:
    small = [
        compare(invent(25, 0.7, s, 100 + s), invent(25, 0.7, s, 500 + s), "ner_strict_f1", replicates=200).p
        < 0.05
        for s in range(60)
    ]
    assert np.mean(small) <= 0.12


def test_comparing_names_the_documents_that_differ() -> None:
    ours, theirs = invent(10, 0.9), invent(10, 0.8, said=2)
    with pytest.raises(DataError, match=r"note 'n9' of site 'site-1' is only in the first\."):
        compare(ours, theirs[:9], "ner_strict_f1")
    theirs[3] = theirs[3].model_copy(update={"gold_entities": ()})
    with pytest.raises(DataError, match=r"note 'n3' of site 'site-1' has another gold annotation\."):
        compare(ours, theirs, "ner_strict_f1")
    with pytest.raises(DataError, match="and 6 more"):
        compare(ours, invent(20, 0.9)[10:15] + theirs[:5], "ner_strict_f1")


def test_comparing_needs_a_metric_that_both_were_asked_for() -> None:
    ours = invent(10, 0.9)
    without = [item.model_copy(update={"links_end_to_end": None}) for item in ours]
    with pytest.raises(
        DataError, match="'re_e2e_strict_f1' was not scored here; there are ner_strict_precision"
    ):
        compare(ours, without, "re_e2e_strict_f1")
    with pytest.raises(DataError, match="not asked for it in the same documents"):
        compare(ours, [*ours[:5], *without[5:]], "re_e2e_strict_f1")
