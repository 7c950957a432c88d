# SPDX-License-Identifier: Apache-2.0
"""The page of an extraction run: scores by type, notes only with their text, weights of the sites."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from page_reader import Reader, read
from rich.console import Console

from medflare.cli.run import SHOWN
from medflare.core.inventory import ENTITY_TYPES, MODIFIER_TYPES
from medflare.core.json_lines import write_lines
from medflare.core.run_record import Estimate, RoundRecord, RunRecord, SiteRecord, read_record
from medflare.data.records import Note
from medflare.evaluation.agreement import note_counts
from medflare.evaluation.extraction_metrics import evaluate_extraction
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from medflare.reporting.galleries.notes import pick
from medflare.reporting.page import write_page
from medflare.reporting.score_rows import best_rows, rows_of
from medflare.reporting.tables import results_table
from medflare.synthetic.notes import NOTE_HOSPITALS, corrupt_labels, generate_notes
from record_builders import evaluation

WEIGHTS = {"site-1": 0.6, "site-2": 0.4}


def document(note: Note, wrong: Note, site: str, adapter: str, with_text: bool) -> ScoredDocument:
    gold = {e.entity_id: EntityMention(e.label, e.spans) for e in note.entities}
    mentions = {e.entity_id: EntityMention(e.label, e.spans) for e in wrong.entities}
    heads = [r for r in wrong.relations if gold[r.head].label in ENTITY_TYPES]
    return ScoredDocument(
        note_id=note.note_id,
        patient_id=note.patient_id,
        site=site,
        adapter=adapter,
        gold_entities=tuple(m for m in gold.values() if m.label in ENTITY_TYPES),
        gold_links=tuple(Link(gold[r.head], gold[r.tail]) for r in note.relations),
        predicted_entities=tuple(m for m in mentions.values() if m.label in ENTITY_TYPES),
        links_gold_heads=tuple(Link(gold[r.head], mentions[r.tail]) for r in heads),
        links_end_to_end=(),
        outputs=4,
        faults={"unclosed_tag": 1},
        text=note.text if with_text else None,
    )


def documents(site: int, adapter: str, with_text: bool = True) -> list[ScoredDocument]:
    notes = list(generate_notes(NOTE_HOSPITALS[site], 8))
    shares = [0.08 * place for place in range(len(notes))]
    wrong = [corrupt_labels([note], share, 1)[0] for note, share in zip(notes, shares, strict=True)]
    return [
        document(*pair, f"site-{site + 1}", adapter, with_text) for pair in zip(notes, wrong, strict=True)
    ]


def invent(folder: Path, with_text: bool = True) -> Path:
    """Two sites, the first also with a personalised adapter, and three rounds of a weighing rule."""
    record = RunRecord(
        job="fed_medlora_plus", method="Fed-MedLoRA+", task="extraction", run_id="r", started="now"
    )
    for site, adapter in ((0, "generic"), (0, "personalised"), (1, "generic")):
        name = f"site-{site + 1}"
        items = documents(site, adapter, with_text)
        path = write_lines(folder / f"predictions_{name}_{adapter}.jsonl", items)
        scored = evaluate_extraction(items, replicates=50)
        record.sites[name] = SiteRecord(backbone="notes_decoder", fingerprint="f", examples={"train": 90})
        facts = {"skipped_metrics": scored.skipped, "predictions": path.name}
        record.evaluations.append(evaluation(name, adapter, len(items), scored.estimates, **facts))
    record.rounds = [
        RoundRecord(
            round=number,
            seconds=1.0,
            accepted={"site-1": 90, "site-2": 90},
            mean={"val_ner_strict_f1": 0.5},
            rule={"weights": WEIGHTS, "losses": {"site-1": 0.71, "site-2": 1.13}},
        )
        for number in range(3)
    ]
    record.write(folder / "run.json")
    return folder


@pytest.fixture(scope="module")
def notes_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invent(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def page(notes_run: Path) -> Reader:
    return read(write_page(notes_run))


@pytest.mark.parametrize(
    "fact",
    [
        "What the model extracts against what annotators marked",
        *("NER strict F1", "NER lenient F1", "RE strict F1", "RE end to end strict F1", "unreadable outputs"),
        *("Entities by type", "Modifiers of annotated entities by type", *ENTITY_TYPES, *MODIFIER_TYPES),
        "outputs with: unclosed tag",
        "over documents, or patients",
        "train notes",
        "Handle it like the notes themselves",
        "site-1: 4 of 8 notes",
        "What the generic adapter extracted",
        *("Weight of a site's update", "Loss behind the weight", "1.13"),
    ],
)
def test_the_page_of_notes_tells(page: Reader, fact: str) -> None:
    assert fact in page.text


@pytest.mark.parametrize("word", ["radiologist", "studies", "report text", "Prevalence"])
def test_the_page_of_notes_says_nothing_of_reports(page: Reader, word: str) -> None:
    assert word not in page.text


def test_every_mark_has_a_title_and_the_page_no_script(page: Reader) -> None:
    marks = [a for tag, a in page.found if tag == "mark"]
    assert len(marks) > 100
    assert all(a.get("title") for a in marks[5:])  # after the key of signs
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.found}
    for sign in ("missed", "type", "border", "agree"):
        assert any(sign in (a.get("class") or "") for a in marks[5:])


def test_without_text_no_note_is_shown_and_the_page_says_why(tmp_path: Path) -> None:
    reader = read(write_page(invent(tmp_path, with_text=False)))
    assert "3 of 3 predictions files hold offsets and types and no words" in reader.text
    assert "Handle it like the notes" not in reader.text
    assert documents(0, "generic")[0].note_id not in reader.text
    assert "mark" not in {tag for tag, _ in reader.found}


def test_without_gallery_no_word_of_a_note_is_in_the_page(notes_run: Path, tmp_path: Path) -> None:
    reader = read(write_page(notes_run, tmp_path / "share.html", gallery=0))
    for item in documents(0, "generic"):
        assert item.note_id not in reader.text
    assert "mark" not in {tag for tag, _ in reader.found}
    assert "Entities by type" in reader.text


def test_a_note_says_how_much_of_it_was_found() -> None:
    first, *_, last = documents(0, "generic")
    for counts in note_counts(first).values():
        assert (counts.fp, counts.fn) == (0, 0)
    assert note_counts(last)["entities"].fn > 0
    assert pick([last, first], 1) == [first]


def test_what_was_not_asked_for_is_not_counted() -> None:
    item = documents(0, "generic")[0]
    assert list(note_counts(item.model_copy(update={"links_gold_heads": None}))) == ["entities"]
    assert list(note_counts(item.model_copy(update={"tasks": ("re",)}))) == ["modifiers"]
    only = note_counts(item.model_copy(update={"annotated": ("drug",)}))
    assert only["entities"].gold == sum(m.label == "drug" for m in set(item.gold_entities))


def test_weights_are_shown_only_where_a_rule_tells_them(notes_run: Path, tmp_path: Path) -> None:
    record = read_record(notes_run)
    plain = [entry.model_copy(update={"rule": {"selected": ["site-1"]}}) for entry in record.rounds]
    record.model_copy(update={"rounds": plain, "evaluations": []}).write(tmp_path / "run.json")
    assert "Weights of the sites" not in read(write_page(tmp_path)).text


def test_the_terminal_shows_the_scores_that_the_run_has(notes_run: Path) -> None:
    rows = rows_of([read_record(notes_run)])
    for width in (80, 140):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(results_table(rows, SHOWN))
        text = console.export_text()
        assert "…" not in text
    for word in ("NER strict", "RE strict F1", "unreadable", "notes"):
        assert word in text
    assert "BLEU" not in text
    assert "studies" not in text
    assert f"{100 * rows[0].metrics['ner_strict_f1'].value:.1f}" in text


def test_fewer_unreadable_outputs_are_better_and_no_value_of_a_control_is(notes_run: Path) -> None:
    rows = [row for row in rows_of([read_record(notes_run)]) if row.site == "site-1"]
    for place, share in enumerate((0.02, 0.3)):
        for name in ("parse_failure_rate", "ner_strict_f1", "label_f1_other_patients"):
            rows[place].metrics[name] = Estimate(value=share, low=share, high=share)
    assert best_rows(rows, "parse_failure_rate") == {0}
    assert best_rows(rows, "ner_strict_f1") == {1}
    assert best_rows(rows, "label_f1_other_patients") == set()
