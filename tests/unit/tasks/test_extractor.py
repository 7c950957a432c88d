# SPDX-License-Identifier: Apache-2.0
"""The extractor with scripted models: perfect answers, garbage, answers cut short; public notes' ceilings."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from medflare.core.errors import ConfigError
from medflare.data.load import load_cohort
from medflare.data.records import Entity, Note, Relation
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.evaluation.extraction_metrics import quick_extraction_metrics
from medflare.evaluation.extraction_predictions import EntityMention, Link
from medflare.models.text_model import Written
from medflare.tasks.extraction.examples import ner_example, re_examples
from medflare.tasks.extraction.extractor import Extractor
from medflare.tasks.extraction.predictor import training_examples
from medflare.tasks.extraction.prompts import ExtractionWording

Format = Literal["html", "json"]


class ScriptedModel:
    """Answers by a function of the prompt; a token is what stands between spaces."""

    context = 10_000
    token_table = None

    def __init__(self, write: Callable[[str], Written]) -> None:
        self.write = write
        self.prompts: list[str] = []
        self.backbone = SimpleNamespace(tokenizer=self.tokenise)

    def tokenise(self, texts: str | list[str], add_special_tokens: bool = True) -> dict[str, Any]:
        rows = [texts] if isinstance(texts, str) else texts
        found = [[0] * len(text.split()) for text in rows]
        return {"input_ids": found[0] if isinstance(texts, str) else found}

    def prompt_ids(self, prompts: Sequence[str]) -> list[list[int]]:
        return list(self.tokenise(list(prompts))["input_ids"])

    def answer(
        self, prompts: Sequence[str], budgets: Sequence[int], batch: int, guides: None
    ) -> list[Written]:
        assert len(prompts) == len(budgets) > 0
        self.prompts += prompts
        return [self.write(prompt) for prompt in prompts]


def extractor(write: Callable[[str], Written], format: Format = "html", sentences: int = 1) -> Extractor:
    return Extractor(ScriptedModel(write), ExtractionWording(format=format), sentences)  # type: ignore[arg-type]


def oracle(notes: Sequence[Note], format: Format, sentences: int) -> Extractor:
    """Writes the gold answer to every question, in the order in which the same question is asked again."""
    known: dict[str, deque[str]] = defaultdict(deque)
    knowing = extractor(
        lambda prompt: Written(known[prompt].popleft() if known[prompt] else "", True), format, sentences
    )
    for note in notes:
        for window in knowing.blind_windows(note).windows:
            heads = {example.head: example for example in re_examples(window, note.annotated)}
            for example in (ner_example(window, note.annotated), *heads.values()):
                known[knowing.wording.prompt(example)].append(knowing.wording.answer(example))
    return knowing


TEXT = "Severe chest pain since Monday. No fever.\nShe takes aspirin 100 mg daily. Family is well."


def note(**changes: Any) -> Note:
    def at(name: str, label: str, words: str) -> Entity:
        start = TEXT.index(words)
        return Entity(entity_id=name, label=label, spans=((start, start + len(words)),))

    entities = (
        at("p", "problem", "chest pain"), at("f", "problem", "fever"), at("d", "drug", "aspirin"),
        at("s", "severity", "Severe"), at("t", "temporal", "since Monday"), at("n", "negation", "No"),
        at("g", "strength", "100 mg"), at("q", "frequency", "daily"),
    )  # fmt: skip
    relations = tuple(Relation(label="has", head=a, tail=b) for a, b in ("ps", "pt", "fn", "dg", "dq"))
    facts: dict[str, Any] = {"note_id": "1", "text": TEXT, "entities": entities, "relations": relations}
    return Note(**facts | changes)


@pytest.mark.parametrize("format", ["html", "json"])
@pytest.mark.parametrize("sentences", [1, 3])
def test_gold_answers_score_one(format: Format, sentences: int) -> None:
    documents = oracle([note()], format, sentences).documents([note()], "site-1", "generic")
    scores = quick_extraction_metrics(documents)
    assert {n for n, value in scores.items() if value != 1} == {"parse_failure_rate"}
    assert documents[0].faults == {}
    assert documents[0].outputs == len(training_examples(oracle([], format, sentences), [note()])[0])


def test_a_head_that_is_gold_and_found_is_asked_about_once() -> None:
    model = oracle([note()], "html", 1)
    model.extract([note()], "both")
    prompts = model.model.prompts  # type: ignore[attr-defined]
    assert len(prompts) == len(set(prompts)) == 4 + 3


@pytest.mark.parametrize(
    ("heads", "gold", "found"),
    [("none", None, None), ("gold", 5, None), ("predicted", None, 5), ("both", 5, 5)],
)
def test_links_are_none_where_they_were_not_asked_for(
    heads: Any, gold: int | None, found: int | None
) -> None:
    (answer,) = oracle([note()], "html", 1).extract([note()], heads)
    counts = [None if links is None else len(links)
              for links in (answer.links_gold_heads, answer.links_end_to_end)]  # fmt: skip
    assert counts == [gold, found]
    assert len(answer.entities) == 3


def test_modifiers_are_asked_only_of_notes_that_are_annotated_with_them() -> None:
    notes = [note(note_id="a", tasks=("ner",)), note(note_id="b"), note(note_id="c", tasks=("ner",))]
    documents = oracle([note()] * 3, "html", 1).documents(notes, "site-1", "generic")
    assert [item.note_id for item in documents] == ["a", "b", "c"]
    assert [item.outputs for item in documents] == [4, 7, 4]
    assert [item.links_gold_heads is None for item in documents] == [True, False, True]


def test_offsets_are_those_of_the_note() -> None:
    (answer,) = oracle([note()], "html", 1).extract([note()])
    assert [TEXT[slice(*mention.spans[0])] for mention in answer.entities] == [
        "chest pain",
        "fever",
        "aspirin",
    ]
    assert answer.links_end_to_end is not None
    fever = EntityMention("problem", ((35, 40),))
    assert Link(fever, EntityMention("negation", ((32, 34),))) in answer.links_end_to_end


@pytest.mark.parametrize("format", ["html", "json"])
@pytest.mark.parametrize(
    ("written", "fault"),
    [
        ('<span class="problem">' * 300 + "x", "parse_failure"),
        ("</span>" * 300, "parse_failure"),
        ('[{"entity": "problem", "te', "parse_failure"),
        ('<span class="sympt">pain</span>', "parse_failure"),
        ('[{"entity": "sympt", "text": "pain"}]', "parse_failure"),
    ],
)
def test_garbage_is_counted_and_never_fatal(format: Format, written: str, fault: str) -> None:
    (document,) = extractor(lambda _: Written(written, True), format).documents([note()], "s", "none")
    readable = (format == "json") != ("<" in written)
    assert document.faults.get(fault, 0) == (document.outputs if readable or format == "json" else 0)
    assert document.predicted_entities in ((), None)
    assert document.outputs == 4 + 3


def test_silence_finds_nothing() -> None:
    (document,) = extractor(lambda _: Written("", True)).documents([note()], "s", "none")
    assert document.predicted_entities == document.links_gold_heads == document.links_end_to_end == ()
    assert document.faults == {}


def test_an_answer_cut_short_counts_as_truncated_and_keeps_what_it_holds() -> None:
    cut = extractor(lambda _: Written('Severe <span class="problem">chest pain', False))
    (document,) = cut.documents([note()], "s", "none")
    assert document.faults["truncated"] == document.faults["parse_failure"] == document.outputs
    assert EntityMention("problem", ((7, 17),)) in (document.predicted_entities or ())


def test_nested_predictions_are_one_flat_layer_and_a_fault() -> None:
    nest = extractor(
        lambda _: Written('<span class="problem">chest <span class="drug">pain</span></span>', True)
    )
    answer = nest.extract([note()], "none")[0]
    assert EntityMention("problem", ((7, 17),)) in answer.entities
    assert answer.faults["nested entity"] == 1
    assert answer.faults["parse_failure"] == 0


def test_training_asks_within_the_tasks_of_a_note() -> None:
    blank = extractor(lambda _: Written("", True))
    counts = [[e.task for e in training_examples(blank, [note(tasks=tasks)])[0]].count
              for tasks in (("ner",), ("re",), ("ner", "re"))]  # fmt: skip
    assert [(count("ner"), count("re")) for count in counts] == [(4, 0), (0, 3), (4, 3)]


def test_a_question_with_its_answer_fits_into_max_tokens() -> None:
    long = note(text="pain and " * 400, entities=(), relations=())
    blank = Extractor(ScriptedModel(lambda _: Written("", True)), ExtractionWording(), 3, 300)  # type: ignore[arg-type]
    windows = blank.windows(long).windows
    assert len(windows) > 5
    question = max(len(blank.wording.prompt(ner_example(window)).split()) for window in windows)
    assert question + 2 * blank.room + 48 <= 300


def test_max_tokens_without_room_for_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_tokens is 100.*Set max_tokens to \d+ or more"):
        Extractor(ScriptedModel(lambda _: Written("", True)), ExtractionWording(), 1, 100)  # type: ignore[arg-type]


def test_a_context_that_is_too_short_for_any_window_is_named_as_the_models() -> None:
    short = ScriptedModel(lambda _: Written("", True))
    short.context = 90
    short.backbone.name = "tiny"
    with pytest.raises(ConfigError, match=r"'tiny' has a context of 90 tokens.*longer context"):
        Extractor(short, ExtractionWording(), 1, 800)  # type: ignore[arg-type]


CEILINGS = {
    # corpus, sentences, format: strict F1 of entities, of modifiers of gold heads, end to end
    ("mtsamples", 1, "html"): (1.0, 0.9985, 0.9985),
    ("mtsamples", 1, "json"): (0.9993, 0.983, 0.983),
    ("mtsamples", 3, "html"): (1.0, 0.9995, 0.9995),
    ("maccrobat", 1, "html"): (0.9959, 0.9906, 0.9884),
    ("phee", 1, "html"): (0.9646, 0.9816, 0.9430),
}
FOLDERS = {"mtsamples": ("brat", "mtsamples_brat")}


@pytest.mark.parametrize(("corpus", "sentences", "format"), CEILINGS)
def test_gold_answers_reach_the_ceiling_of_public_notes(
    public_data: Path, corpus: str, sentences: int, format: Format
) -> None:
    """What windows, word borders, one flat layer and repeated words cost (docs: the denominator)."""
    reader, folder = FOLDERS.get(corpus, ("notes_jsonl", corpus))
    config = CohortConfig(format=reader, root=public_data / "ie" / folder, label_map=corpus)  # type: ignore[arg-type]
    notes = load_cohort(SiteConfig(name="site-1", cohort=(config,))).notes
    scores = quick_extraction_metrics(oracle(notes, format, sentences).documents(notes, "site-1", "generic"))
    f1 = [scores[f"{task}_strict_f1"] for task in ("ner", "re_gold", "re_e2e")]
    assert f1 == pytest.approx(CEILINGS[corpus, sentences, format], abs=1e-3)
