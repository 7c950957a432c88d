# SPDX-License-Identifier: Apache-2.0
"""`medflare evaluate RUN -f site.yaml` on any folder in BRAT's format that took no part in the run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from command_line import answer, facts, medflare, refusal
from medflare.core.run_record import ComparisonRecord, RunRecord, SiteRecord, read_record
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.learner import build
from medflare.recipes import after_run
from medflare.recipes.result_origin import origin_of
from site_builders import write_result

NOTES = {
    "plain": ("No fever.\n", "T1\tproblem 3 8\tfever\nT2\tnegation 0 2\tNo\nR1\thasAttr Arg1:T1 Arg2:T2\n"),
    "discontinuous": (
        "Pain in arm and leg.\n", "T1\tproblem 0 4;16 19\tPain leg\nT2\tproblem 0 11\tPain in arm\n"),
    "line_ends_of_windows": (
        "Cough.\r\nNo fever.\r\n", "T1\tproblem 0 5\tCough\r\nT2\tproblem 11 16\tfever\r\n"),
    "nothing_marked": ("Doing well today.\n", ""),
    "unicode": ("Fièvre 39,5 °C – 肺炎 🫀.\n", "T1\tproblem 0 6\tFièvre\nT2\tproblem 17 19\t肺炎\n"),
    "attributes": (
        "Denies pain.\n", "T1\tproblem 7 11\tpain\nA1\tNegation T1\n#1\tAnnotatorNotes T1\tsure\n"),
}  # fmt: skip


RELATIONS_FIRST = (
    "R1\thasAttr Arg2:T2 Arg1:T1\nA1\tCertainty T1 high\nT2\tnegation 0 2\tNo\n"
    "*\tEquiv T1 T2\nT1\tproblem 3 8\tfever\n"
)
NESTED = {
    "ward/2024/mark": ("\ufeffPain.\n", "T1\tproblem 0 4\tPain\n"),
    "ward/2024/crlf of a checkout": ("Cough.\r\n\r\nPain.\r\n", "T1\tproblem 8 12\tPain\r\n"),
    "ward/order": ("No fever.\n", RELATIONS_FIRST),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run as a server leaves it, of an adapter that was never trained."""
    folder = tmp_path_factory.mktemp("run")
    cohort = CohortConfig(format="brat", root=write_notes(folder / "train"))
    site = SiteConfig(name="site-1", cohort=(cohort,))
    learner = build(
        {"decoding": "copy", "max_tokens": 512, "lora": {"rank": 2, "targets": ["q_proj"]}}, site, 0
    )
    write_result(folder / "result", learner, fingerprint=learner.model.backbone.fingerprint)
    record = RunRecord(job="fed_medlora", method="fed_medlora", run_id="r", started="2026-01-01T00:00:00Z")
    record.sites["site-1"] = SiteRecord(
        backbone="medflare-embedded-notes", fingerprint=learner.model.backbone.fingerprint
    )
    record.artefacts["final"] = "result/adapter"
    record.write(folder / "run.json")
    return folder


def write_notes(folder: Path, **more: tuple[str, str | None]) -> Path:
    folder.mkdir(parents=True)
    for name, (text, annotation) in {**NOTES, **more}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.txt").write_bytes(text.encode())
        if annotation is not None:
            (folder / f"{name}.ann").write_bytes(annotation.encode())
    return folder


def site_file(folder: Path, **cohort: Any) -> Path:
    path = folder / "site.yaml"
    site = {"cohort": {"format": "brat", "root": "sealed", **cohort}, "threads": 1}
    path.write_text(json.dumps({"sites": {"new-hospital": site}}))  # JSON is YAML
    return path


def test_every_note_of_a_new_folder_is_tested(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    (tested,) = facts("evaluate", run, "-f", site_file(tmp_path), "--split", "all")
    assert (tested["studies"], tested["role"], tested["split"]) == (len(NOTES), "unseen", "all")
    assert {"ner_strict_f1", "ner_lenient_f1", "re_gold_strict_f1", "re_e2e_strict_f1"} <= set(
        tested["metrics"]
    )
    assert tested["metrics"]["parse_failure_rate"]["value"] == 0
    lines = (run / tested["predictions"]).read_text(encoding="utf-8").splitlines()
    gold = {row["note_id"]: row["gold_entities"] for row in map(json.loads, lines)}
    assert {name: len(marks) for name, marks in gold.items()} == {
        "plain": 1, "discontinuous": 2, "line_ends_of_windows": 2, "nothing_marked": 0, "unicode": 2,
        "attributes": 1,
    }  # fmt: skip
    assert [[0, 4], [16, 19]] in [mark["spans"] for mark in gold["discontinuous"]]


def test_a_new_folder_needs_no_option(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    (tested,) = facts("evaluate", run, "-f", site_file(tmp_path))
    assert (tested["studies"], tested["role"], tested["split"]) == (len(NOTES), "unseen", "test")


def test_notes_that_are_not_tested_are_counted(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_notes(tmp_path / "sealed")
    shares = {"train": 0.5, "val": 0, "test": 0.5}
    answered = medflare("evaluate", run, "-f", site_file(tmp_path, split=shares))
    assert answered.exit_code == 0
    assert "of its note(s) are not tested" in caplog.text
    assert "--split all" in caplog.text


def test_a_stranger_s_layout_and_a_run_that_was_copied(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders within folders, spaces, BRAT's own files, another working directory, no site name."""
    folder = write_notes(tmp_path / "sealed set", **NESTED)
    (folder / "annotation.conf").write_text("[entities]\nproblem\n")
    (folder / "ward" / ".stats_cache").write_bytes(b"\x80")
    (tmp_path / "site.yaml").write_text("cohort: {format: brat, root: sealed set}\n")
    copied = shutil.copytree(run, tmp_path / "copied run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tested,) = facts("evaluate", Path("../copied run"), "-f", Path("../site.yaml"))
    assert (tested["site"], tested["role"], tested["studies"]) == ("unnamed", "unseen", len(NOTES) + 3)
    rows = (copied / tested["predictions"]).read_text(encoding="utf-8").splitlines()
    gold = {row["note_id"]: row for row in map(json.loads, rows)}
    assert [len(gold[name]["gold_entities"]) for name in NESTED] == [1, 1, 1]
    assert len(gold["ward/order"]["gold_links"]) == 1


def test_a_site_with_the_name_of_a_participant_is_named(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_notes(tmp_path / "sealed")
    (tmp_path / "site.yaml").write_text("cohort: {format: brat, root: sealed}\n")
    copied = shutil.copytree(run, tmp_path / "copied run")
    answer("evaluate", copied, "-f", tmp_path / "site.yaml", "--sites", "site-1", "--limit", "1")
    assert "'site-1' may have trained this model" in caplog.text


def test_a_type_of_no_inventory_is_named_and_may_be_mapped(run: Path, tmp_path: Path) -> None:
    write_notes(
        tmp_path / "sealed", other=("Anna has pain.\n", "T1\tPerson 0 4\tAnna\nT2\tproblem 9 13\tpain\n")
    )
    message = refusal(3, "evaluate", run, "-f", site_file(tmp_path))
    assert "'Person', which is no type of the inventory; say in 'label_map'" in message
    (tested,) = facts("evaluate", run, "-f", site_file(tmp_path, label_map={"Person": None}), "--limit", "99")
    assert tested["studies"] == len(NOTES) + 1


def test_a_split_of_all_test_notes_needs_no_option(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    file = site_file(tmp_path, split={"train": 0, "val": 0, "test": 1})
    (tested,) = facts("evaluate", run, "-f", file)
    assert (tested["studies"], tested["split"]) == (len(NOTES), "test")


def test_a_note_without_annotation_is_named_and_may_be_left_out(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed", missing=("No annotation file.\n", None))
    message = refusal(3, "evaluate", run, "-f", site_file(tmp_path), "--split", "all")
    assert "missing.txt: there is no missing.ann beside it" in message
    (tested,) = facts("evaluate", run, "-f", site_file(tmp_path, max_skipped=0.2), "--split", "all")
    assert tested["studies"] == len(NOTES)


def test_the_model_without_its_adapter_is_a_row_of_its_own(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    (tested,) = facts(
        "evaluate", run, "-f", site_file(tmp_path), "--split", "all", "--zero-shot", "--batch", "2"
    )
    assert tested["adapter"] == "none"
    kept = read_record(run / "run.json").evaluations
    assert "none" in {item.adapter for item in kept if item.site == "new-hospital"}


def test_a_test_of_some_notes_is_not_added_to_the_run(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    before = (run / "run.json").read_bytes()
    (tested,) = facts("evaluate", run, "-f", site_file(tmp_path), "--split", "all", "--limit", "2")
    assert tested["studies"] == 2
    assert (run / "run.json").read_bytes() == before
    assert (run / tested["predictions"]).is_file()


def test_a_test_of_the_best_adapter_does_not_take_the_final_ones_place(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    copied = shutil.copytree(run, tmp_path / "run")
    record = read_record(copied / "run.json")
    record.artefacts["best"] = "result/best"
    record.write(copied / "run.json")
    shutil.copytree(copied / "result/adapter", copied / "result/best")
    asked = ("evaluate", copied, "-f", site_file(tmp_path), "--split", "all")
    (final,) = facts(*asked)
    before = (copied / "run.json").read_bytes(), (copied / final["predictions"]).stat().st_mtime_ns
    (best,) = facts(*asked, "--adapter", "best")
    assert "@best" in best["predictions"]
    assert (copied / best["predictions"]).is_file()
    assert (copied / "run.json").read_bytes() == before[0]
    assert (copied / final["predictions"]).stat().st_mtime_ns == before[1]
    said = answer(*asked, "--adapter", "best", "--limit", "2")
    assert "The first 2 records of each site, the best adapter; not added to the run's record." in said


def test_a_new_test_takes_away_the_comparison_with_the_old_one(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    copied = shutil.copytree(run, tmp_path / "run")
    record = read_record(copied / "run.json")
    difference = {"metric": "ner_strict_f1", "value": 0.1, "low": 0.0, "high": 0.2, "p": 0.04}
    record.comparisons = [
        ComparisonRecord(site=site, ours="a personalised", theirs="a generic", **difference)
        for site in ("new-hospital", "site-1")
    ]
    record.write(copied / "run.json")
    answer("evaluate", copied, "-f", site_file(tmp_path))
    assert [item.site for item in read_record(copied / "run.json").comparisons] == ["site-1"]


def test_options_of_a_test_need_a_site_file(run: Path) -> None:
    message = refusal(2, "evaluate", run, "--zero-shot", "--limit", "2")
    assert "--zero-shot, --limit" in message
    assert "needs --site-file" in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--zero-shot", "--adapter", "best"), "leave --personalised and --adapter out"),
        (("--zero-shot", "--personalised", "x"), "leave --personalised and --adapter out"),
        (("--no-types",), "--no-types is for files of predictions"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    run: Path, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in refusal(2, "evaluate", run, "-f", site_file(tmp_path), *options)


def test_what_another_test_added_meanwhile_stays_in_the_record(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hospitals are tested at the same time, in two terminals."""
    write_notes(tmp_path / "sealed")
    copied = shutil.copytree(run, tmp_path / "run")
    inner = after_run._test

    def slow(*args: Any, **named: Any) -> Any:
        evaluation = inner(*args, **named)
        record = read_record(copied / "run.json")
        record.evaluations.append(evaluation.model_copy(update={"site": "another"}))
        record.write(copied / "run.json")
        return evaluation

    monkeypatch.setattr(after_run, "_test", slow)
    answer("evaluate", copied, "-f", site_file(tmp_path))
    sites = {item.site for item in read_record(copied / "run.json").evaluations}
    assert {"new-hospital", "another"} <= sites


def test_an_adapter_that_came_without_its_run_is_tested(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    alone = shutil.copytree(run / "result" / "adapter", tmp_path / "received" / "adapter")
    (all_notes,) = facts("evaluate", alone, "-f", site_file(tmp_path), "--unseen")
    assert (all_notes["studies"], all_notes["role"]) == (len(NOTES), "unseen")
    lines = (tmp_path / "received" / all_notes["predictions"]).read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(NOTES)
    assert not (tmp_path / "received" / "run.json").exists()
    shown = answer("evaluate", alone, "-f", site_file(tmp_path), "--unseen", "--zero-shot", "--limit", "1")
    assert "came without its run" in " ".join(shown.split())
    assert "zero-shot" in shown


def test_a_site_that_may_have_trained_an_adapter_is_tested_on_its_test_split(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_notes(tmp_path / "sealed")
    alone = shutil.copytree(run / "result" / "adapter", tmp_path / "received" / "adapter")
    given = site_file(tmp_path, split={"train": 0.5, "val": 0, "test": 0.5})
    shown = answer("evaluate", alone, "-f", given)
    assert "--unseen says that the sites took no part" in " ".join(shown.split())
    assert "'new-hospital' may have trained this model, so 2 of its note(s)" in caplog.text


def test_the_adapter_of_a_run_is_that_run(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    copied = shutil.copytree(run, tmp_path / "copied run")
    read_record(copied / "run.json").model_copy(update={"evaluations": []}).write(copied / "run.json")
    (tested,) = facts("evaluate", copied / "result" / "adapter", "-f", site_file(tmp_path), "--split", "all")
    assert tested["role"] == "unseen"
    assert [item.site for item in read_record(copied / "run.json").evaluations] == ["new-hospital"]
    message = refusal(2, "evaluate", copied / "result" / "adapter", "-f", site_file(tmp_path), "--unseen")
    assert "says who took part; leave it out" in message


def test_an_adapter_is_named_from_the_folder_beside_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of one part has no folder two above it."""
    write_notes(tmp_path / "sealed")
    shutil.copytree(run / "result" / "adapter", tmp_path / "received" / "adapter")
    monkeypatch.chdir(tmp_path / "received")
    (tested,) = facts("evaluate", Path("adapter"), "-f", site_file(tmp_path), "--unseen", "--limit", "1")
    assert tested["studies"] == 1
    found = facts("extract", tmp_path / "sealed" / "plain.txt", "-r", Path("adapter"))
    assert found["notes"] == 1
    monkeypatch.chdir(shutil.copytree(run, tmp_path / "whole") / "result")
    assert origin_of(Path("adapter")).run_id == "r"


def test_what_is_no_run_is_told_apart(run: Path, tmp_path: Path) -> None:
    write_notes(tmp_path / "sealed")
    alone = shutil.copytree(run / "result" / "adapter", tmp_path / "received" / "adapter")
    shutil.copytree(run, tmp_path / "runs" / "monday" / "server" / "simulate_job")
    assert "is an adapter, and there is no run record" in refusal(3, "evaluate", alone)
    assert "name one: monday." in refusal(3, "page", tmp_path / "runs")
    assert "there is no such file or folder" in refusal(3, "page", tmp_path / "tuesday")
    message = refusal(2, "evaluate", alone, "-f", site_file(tmp_path), "--adapter", "best")
    assert "is an adapter already; leave the option out" in message
