# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate` on extraction predictions: files, runs, comparisons, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import medflare
from medflare.core.json_lines import write_lines
from medflare.core.run_record import RunRecord, SiteRecord
from medflare.evaluation.extraction_predictions import EntityMention, Link, ScoredDocument
from record_builders import evaluation


def call(*arguments: object) -> Any:
    return medflare("evaluate", *arguments, columns=None)


def facts(*arguments: object) -> dict[str, Any]:
    output = call(*arguments, "--json")
    assert output.exit_code == 0, output.output
    return json.loads(output.stdout)


def notes(site: str, hits: int, adapter: str = "generic", count: int = 12) -> list[ScoredDocument]:
    """`count` notes of which the first `hits` are right."""
    head = EntityMention("problem", ((0, 5),))
    link = Link(head, EntityMention("bodyloc", ((6, 9),)))
    return [
        ScoredDocument(
            note_id=f"n{i}",
            site=site,
            adapter=adapter,
            gold_entities=[head],
            gold_links=[link],
            predicted_entities=[head] if i < hits else [],
            links_gold_heads=[link] if i < hits else [],
            outputs=2,
            faults={"parse_failure": int(i >= hits)},
        )
        for i in range(count)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with two sites that took part, one of them with a personal adapter, and one unseen."""
    record = RunRecord(job="j", method="m", run_id="r", started="2026-01-01T00:00:00Z")
    for site, hits, adapter in [
        ("b", 6, "generic"),
        ("a", 9, "generic"),
        ("b", 12, "personalised"),
        ("z", 3, "generic"),
    ]:
        path = write_lines(tmp_path / "run" / site / f"{adapter}.jsonl", notes(site, hits, adapter))
        record.sites |= {} if site == "z" else {site: SiteRecord(backbone="x", fingerprint="y")}
        # each says that it took part: what counts is whether the record lists the site
        record.evaluations.append(evaluation(site, adapter, 12, predictions=f"{site}/{path.name}"))
    record.write(tmp_path / "run" / "run.json")
    return tmp_path / "run"


def test_a_file_is_scored_by_site_and_together(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [*notes("a", 9), *notes("b", 3)])
    systems = facts(path)["systems"]
    assert [(s["site"], s["role"], s["adapter"], s["notes"]) for s in systems] == [
        ("a", None, "generic", 12), ("b", None, "generic", 12), ("all sites", None, "generic", 24),
    ]  # fmt: skip
    assert [s["metrics"]["ner_strict_recall"]["value"] for s in systems] == [0.75, 0.25, 0.5]
    assert [s["metrics"]["parse_failure_rate"]["value"] for s in systems] == [0.125, 0.375, 0.25]
    assert systems[2]["counts"]["re_gold_strict/bodyloc"] == {"tp": 12, "fp": 0, "fn": 12}
    assert "end to end" in systems[0]["skipped"]["re_e2e"]


def test_several_files_are_several_sites(tmp_path: Path) -> None:
    paths = [write_lines(tmp_path / f"{site}.jsonl", notes(site, 6)) for site in "ab"]
    assert [item["site"] for item in facts(*paths)["systems"]] == ["a", "b", "all sites"]


def test_a_run_says_which_sites_took_part(run: Path) -> None:
    assert [(s["role"], s["site"], s["adapter"]) for s in facts(run)["systems"]] == [
        ("participant", "a", "generic"),
        ("participant", "b", "generic"),
        ("participant", "b", "personalised"),
        ("participant", "all that took part", "generic"),
        ("unseen", "z", "generic"),
    ]


def test_tables_name_types_roles_and_what_is_missing(run: Path) -> None:
    text = call(run).stdout
    for words in (
        "a, generic: entities",
        "modifiers of given heads",
        "problem",
        "bodyloc",
        "generic, unseen",
    ):
        assert words in text
    assert "a, b, all that took part, z: no note is annotated for entities and modifiers" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 100


def test_without_types_only_the_overview_is_shown(run: Path) -> None:
    text = call(run, "--no-types").stdout
    assert "bodyloc" not in text
    assert "personalised, took part" in text


def test_another_system_is_compared_on_the_same_notes(tmp_path: Path) -> None:
    ours = write_lines(tmp_path / "ours.jsonl", [*notes("a", 10), *notes("b", 6)])
    theirs = write_lines(tmp_path / "theirs.jsonl", [*notes("a", 2, "none"), *notes("b", 6, "none")])
    comparisons = facts(ours, "--against", theirs)["comparisons"]
    rows = {(item["site"], item["metric"]): item for item in comparisons}
    assert {site for site, _ in rows} == {"a", "b", "all sites"}
    assert rows["a", "ner_strict_f1"]["value"] == pytest.approx(20 / 22 - 4 / 14)
    assert rows["a", "ner_strict_f1"]["p"] < 0.05 < rows["b", "ner_strict_f1"]["p"] == 1
    assert rows["a", "re_gold_lenient_f1"]["low"] > 0
    assert not any(metric.startswith("re_e2e") for _, metric in rows)
    assert "ours minus theirs.jsonl" in call(ours, "--against", theirs).stdout


def test_a_personal_adapter_is_compared_with_the_only_other_one(run: Path) -> None:
    comparisons = facts(run / "b" / "personalised.jsonl", "--against", run / "b" / "generic.jsonl")[
        "comparisons"
    ]
    assert {(item["ours"], item["theirs"]) for item in comparisons} == {("personalised", "generic")}


def test_comparing_other_notes_is_refused_by_name(tmp_path: Path) -> None:
    ours = write_lines(tmp_path / "ours.jsonl", notes("a", 10))
    fewer = write_lines(tmp_path / "fewer.jsonl", notes("a", 10)[:11])
    other = write_lines(tmp_path / "other.jsonl", notes("b", 10))
    assert "note 'n11' of site 'a' is only in the first" in call(ours, "--against", fewer).stderr
    refused = call(ours, "--against", other)
    assert (refused.exit_code, "no site is in both" in refused.stderr) == (3, True)


def test_reports_need_a_site_file(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    path.write_text('{"study_id": "s", "reference": "x", "generated": "y"}\n', encoding="utf-8")
    refused = call(path)
    assert refused.exit_code == 2
    assert "--site-file" in refused.stderr


def test_predictions_that_stayed_at_the_sites_are_asked_for(run: Path) -> None:
    for path in run.rglob("*.jsonl"):
        path.unlink()
    refused = call(run)
    assert refused.exit_code == 3
    assert "none of its 4 predictions files of the split 'test' is here" in refused.stderr


def test_a_site_whose_file_stayed_there_is_left_out_aloud(run: Path) -> None:
    (run / "a" / "generic.jsonl").unlink()
    output = call(run, "--no-types")
    assert "left out, not here: " in output.stderr
    assert "a/generic.jsonl" in output.stderr
    assert "generic, unseen" in output.stdout


def test_a_site_file_goes_with_one_run(tmp_path: Path) -> None:
    refused = call(tmp_path, tmp_path, "-f", tmp_path / "site.yaml")
    assert (refused.exit_code, "name one run" in refused.stderr) == (2, True)


def test_some_sites_only(run: Path) -> None:
    assert [item["site"] for item in facts(run, "--sites", "z,a")["systems"]] == ["a", "z"]
    refused = call(run, "--sites", "a,q")
    assert (refused.exit_code, "q: not there; there are: a, b, z" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    "option", [("--adapter", "best"), ("--scorer", "chexbert=x"), ("--personalised", "x")]
)
def test_options_of_testing_an_adapter_need_a_site_file(run: Path, option: tuple[str, str]) -> None:
    refused = call(run, *option)
    assert (refused.exit_code, f"{option[0]}: says how to test an adapter" in refused.stderr) == (2, True)
