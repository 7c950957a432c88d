# SPDX-License-Identifier: Apache-2.0
"""Questions and summaries: what is read, what is refused with file and line, what stays in one split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import answer, facts
from medflare.core.errors import DataError
from medflare.data.cohort import Cohort
from medflare.data.cohort_summary import summarise
from medflare.data.grouped_split import group_names, split_by_group
from medflare.data.load import load_cohort
from medflare.data.readers import read_source
from medflare.data.records import SPLITS, Question, Summary
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.knowledge.cohort_texts import knowledge_texts
from site_builders import read_cohort

ASKED: dict[str, Any] = {
    "id": "q1",
    "question": "What eases asthma?",
    "options": {"A": "heparin", "B": "salbutamol", "C": "insulin"},
    "answer": "B",
    "site": "pulmonology",
}
READ: dict[str, Any] = {"uid": "r1", "findings": "Left basal opacity.", "impression": "Pneumonia."}


def written(folder: Path, *rows: dict[str, Any] | str, name: str = "rows.jsonl") -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def asked(number: int, **changed: Any) -> dict[str, Any]:
    return {**ASKED, "id": f"q{number}", "question": f"What eases asthma of grade {number}?", **changed}


def read_row(number: int, **changed: Any) -> dict[str, Any]:
    return {**READ, "uid": f"r{number}", "findings": f"Opacity of {number} cm.", **changed}


ANSWERS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a letter": ({}, {}, "B"),
    "a small letter": ({"answer": "b"}, {}, "B"),
    "the option's text": ({"answer": "salbutamol"}, {}, "B"),
    "a list, counted from 0": ({"options": ["x", "y", "z"], "answer": 2}, {"first_index": 0}, "C"),
    "a list, counted from 1": ({"options": ["x", "y", "z"], "answer": "2"}, {"first_index": 1}, "B"),
    "a letter of digits": ({"options": {"1": "x", "2": "y"}, "answer": 2}, {}, "2"),
    "an option without text": ({"options": {"A": "x", "B": "y", "C": None, "D": " "}}, {}, "B"),
    "other columns": (
        {"opa": "x", "opb": "y", "cop": 1},
        {"columns": {"options": ["opa", "opb"], "answer": "cop"}, "first_index": 0},
        "B",
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_the_right_option_is_given_by(case: str, tmp_path: Path) -> None:
    changed, settings, letter = ANSWERS[case]
    folder = written(tmp_path, {**ASKED, **changed})
    question = read_cohort("questions_jsonl", folder, **settings).questions[0]
    assert (question.question_id, question.group, question.answer) == ("q1", "pulmonology", letter)


BAD_QUESTIONS: dict[str, tuple[dict[str, Any], str, str]] = {
    "another letter": ({"answer": "E"}, "answer not among options", "'E' is none of A, B, C"),
    "a number": ({"answer": 1}, "answer not among options", "first_index"),
    "no answer": ({"answer": None}, "answer not among options", "none of A, B, C"),
    "the empty option": ({"options": {"A": "x", "B": "", "C": "z"}}, "answer not among options", "A, C"),
    "one option": ({"options": {"B": "x"}}, "too few options", "two or more"),
    "no options": ({"options": None}, "malformed options", "None"),
    "options as text": ({"options": "x; y"}, "malformed options", "'x; y'"),
    "twice the same": ({"options": {"A": "x", "B": " x "}}, "repeated option", "'x' stands at two letters"),
    "no question": ({"question": " \n"}, "empty question", "'question'"),
    "an id used before": ({"id": "q1"}, "duplicated id", "rows.jsonl:1; the first one is kept"),
    "a strange split": ({"split": "fold 3"}, "unknown split", "'fold 3'"),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
def test_a_bad_question_is_skipped_with_file_and_line(case: str, tmp_path: Path) -> None:
    changed, reason, detail = BAD_QUESTIONS[case]
    folder = written(tmp_path, ASKED, {**asked(2), **changed})
    cohort = read_cohort("questions_jsonl", folder, max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert detail in cohort.skipped[0].detail
    assert "rows.jsonl:2" in cohort.skipped[0].detail
    assert ([question.question_id for question in cohort.questions], cohort.records) == (["q1"], 2)


BAD_SUMMARIES: dict[str, tuple[dict[str, Any] | str, str, str]] = {
    "no findings": (read_row(2, findings=None), "empty source", "'findings'"),
    "no impression": (read_row(2, impression=" "), "empty target", "'impression'"),
    "an id used before": (read_row(1), "duplicated id", "rows.jsonl:1"),
    "no JSON": ("{", "unreadable row", "line 2 is not JSON"),
    "no object": ("[1]", "unreadable row", "line 2 is not a JSON object"),
}


@pytest.mark.parametrize("case", BAD_SUMMARIES)
def test_a_bad_summary_is_skipped_with_file_and_line(case: str, tmp_path: Path) -> None:
    row, reason, detail = BAD_SUMMARIES[case]
    cohort = read_cohort("summaries_jsonl", written(tmp_path, READ, row), max_skipped=0.5)
    assert [item.reason for item in cohort.skipped] == [reason]
    assert detail in cohort.skipped[0].detail
    assert [summary.summary_id for summary in cohort.summaries] == ["r1"]


def test_too_many_bad_rows_stop_the_site(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"1 of 2 records cannot be used, allowed are 5.0% \(too few options"):
        read_cohort("questions_jsonl", written(tmp_path, ASKED, asked(2, options=["x"])))


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'source' should be column 'source'.*Columns found: uid, note"):
        read_cohort("summaries_jsonl", written(tmp_path, {"uid": "r1", "note": "x", "impression": "y"}))
    with pytest.raises(DataError, match=r"'select' names 'sites' .did you mean 'site'"):
        read_cohort("questions_jsonl", written(tmp_path, ASKED), select={"sites": "x"})


def test_settings_of_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="questions_jsonl does not read most_masks"):
        CohortConfig(format="questions_jsonl", root=tmp_path, most_masks=1)
    with pytest.raises(ValueError, match="summaries_jsonl does not read first_index"):
        CohortConfig(format="summaries_jsonl", root=tmp_path, first_index=1)


def test_select_keeps_a_subject(tmp_path: Path) -> None:
    folder = written(tmp_path, asked(1), asked(2, site="dental"), asked(3))
    cohort = read_cohort("questions_jsonl", folder, select={"site": "pulmonology"})
    assert [question.question_id for question in cohort.questions] == ["q1", "q3"]


def test_a_file_is_its_split_unless_the_site_says_no(tmp_path: Path) -> None:
    written(tmp_path, asked(1), name="train.jsonl")
    written(tmp_path, asked(2), name="dev.jsonl")
    assert [q.split for q in read_cohort("questions_jsonl", tmp_path).questions] == ["val", "train"]
    source = read_source(CohortConfig(format="questions_jsonl", root=tmp_path, columns={"split": None}))
    assert not source.has_split


def test_white_space_is_tidied_and_masks_stay(tmp_path: Path) -> None:
    row = read_row(1, findings="Heart  is XXXX.\r\n\r\n\r\n\tLungs clear. ", impression="No XXXX change.")
    summary = read_cohort("summaries_jsonl", written(tmp_path, row)).summaries[0]
    assert (summary.source, summary.target) == ("Heart is XXXX.\n\nLungs clear.", "No XXXX change.")


def test_rows_with_many_masks_are_left_out_and_are_no_faults(tmp_path: Path) -> None:
    rows = [read_row(1, impression="XXXX ___"), read_row(2, impression="x-XXXX"), read_row(3)]
    cohort = read_cohort("summaries_jsonl", written(tmp_path, *rows), most_masks=1, max_skipped=0)
    facts = summarise(cohort)
    assert [summary.summary_id for summary in cohort.summaries] == ["r2", "r3"]
    assert (facts["records"], facts["skipped"], facts["summarised"]["masked"]) == (3, {}, 1)
    assert facts["summarised"]["changed"] == {"too_masked": 1}


def repeats(tmp_path: Path, **settings: Any) -> Cohort:
    """200 summaries of which every text stands four times, in another case and with other spaces."""
    rows = [
        read_row(i, findings=f"{'Opacity' if i % 2 else 'opacity '} {i // 4} cm.", patient_id=f"p{i}")
        for i in range(200)
    ]
    return read_cohort("summaries_jsonl", written(tmp_path, *rows), **settings)


def one_split_for_each_text(*cohorts: Cohort) -> bool:
    """Whether summaries with the same words are in the same split."""
    placed = {(summary.repetition_key, summary.split) for own in cohorts for summary in own.summaries}
    return len({key for key, _ in placed}) == len(placed)


def test_texts_that_repeat_each_other_are_in_one_split_and_counted(tmp_path: Path) -> None:
    cohort = repeats(tmp_path)
    assert one_split_for_each_text(cohort)
    assert {summary.split for summary in cohort.summaries} == set(SPLITS)
    assert summarise(cohort)["summarised"]["repeated"] == 150


def test_a_source_that_puts_a_text_in_two_splits_is_put_right(tmp_path: Path) -> None:
    rows = [read_row(i, findings="Same.", split=split) for i, split in enumerate(["train", "test", "train"])]
    cohort = read_cohort("summaries_jsonl", written(tmp_path, *rows))
    assert {summary.split for summary in cohort.summaries} == {"train"}
    assert summarise(cohort)["summarised"]["changed"] == {"groups_moved": 1}


def summary(number: int, text: str, patient: str, split: str = "") -> Summary:
    return Summary(summary_id=f"s{number}", source=text, target="x", patient_id=patient, split=split)


def test_records_hang_together_through_patients_and_words() -> None:
    chain = [summary(1, "a", "p1"), summary(2, "b", "p1"), summary(3, "b", "p2"), summary(4, "c", "p3")]
    names = group_names(chain)
    assert names[0] == names[1] == names[2] != names[3]
    assert sorted(group_names(chain[::-1])) == sorted(names)


def test_what_hangs_together_in_great_number_is_trained_on() -> None:
    config = CohortConfig(format="summaries_jsonl", root=Path("x"))
    for seed in range(20):
        shares = config.split.model_copy(update={"seed": seed})
        records = [summary(i, "normal" if i < 30 else f"text {i}", f"p{i}") for i in range(100)]
        placed, _ = split_by_group(records, False, shares)
        assert {record.split for record in placed[:30]} == {"train"}


def test_equal_words_with_another_answer_are_no_repeat() -> None:
    options = (("A", "x"), ("B", "y"))
    one, other = (
        Question(question_id=letter, text="True is:", options=options, answer=letter) for letter in "AB"
    )
    assert one.repetition_key != other.repetition_key


def test_several_sources_are_pooled_with_ids_apart_and_one_split_for_a_text(tmp_path: Path) -> None:
    for name, split in (("one", "train"), ("two", "test")):
        (tmp_path / name).mkdir()
        written(tmp_path / name, asked(1, split=split), asked(2, split=split, question=f"Only {name}?"))
    parts = tuple(CohortConfig(format="questions_jsonl", root=tmp_path / name) for name in ("one", "two"))
    cohort = load_cohort(SiteConfig(cohort=parts))
    placed = {question.question_id: question.split for question in cohort.questions}
    assert placed == {"0/q1": "test", "0/q2": "train", "1/q1": "test", "1/q2": "test"}
    assert cohort.texts.groups_moved == 1


def test_a_limit_takes_whole_groups_of_repeats(tmp_path: Path) -> None:
    cohort = repeats(tmp_path, limit=18)
    assert len(cohort.summaries) == 16
    assert len({summary.repetition_key for summary in cohort.summaries}) == 4


def test_the_graph_is_made_of_the_training_texts(tmp_path: Path) -> None:
    written(tmp_path, asked(1, split="train"), asked(2, split="test"))
    (text,) = knowledge_texts(read_cohort("questions_jsonl", tmp_path))
    assert text == ("What eases asthma of grade 1: salbutamol.", False)
    written(tmp_path, asked(1, question="Asthma is treated with:", split="train"))
    (text,) = knowledge_texts(read_cohort("questions_jsonl", tmp_path))
    assert text.text == "Asthma is treated with salbutamol."
    with pytest.raises(ValueError, match="no split 'dev'"):
        knowledge_texts(read_cohort("questions_jsonl", tmp_path), "dev")


def test_inspect_counts_groups_letters_and_repeats(tmp_path: Path) -> None:
    folder = written(
        tmp_path, asked(1), asked(2), asked(3, question="What eases asthma of grade 2?", site="")
    )
    given = ["cohort", "inspect", folder, "--format", "questions_jsonl"]
    summary = facts(*given)
    assert (summary["questions"], summary["asked"]["groups"]) == (3, {"pulmonology": 2, "none": 1})
    assert (summary["asked"]["answers"], summary["asked"]["repeated"]) == ({"B": 3}, 1)
    shown = answer(*given)
    assert "pulmonology 2, none 1" in shown
    assert "repeated" in shown


def test_inspect_knows_a_folder_by_the_names_of_its_files(tmp_path: Path) -> None:
    written(tmp_path, READ, name="summaries.jsonl")
    summary = facts("cohort", "inspect", tmp_path)
    assert (summary["patients"], summary["summaries"], summary["splits"]["train"]["summaries"]) == (1, 1, 1)


def test_an_empty_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected tables of texts .* the folder holds nothing"):
        read_cohort("questions_jsonl", tmp_path)
    with pytest.raises(DataError, match="Columns found: none"):
        read_cohort("questions_jsonl", written(tmp_path, ""))


REAL = {
    "medqa": ("questions_jsonl", "qa/medqa_us_dev.jsonl", {}, 1272, 1272),
    "medmcqa": ("questions_jsonl", "qa/medmcqa_half.jsonl", {}, 2091, 2078),
    "physiology": ("questions_jsonl", "qa/medmcqa_half.jsonl", {"select": {"site": "Physiology"}}, 77, 77),
    "iu": ("summaries_jsonl", "iu_reports", {"columns": {"split": None}, "max_skipped": 0.15}, 2970, 2558),
}


@pytest.mark.parametrize("name", REAL)
def test_public_sets_are_read_whole(name: str, public_data: Path) -> None:
    format, place, settings, records, usable = REAL[name]
    cohort = read_cohort(format, public_data / place, **settings)
    assert (cohort.records, len(cohort.questions) + len(cohort.summaries)) == (records, usable)
    assert {item.split for item in (*cohort.questions, *cohort.summaries)} == set(SPLITS)


def test_indiana_reports_repeat_each_other_within_one_split(public_data: Path) -> None:
    format, place, settings, *_ = REAL["iu"]
    cohort = read_cohort(format, public_data / place, **settings)
    assert one_split_for_each_text(cohort)
    facts = summarise(cohort)["summarised"]
    assert (facts["repeated"], facts["masked"]) == (483, 1218)


def test_a_text_has_the_same_split_at_every_hospital(public_data: Path) -> None:
    settings: dict[str, Any] = {"columns": {"split": None}, "max_skipped": 0.2}
    families = [{"device_family": family} for family in ("fuji_cr", "unknown", "pixium_dr")]
    folder = public_data / "iu_reports"
    cohorts = [read_cohort("summaries_jsonl", folder, select=one, **settings) for one in families]
    assert one_split_for_each_text(*cohorts)
