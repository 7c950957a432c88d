# SPDX-License-Identifier: Apache-2.0
"""Sketches of knowledge graphs through controller and executors: what leaves, what stays, who is left out."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from fed_harness import Federation, Make, completed, failed, ledger
from fed_knowing import SITES, KnowingHospitals
from fed_quadratic import QuadraticLearner, use_site_files

from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site
from medflare.egress.declaration import fact_problems
from medflare.egress.failures import Failure, FailureCode
from medflare.federation.flare_messages import failure_reply
from medflare.knowledge.cohort_texts import knowledge_texts
from medflare.knowledge.divergence import distance_matrix
from medflare.knowledge.sketch_key import SketchKey
from medflare.knowledge.triples import jaccard
from medflare.worker import sketch as site_sketch
from medflare.worker.sketch import SketchRequest, cached_sketch, sketch_facts

TERMS = ("asthma", "pneumonia", "angina", "migraine", "anaemia", "fever", "cough", "headache", "aspirin")
SETTINGS = {"draws": 4, "period": 2}


def vocabulary(file: Path) -> None:
    entries = [f"[Term]\nid: T:{i}\nname: {name}\n" for i, name in enumerate(TERMS)]
    file.write_text("format-version: 1.2\n\n" + "\n".join(entries), encoding="utf-8")


def question(number: int, head: str, tail: str) -> str:
    text = f"Which disease is it that in patient {number} causes {tail}, if {head} causes {tail}"
    options = {"A": head, "B": "nothing known", "C": f"none of these {number}"}
    return json.dumps(
        {"id": str(number), "question": text, "options": options, "answer": "A", "split": "train"}
    )


FACTS = {
    "site-1": [("asthma", "cough"), ("pneumonia", "cough"), ("pneumonia", "fever"), ("angina", "headache")],
    "site-2": [("asthma", "cough"), ("pneumonia", "cough"), ("pneumonia", "fever"), ("migraine", "headache")],
    "site-3": [("migraine", "headache"), ("anaemia", "headache"), ("angina", "fever"), ("aspirin", "cough")],
}


class Hospitals(KnowingHospitals):
    """Graphs are found in questions, with a vocabulary of a few terms."""

    knowledge: ClassVar[dict[str, Any]] = {"vocabulary": "terms.obo", "together": 0}

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        for site in SITES:
            vocabulary(self.folder(site) / "terms.obo")
            self.know(site, FACTS[site])

    def know(self, site: str, facts: list[tuple[str, str]]) -> None:
        self.ask(site, [question(i, head, tail) for i, (head, tail) in enumerate(facts)])


@pytest.fixture
def hospitals(federation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Hospitals, Make]:
    """The hospitals, and runs of quadratic learners over them."""
    use_site_files(monkeypatch)
    cohorts = Hospitals(tmp_path / "run1")

    def make(rule: str = "ddcs", tamper: Any = None, settings: Any = None, **controller: Any) -> Federation:
        given = {**SETTINGS, **(settings or {})} if rule == "ddcs" else {}
        return federation(
            learner=QuadraticLearner,
            controller={"num_rounds": 2, "seed": 7, **controller},
            rule={"rule": rule, "rule_settings": given},
            tamper=tamper,
        )

    return cohorts, make


def sketches(run: Federation) -> dict[str, Any]:
    """Runs it; what the record says of the sketches."""
    report: dict[str, Any] = completed(run).preparation["sketches"]
    return report


def test_the_distances_are_those_of_the_graphs_and_the_odds_heed_them(hospitals) -> None:
    cohorts, run = hospitals
    record = completed(run(settings={"draws": 2, "epsilon": 0.2}))
    report = record.preparation["sketches"]
    assert report["distances"]["order"] == list(SITES)
    graphs = {site: cohorts.graph(site) for site in SITES}
    for i, one in enumerate(SITES):
        for j, other in enumerate(SITES):
            exact = 0.0 if i == j else 1 - jaccard(graphs[one], graphs[other])
            assert report["distances"]["matrix"][i][j] == pytest.approx(exact, abs=0.06)
    assert report["distances"]["matrix"][0][1] < report["distances"]["matrix"][0][2]
    assert record.rounds[0].rule["solution"]["divergence"] > 0
    assert report["sites"]["site-1"] == {"texts": 4, "empty": False, "bytes": 4122}
    assert report["without"] == {}


def test_a_sketch_is_in_the_ledger_with_its_bytes_and_nothing_textual_leaves(hospitals) -> None:
    _, run = hospitals
    made = run()
    completed(made)
    first = ledger(made, "site-1", "sketch")[0]
    assert (first.event, first.sketch["bytes"], first.round) == ("sent", 4122, -1)
    assert sorted(first.facts) == ["examples", "seconds", "sketch", "state", "vocabulary"]
    text = (made.site_folder("site-1") / "egress.jsonl").read_text(encoding="utf-8")
    assert not [term for term in TERMS if term in text]


def test_the_key_and_the_texts_are_in_no_message_and_no_record(hospitals) -> None:
    cohorts, run = hospitals
    seen: list[str] = []
    federation = run(tamper=lambda site, task, reply: seen.append(str(reply)) if task == "sketch" else None)
    record = completed(federation)
    everything_sent = "".join(seen) + record.model_dump_json() + (federation.folder / "run.json").read_text()
    state = "".join(p.read_bytes().hex() for p in (federation.folder / "state").rglob("*") if p.is_file())
    assert cohorts.secret not in everything_sent
    assert cohorts.secret.encode().hex() not in state
    assert "asthma" not in everything_sent


def test_a_site_whose_policy_says_no_is_at_the_typical_distance_and_named(hospitals) -> None:
    cohorts, run = hospitals
    cohorts.write("site-3", knowledge_sketch="deny")
    federation = run()
    report = sketches(federation)
    assert (
        "policy.knowledge_sketch: no sketch of the knowledge graph may leave" in report["without"]["site-3"]
    )
    assert set(report["sites"]) == {"site-1", "site-2"}
    matrix = report["distances"]["matrix"]
    assert matrix[0][2] == matrix[1][2] == matrix[0][1]
    assert {line.event for line in ledger(federation, "site-3", "sketch")} == {"blocked", "failure"}
    assert not list((cohorts.root / "site-3").rglob("*.sketch")), "a refused sketch is not even made"


def test_few_texts_stay_where_the_policy_asks_for_more(hospitals) -> None:
    cohorts, run = hospitals
    cohorts.write("site-1", min_examples=5)
    report = sketches(run())
    assert "policy.min_examples: a sketch is about fewer than 5 examples" in report["without"]["site-1"]


def test_a_site_without_the_block_sends_none_and_without_any_time_alone_counts(hospitals) -> None:
    cohorts, run = hospitals
    for site in SITES:
        cohorts.write(site, knowledge=False)
    record = completed(run())
    report = record.preparation["sketches"]
    assert report["without"] == dict.fromkeys(SITES, "site.yaml has no block `knowledge`")
    assert "distances" not in report
    assert record.rounds[0].rule["solution"]["divergence"] == 0


def test_a_site_with_another_key_is_left_out_and_named(hospitals) -> None:
    cohorts, run = hospitals
    cohorts.write("site-2", secret=SketchKey.new_secret().hex())
    report = sketches(run())
    assert set(report["sites"]) == {"site-1", "site-3"}
    assert "cannot be compared with that of 'site-1' (k = 1024, set, key " in report["without"]["site-2"]


@pytest.mark.parametrize("other", ["vocabulary", "align", ""])
def test_a_site_with_another_vocabulary_or_setting_align_is_named_and_stays_in(hospitals, other: str) -> None:
    cohorts, run = hospitals
    if other == "vocabulary":
        with (cohorts.folder("site-3") / "terms.obo").open("a", encoding="utf-8") as terms:
            terms.write("\n[Term]\nid: T:99\nname: gout\n")
    elif other == "align":
        file = cohorts.folder("site-3") / "site.yaml"
        settings = yaml.safe_load(file.read_text(encoding="utf-8"))
        settings["knowledge"]["align"] = False
        file.write_text(yaml.safe_dump(settings), encoding="utf-8")
    report = sketches(run())
    assert report["other_vocabulary"] == (["site-3"] if other else [])
    assert set(report["sites"]) == set(SITES)


def test_where_every_site_has_a_key_of_its_own_the_run_says_so_before_anybody_trains(hospitals) -> None:
    cohorts, run = hospitals
    for site in SITES:
        cohorts.write(site, secret=SketchKey.new_secret().hex())
    record = failed(
        run(), "no two sketches of knowledge graphs can be compared", "Give all sites the same key file"
    )
    assert record.rounds == []


def test_a_key_that_cannot_be_read_is_the_sites_secret_and_not_told(hospitals) -> None:
    cohorts, run = hospitals
    cohorts.write("site-1", secret="not a key")
    federation = run()
    report = sketches(federation)
    assert report["without"]["site-1"].startswith("E20 SiteSettingsError: Details are in worker.log")
    assert str(cohorts.root) not in report["without"]["site-1"]


def test_sites_sketch_again_when_their_data_grew_and_not_before(hospitals) -> None:
    cohorts, run = hospitals

    def grow(site: str, task: str, reply: Any) -> None:
        if (site, task) == ("site-2", "fit"):
            cohorts.know("site-2", [*FACTS["site-2"], *FACTS["site-3"]])

    federation = run(num_rounds=5, settings={"draws": 60}, tamper=grow)
    report = sketches(federation)
    assert [(item["exchange"], item["site"], item["texts"]) for item in report["renewed"]] == [
        (2, "site-2", 8)
    ]
    assert 0.2 < report["renewed"][0]["moved"] < 0.5
    assert [len(line.sketch) > 0 for line in ledger(federation, "site-2", "sketch")] == [True, True, False]
    assert [line.round for line in ledger(federation, "site-1", "sketch")] == [-1, 2, 4]
    assert [len(line.sketch) > 0 for line in ledger(federation, "site-1", "sketch")] == [True, False, False]


def test_the_site_decides_how_often_another_sketch_leaves_whatever_the_server_asks(
    hospitals, tmp_path: Path
) -> None:
    cohorts, _ = hospitals

    def answer(exchange: int, held: int | None, growth: float, run_id: str = "run") -> dict[str, Any]:
        site = load_site(cohorts.folder("site-1") / "site.yaml", "site-1")
        request = SketchRequest(exchange, held, growth)
        return sketch_facts(site, tmp_path / "state", tmp_path / "cache", run_id, request)

    many = [(head, tail) for head in TERMS[:5] for tail in TERMS[5:8]]
    cohorts.know("site-1", many[:10])
    first = answer(-1, None, 0.0)
    assert (first["state"], first["examples"]) == ("new", 10)
    cohorts.know("site-1", many[:11])
    assert answer(2, -1, 0.0) == {"state": "same"}
    assert answer(4, None, 0.0) == first == answer(6, None, float("nan"))
    cohorts.know("site-1", many[:12])
    assert answer(8, 6, 0.5) == {"state": "same"}
    second = answer(10, 6, 0.0)
    assert (second["examples"], second["sketch"] == first["sketch"]) == (12, False)
    assert answer(12, 6, 0.1) == second, "the second one was lost on its way"
    assert answer(14, 12, 0.1) == {"state": "same"}
    cohorts.know("site-1", many[:13])
    cohorts.write("site-1", secret=SketchKey.new_secret().hex())
    assert answer(16, 12, 0.1)["examples"] == 13, "under another key nothing can be compared"
    cohorts.know("site-1", many)
    assert answer(-1, None, 0.1, "another run")["examples"] == 15


def test_a_sketch_that_was_lost_on_its_way_is_sent_again(hospitals) -> None:
    cohorts, run = hospitals

    def lose(site: str, task: str, reply: Any) -> Any:
        if (site, task) == ("site-2", "fit"):
            cohorts.know("site-2", [*FACTS["site-2"], *FACTS["site-3"]])
        if (site, task) == ("site-2", "sketch"):
            asked.append(task)
        second = (site, task, len(asked)) == ("site-2", "sketch", 2)
        return failure_reply(Failure(FailureCode.UNEXPECTED, "lost"), 2) if second else None

    asked: list[str] = []
    federation = run(num_rounds=5, settings={"draws": 60}, tamper=lose)
    report = sketches(federation)
    assert [(item["exchange"], item["site"], item["texts"]) for item in report["renewed"]] == [
        (4, "site-2", 8)
    ]
    digests = [line.sketch.get("sha256") for line in ledger(federation, "site-2", "sketch")]
    assert digests[0] != digests[1] == digests[2]


def test_a_sketch_is_made_once_for_the_same_data_and_again_for_others(
    hospitals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cohorts, _ = hospitals
    settings = load_site(cohorts.folder("site-1") / "site.yaml", "site-1")
    config, texts = settings.knowledge, knowledge_texts(load_cohort(settings))
    assert config is not None
    first = cached_sketch(config, texts, settings.backbone, tmp_path)
    with monkeypatch.context() as patch:
        patch.delattr(site_sketch, "site_sketch")
        again = cached_sketch(config, texts, settings.backbone, tmp_path)
        assert again.to_bytes() == first.to_bytes()
        with pytest.raises(NameError):
            cached_sketch(config, texts[:-1], settings.backbone, tmp_path)
        config.vocabulary[0].write_text("[Term]\nid: T:0\nname: gout\n", encoding="utf-8")
        with pytest.raises(NameError):
            cached_sketch(config, texts, settings.backbone, tmp_path)
    assert cached_sketch(config, texts, settings.backbone, tmp_path).empty
    broken = next(tmp_path.glob("sketches/*.sketch"))
    broken.write_bytes(b"half")
    assert cached_sketch(config, texts, settings.backbone, tmp_path).empty


def test_an_empty_graph_is_at_distance_one_and_the_run_goes_on(hospitals) -> None:
    cohorts, run = hospitals
    (cohorts.folder("site-3") / "questions.jsonl").write_text(
        json.dumps(
            {"id": "x", "question": "Which day is it", "options": ["Monday", "Tuesday"], "answer": "Monday"}
        )
        + "\n",
        encoding="utf-8",
    )
    report = sketches(run())
    assert report["sites"]["site-3"]["empty"]
    assert report["distances"]["matrix"][2] == [1.0, 1.0, 0.0]


def test_rules_that_need_no_sketch_ask_for_none(hospitals) -> None:
    _, run = hospitals
    federation = run("uniform_selection")
    assert "sketches" not in completed(federation).preparation
    assert ledger(federation, "site-1", "sketch") == []


def test_under_masks_sketches_are_seen_and_updates_are_not(hospitals) -> None:
    _, run = hospitals
    federation = run(protection="masking", settings={"draws": 6})
    record = completed(federation)
    assert set(record.preparation["sketches"]["sites"]) == set(SITES)
    assert all(len(entry.rule["drawn"]) == 3 for entry in record.rounds)
    assert {tuple(line.protections) for line in ledger(federation, "site-1", "fit")} == {("mask",)}


def test_under_encryption_the_rule_is_refused_before_anything_is_asked(hospitals) -> None:
    _, run = hospitals
    federation = run(protection="he")
    failed(federation, "ddcs")
    assert not (federation.site_folder("site-1") / "egress.jsonl").exists()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"state": "perhaps"}, "fact 'state' of another kind"),
        ({"state": "none", "sketch": "AAAA"}, "fact 'sketch' beside a state that has none"),
        ({"state": "same", "vocabulary": "0" * 16}, "fact 'vocabulary' beside a state that has none"),
        ({"state": "new", "sketch": "patients!"}, "fact 'sketch' that is no sketch"),
        (
            {"state": "new", "sketch": base64.b64encode(b"John Doe" * 40).decode()},
            "fact 'sketch' that is no sketch",
        ),
        ({"state": "new", "sketch": 5}, "fact 'sketch' that is no sketch"),
        ({"state": "none", "triples": 5}, "fact 'triples'"),
    ],
)
def test_what_is_no_sketch_does_not_leave(facts: dict[str, Any], message: str) -> None:
    assert fact_problems("sketch", facts, "site-1") == [message]


def test_distances_of_the_record_are_the_rules(hospitals) -> None:
    _, run = hospitals
    federation = run()
    report = sketches(federation)
    held = federation.aggregator.rule.known.sketches
    assert report["distances"]["matrix"] == distance_matrix(held, SITES).round(4).tolist()
