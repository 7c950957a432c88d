# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals with questions and summaries: facts hold, tests ask in new words, files are whole."""

from __future__ import annotations

import json
import re
import stat
from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from command_line import medflare
from medflare.core.conditions import CONDITIONS, Code
from medflare.core.errors import ConfigError
from medflare.data.load import load_cohort
from medflare.data.partition.texts import TEXT_PARTITIONS
from medflare.data.records import SPLITS, Entity, Note, Question, Relation
from medflare.data.settings.site import load_site_file
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.rule_extraction import PATIENT, RuleExtractor
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.triples import jaccard
from medflare.knowledge.vocabulary import Vocabulary, read_obo
from medflare.labelling.labels import label_report
from medflare.synthetic.knowledge import (
    QuestionsDemo,
    SummariesDemo,
    question_hospitals,
    summary_hospitals,
    write_questions_demo,
    write_summaries_demo,
)
from medflare.synthetic.knowledge.note_summaries import note_terms, summarise_note
from medflare.synthetic.knowledge.obo import chest_terms, terms_of
from medflare.synthetic.knowledge.wordings import wordings
from medflare.synthetic.knowledge.world import RELATIONS, world
from medflare.synthetic.notes.lexicon import lexicon
from medflare.synthetic.notes.profiles import NOTE_STYLES


def test_the_world_has_one_value_for_every_relation_of_a_disease_and_no_name_twice() -> None:
    all_facts = world(8, 10)
    assert len(all_facts.facts) == 10 * 8 * 5
    assert {len(all_facts.of_kind(kind)) for kind in ("disease", *RELATIONS)} == {80}
    names = Counter(name.lower() for _, known in terms_of(all_facts) for name in known)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize(("diseases", "groups"), [(1, 5), (9, 5), (4, 11), (4, 1)])
def test_a_world_larger_than_its_tables_is_refused(diseases: int, groups: int) -> None:
    with pytest.raises(ValueError, match="2 to 10 groups of 2 to 8"):
        world(diseases, groups)


def test_no_split_shares_a_wording_with_another() -> None:
    for splits in wordings().questions.values():
        listed = [wording for split in SPLITS for wording in getattr(splits, split)]
        assert len(set(listed)) == len(listed)
        assert all(re.search(r"\bD\b", wording) for wording in listed)
        assert len(splits.train) >= 4


def asked(method: str = "class", **settings: Any) -> dict[str, list[Question]]:
    return question_hospitals(QuestionsDemo(partition=method, **settings))


def known() -> dict[str, str]:
    """Value -> relation and disease of it."""
    return {fact.value.name: f"{fact.relation} {fact.disease.name}" for fact in world(8, 10).facts}


@pytest.mark.parametrize("method", TEXT_PARTITIONS)
def test_every_question_has_its_fact_as_answer_and_others_of_its_kind_as_options(method: str) -> None:
    meaning = known()
    facts = {(fact.value.name, name) for fact in world(8, 10).facts for name in fact.disease.names}
    for question in (q for own in asked(method).values() for q in own):
        options = [text for _, text in question.options]
        assert len(set(options)) == 4
        assert {meaning[text].split()[0] for text in options} == {meaning[question.answer_text].split()[0]}
        named = question.text.lower()
        assert any(name.lower() in named for value, name in facts if value == question.answer_text)


def test_tests_name_diseases_as_the_vocabulary_prefers_and_training_as_the_house_does() -> None:
    preferred = {fact.value.name: fact.disease.name for fact in world(8, 10).facts}
    every = [q for own in asked(hospitals=6).values() for q in own]

    def plain(question: Question) -> bool:
        return preferred[question.answer_text].lower() in question.text.lower()

    assert all(plain(q) for q in every if q.split != "train")
    assert (
        0.3
        < sum(plain(q) for q in every if q.split == "train") / sum(q.split == "train" for q in every)
        < 0.95
    )


def test_with_dialects_a_hospital_has_one_name_for_each_term_and_tests_have_the_preferred_ones() -> None:
    names = {term.names for kind in ("disease", *RELATIONS) for term in world(3, 8).of_kind(kind)}
    term_of = {name: every for every in names for name in every}
    used = []
    for own in asked("iid", questions=400, dialects=True).values():
        said = {text for q in own if q.split == "train" for _, text in q.options}
        assert len({term_of[text] for text in said}) == len(said), "no term under two names"
        assert all(q.answer_text == term_of[q.answer_text][0] for q in own if q.split == "test")
        used.append(said)
    assert len(set(map(frozenset, used))) == len(used)


def test_the_right_letter_says_nothing() -> None:
    counts = Counter(q.answer for own in asked(questions=400).values() for q in own)
    assert set(counts) == set("ABCD")
    assert max(counts.values()) < 1.25 * min(counts.values())


def test_what_is_tested_anywhere_is_trained_on_somewhere() -> None:
    every = [q for own in asked(hospitals=5, questions=40).values() for q in own]
    trained = {q.answer_text for q in every if q.split == "train"}
    assert {q.answer_text for q in every if q.split != "train"} <= trained


def test_a_hospital_may_be_tested_on_its_own_groups_alone() -> None:
    for own in asked(tested="own").values():
        groups = {q.group for q in own if q.split == "train"}
        assert {q.group for q in own if q.split == "test"} <= groups
    tested = {q.group for q in asked()["site-1"] if q.split == "test"}
    assert tested == set(world(3, 8).groups)


def test_hospitals_differ_in_size_words_and_groups_and_seeds_in_everything() -> None:
    dealt = asked(hospitals=8)
    sizes = sorted(sum(q.split == "train" for q in own) for own in dealt.values())
    assert sizes[-1] > 1.5 * sizes[0]
    first = [{re.sub(r" .*", "", q.text) for q in own if q.split == "train"} for own in dealt.values()]
    assert len({frozenset(words) for words in first}) > 1
    assert dealt == asked(hospitals=8)
    assert dealt != asked(hospitals=8, seed=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"hospitals": 1},
        {"questions": 0},
        {"tested": "none"},
        {"synonyms": 1.5},
        {"method": "clusters"},
        {"method": "dirichlet", "alpha": 0},
    ],
)
def test_settings_that_make_no_hospitals_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        asked(**settings)


@pytest.mark.parametrize("method", TEXT_PARTITIONS)
def test_impressions_say_what_the_findings_say_and_the_gravest_first(method: str) -> None:
    for own in summary_hospitals(SummariesDemo(partition=method, reports=40)).values():
        for summary in own:
            found, told = label_report(summary.source), label_report(summary.target)
            for place, name in enumerate(CONDITIONS[:12]):
                if told[place] in (Code.POSITIVE, Code.UNCERTAIN):
                    assert found[place] == told[place], (name, summary)
            assert not re.search("impression|conclusion|summary", summary.source.lower())
        grave = [
            s.target
            for s in own
            if re.search(r"\b(severe|marked|extensive|large|substantial)\b", s.target.lower())
        ]
        assert all(
            re.match(r".*(severe|marked|extensive|large|substantial)", t.split(". ")[0].lower())
            for t in grave
        )


def test_a_healthy_chest_has_the_houses_closing_words() -> None:
    dealt = summary_hospitals(SummariesDemo(partition="iid", reports=60))
    for own in dealt.values():
        closing = [s for s in own if re.match("(?i)no acute|unremarkable|normal|no significant", s.target)]
        assert closing
        assert all(s.group in UNNAMED and s.target not in s.source for s in closing)


def marked(text: str, *rows: tuple[str, str], links: tuple[tuple[int, int], ...] = ()) -> Note:
    """A note in which the words of `rows` are marked with their types, and some are linked by number."""
    entities = tuple(
        Entity(entity_id=f"T{k}", label=label, spans=((text.index(words), text.index(words) + len(words)),))
        for k, (words, label) in enumerate(rows)
    )
    relations = tuple(Relation(label="is", head=f"T{a}", tail=f"T{b}") for a, b in links)
    return Note(note_id="n", text=text, entities=entities, relations=relations)


def test_a_note_is_summed_up_by_what_the_patient_has_may_have_and_takes() -> None:
    note = marked(
        "His Asthma, no fever, perhaps gout. Mother had COPD. Takes Plavix, stopped heparin.",
        ("His Asthma", "problem"),
        ("fever", "problem"),
        ("no", "negation"),
        ("gout", "problem"),
        ("perhaps", "uncertain"),
        ("COPD", "problem"),
        ("Mother", "subject"),
        ("Plavix", "drug"),
        ("heparin", "drug"),
        ("stopped", "negation"),
        links=((1, 2), (3, 4), (5, 6), (8, 9)),
    )
    frames = NOTE_STYLES["structured"].summary
    assert summarise_note(note, frames) == "PROBLEMS: asthma. RULE OUT: gout. DRUGS: Plavix."
    assert summarise_note(marked("Well today."), frames) == "PROBLEMS: none."


def test_summaries_of_notes_say_what_the_notes_say_in_the_houses_frames() -> None:
    dealt = summary_hospitals(SummariesDemo(kind="notes", hospitals=5, reports=20))
    assert len({own[0].target.split()[0] for own in dealt.values()}) == 5
    for own in dealt.values():
        assert len({summary.group for summary in own}) <= 4
        for summary in own:
            names = re.split(r", |\. ", re.sub(r"\bno\w*\b", "", summary.target.strip(".")))
            assert names[-1].split()[-1].lower() in summary.source.lower()


def test_the_vocabulary_of_notes_names_every_term_once() -> None:
    names = Counter(name.lower() for _, own in note_terms() for name in own)
    assert len(names) > 400
    assert max(names.values()) == 1


def test_splits_of_summaries_are_of_patients_and_all_there() -> None:
    summaries = [s for found in summary_hospitals(SummariesDemo(reports=100)).values() for s in found]
    shares = Counter(summary.split for summary in summaries)
    assert set(shares) == set(SPLITS)
    assert 0.6 < shares["train"] / len(summaries) < 0.8
    placed: dict[str, set[str]] = {}
    for summary in summaries:
        placed.setdefault(summary.repetition_key, set()).add(summary.split)
    assert all(len(splits) == 1 for splits in placed.values())
    assert len(placed) < len(summaries)
    assert len({summary.patient_id for summary in summaries}) == len(summaries)


WRITERS = {"questions": write_questions_demo, "summaries": write_summaries_demo}


@pytest.mark.parametrize("kind", WRITERS)
def test_the_files_are_read_as_they_are_and_graphs_of_like_hospitals_are_alike(
    kind: str, tmp_path: Path
) -> None:
    counts = WRITERS[kind](tmp_path, hospitals=4, partition="class", seed=0)
    sites = load_site_file(tmp_path)
    assert list(counts) == list(sites)
    key = tmp_path / "hospitals.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(bytes.fromhex(key.read_text())) == 32
    extractor = RuleExtractor(Vocabulary(read_obo(tmp_path / "vocabulary.obo")))
    for name, config in sites.items():
        cohort = load_cohort(config)
        records = cohort.questions or cohort.summaries
        assert counts[name] == sum(record.split == "train" for record in records)
        assert not cohort.skipped
        assert config.knowledge is not None
        assert config.knowledge.key == key
        assert len(extractor.graph(text.text for text in knowledge_texts(cohort))) > 20


def test_question_hospitals_without_a_common_group_know_nothing_in_common(tmp_path: Path) -> None:
    """DD-13: with their wrong options such hospitals came out at a distance of 0.7."""
    write_questions_demo(tmp_path, hospitals=4, partition="class", seed=0)
    groups, graphs = {}, {}
    for name, site in load_site_file(tmp_path).items():
        assert site.knowledge is not None
        cohort = load_cohort(site)
        groups[name] = {question.group for question in cohort.questions if question.split == "train"}
        graphs[name] = site_graph(site.knowledge, knowledge_texts(cohort), site.backbone)
        assert 0 < sum(triple.head == PATIENT for triple in graphs[name]) < 0.5 * len(graphs[name])
    apart = [pair for pair in combinations(graphs, 2) if groups[pair[0]].isdisjoint(groups[pair[1]])]
    assert apart
    assert [jaccard(graphs[one], graphs[other]) for one, other in apart] == [0.0] * len(apart)


def test_the_same_words_make_the_same_files_but_for_the_key(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_questions_demo(tmp_path / name, 3, "iid", 5, questions=30)
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    differ = [
        f.name for f in files if (tmp_path / "one" / f).read_bytes() != (tmp_path / "two" / f).read_bytes()
    ]
    assert differ == ["hospitals.key"]


UNNAMED = ("no finding", "support devices")


def test_the_chests_vocabulary_finds_what_every_house_writes(tmp_path: Path) -> None:
    write_summaries_demo(tmp_path, hospitals=9, partition="iid", reports=40)
    vocabulary = Vocabulary(read_obo(tmp_path / "vocabulary.obo"))
    assert len(vocabulary.concepts) == len(chest_terms())
    for config in load_site_file(tmp_path).values():
        texts = [s.target for s in load_cohort(config).summaries if s.group not in UNNAMED]
        named = sum(bool(vocabulary.mentions(text)) for text in texts)
        assert named > 0.9 * len(texts)


def make(*given: object) -> tuple[int, str]:
    result = medflare("cohort", "make", *given, columns=None)
    return result.exit_code, " ".join(result.output.split())


def test_the_command_makes_as_many_hospitals_as_asked(tmp_path: Path) -> None:
    code, shown = make(
        tmp_path, "--questions", "--hospitals", 7, "--partition", "dirichlet", "--records", 30, "--json"
    )
    assert code == 0, shown
    facts = json.loads(shown)["hospitals"]
    assert len(facts) == 7
    assert sum(found["training_questions"] for found in facts.values()) == 7 * 30
    assert make(tmp_path / "s", "--summaries", "--partition", "iid", "--records", 20)[0] == 0
    assert len(load_site_file(tmp_path / "s")) == 3
    assert make(tmp_path / "n", "--summaries", "--notes", "--records", 20)[0] == 0
    summaries = load_cohort(load_site_file(tmp_path / "n")["site-1"]).summaries
    assert {summary.group for summary in summaries} <= set(lexicon().specialties)


REFUSED = {
    "two kinds": (["--questions", "--summaries"], "make different hospitals; give one"),
    "patients": (["--questions", "--patients", 5], "here it is --records"),
    "one hospital": (["--summaries", "--hospitals", 1], "expected 2 or more"),
    "another partition": (["--questions", "--partition", "fair"], "there are iid, class, dirichlet"),
    "notes and questions": (["--questions", "--notes"], "give one, or --summaries with --notes"),
    "no alpha": (["--questions", "--partition", "dirichlet", "--alpha", 0], "must be above 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_command_refuses(case: str, tmp_path: Path) -> None:
    given, message = REFUSED[case]
    code, shown = make(tmp_path, *given)
    assert code == 2
    assert message in shown
