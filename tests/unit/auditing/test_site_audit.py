# SPDX-License-Identifier: Apache-2.0
"""The audit of a run at a site: an adapter that knows its notes by heart, one that knows nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from audited_runs import AuditedRun, make_run, summaries_site

from command_line import answer, facts, refusal
from medflare.auditing import site_audit
from medflare.auditing.report import AuditReport, read_audit
from medflare.core.errors import DataError


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory, tiny_backbone: Path) -> AuditedRun:
    return make_run(tmp_path_factory.mktemp("overfitted"), tiny_backbone, steps=90)


def test_an_adapter_that_knows_its_records_by_heart_gives_all_of_them_away(overfitted: AuditedRun) -> None:
    found = facts("audit", overfitted.folder, "-f", overfitted.site_file)["sites"]["site-1"]["membership"]
    assert found["records"]["auc"]["value"] > 0.95
    assert found["patients"]["auc"]["value"] > 0.98
    assert found["patients"]["tpr_at_1_percent"]["value"] > 0.5
    assert found["mean_gain_members"] > found["mean_gain_others"] + 0.3
    assert found["members"] == {"patients": 12, "records": 24, "examples": 24}
    assert found["without_adapter"]["low"] < 0.5 < found["without_adapter"]["high"]


def test_shadow_adapters_recognise_patients_of_an_adapter_that_knows_them_by_heart(
    overfitted: AuditedRun,
) -> None:
    printed = answer("audit", overfitted.folder, "-f", overfitted.site_file, "--shadows", 4)
    attack = read_audit(overfitted.folder / "audit.json").sites["site-1"].shadow_attack
    assert attack is not None
    assert attack.shadows == 4
    assert attack.records.auc.value > 0.95
    assert attack.patients.auc.value > 0.95
    assert attack.offline_patients.auc.value > 0.9
    assert "4 shadows, offline: AUC" in printed
    assert "Shadow adapters without the patient" in (overfitted.folder / "audit.html").read_text()


def test_an_audit_of_another_hospital_that_was_written_meanwhile_stays(
    overfitted: AuditedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shadows take hours, and two hospitals of a run may be audited in two terminals."""
    folder = shutil.copytree(overfitted.folder, tmp_path / "run")
    (folder / "audit.json").unlink(missing_ok=True)
    inner = site_audit.audit_site

    def slow(*args: Any, **named: Any) -> Any:
        found = inner(*args, **named)
        report = AuditReport(run_id=args[0].run_id, method="", task="", version="", sites={"another": found})
        report.write(folder / "audit.json")
        return found

    monkeypatch.setattr(site_audit, "audit_site", slow)
    facts("audit", folder, "-f", overfitted.site_file)
    assert set(read_audit(folder / "audit.json").sites) == {"site-1", "another"}


@pytest.mark.parametrize("shadows", [2, 5])
def test_shadows_come_in_pairs_and_not_too_few(overfitted: AuditedRun, shadows: int) -> None:
    said = refusal(2, "audit", overfitted.folder, "-f", overfitted.site_file, "--shadows", shadows)
    assert f"--shadows is {shadows}; expected an even number of 4 or more" in said


def test_a_record_that_does_not_say_how_the_run_trained_has_no_shadows(
    overfitted: AuditedRun, tmp_path: Path
) -> None:
    shutil.copytree(overfitted.folder, tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    (tmp_path / "run/run.json").write_text(json.dumps(record | {"configuration": {}}))
    said = refusal(2, "audit", tmp_path / "run", "-f", overfitted.site_file, "--shadows", 4)
    assert "does not say how 'site-1' trained" in said


def test_an_untrained_adapter_gives_nothing_away(tmp_path: Path, tiny_backbone: Path) -> None:
    run = make_run(tmp_path, tiny_backbone, steps=0)
    found = facts("audit", run.folder, "-f", run.site_file)["sites"]["site-1"]["membership"]
    assert found["records"]["auc"] == {"value": 0.5, "low": 0.5, "high": 0.5}
    assert found["patients"]["tpr_at_1_percent"]["value"] == 0


def test_the_report_lies_beside_the_record_and_holds_numbers_only(overfitted: AuditedRun) -> None:
    printed = answer("audit", overfitted.folder, "-f", overfitted.site_file, "--site", "site-1")
    assert "AUC (0.5 is guessing)" in printed
    assert "12 test patients" in printed
    text = (overfitted.folder / "audit.json").read_text() + (overfitted.folder / "audit.html").read_text()
    assert read_audit(overfitted.folder / "audit.json").sites["site-1"].adapter == "generic"
    rows = [json.loads(line) for line in (overfitted.site_file.parent / "site-1/rows.jsonl").open()]
    for row in rows:
        assert row["patient_id"] not in text
        assert row["findings"] not in text
        assert row["impression"] not in text


def test_an_audit_of_one_site_leaves_those_of_others_where_they_are(
    overfitted: AuditedRun, tmp_path: Path
) -> None:
    """Canaries are of one site, so sites are audited by a command each."""
    run = shutil.copytree(overfitted.folder, tmp_path / "run")
    file = run / "audit.json"
    file.unlink(missing_ok=True)
    asked = ("audit", run, "-f", overfitted.site_file)
    (ours,) = facts(*asked)["sites"].values()
    of_another = json.loads(file.read_text())
    of_another["sites"] = {"site-0": of_another["sites"]["site-1"]}
    file.write_text(json.dumps(of_another))
    answer(*asked)
    assert list(read_audit(file).sites) == ["site-0", "site-1"]
    assert "site-0" in file.with_suffix(".html").read_text()
    answer(*asked, "--personalised", run / "result/adapter")
    assert json.loads(file.read_text())["sites"]["site-1"] == ours
    assert read_audit(run / "audit_personalised.json").sites["site-1"].adapter == "personalised"
    file.write_text(json.dumps(of_another | {"run_id": "another"}))
    assert "audit.json: is an audit of run 'another', not of 'r'" in refusal(3, *asked)


def test_a_report_with_unknown_keys_or_an_infinite_number_is_refused(
    overfitted: AuditedRun, tmp_path: Path
) -> None:
    answer("audit", overfitted.folder, "-f", overfitted.site_file)
    good = json.loads((overfitted.folder / "audit.json").read_text())
    for change in ({"texts": []}, {"schema_version": 2}, {"run_id": 3}):
        (tmp_path / "audit.json").write_text(json.dumps(good | change))
        with pytest.raises(DataError, match="is not an audit of schema 1"):
            read_audit(tmp_path / "audit.json")
    with pytest.raises(DataError, match="there is no audit"):
        read_audit(tmp_path / "other.json")


def test_a_site_that_took_no_part_cannot_be_audited(overfitted: AuditedRun, tmp_path: Path) -> None:
    other = summaries_site(tmp_path, name="site-9")
    said = refusal(2, "audit", overfitted.folder, "-f", other)
    assert "none took part in the run, which has site-1" in said
    assert "took no part" in refusal(2, "audit", overfitted.folder, "-f", other, "--site", "site-9")


def test_a_site_without_test_patients_has_nobody_to_compare_with(
    overfitted: AuditedRun, tmp_path: Path
) -> None:
    alone = summaries_site(tmp_path, splits=("train",), backbone=overfitted.backbone)
    said = refusal(3, "audit", overfitted.folder, "-f", alone)
    assert "no summary of the split 'test' can be scored" in said


def test_changed_splits_are_said(overfitted: AuditedRun, tmp_path: Path) -> None:
    moved = summaries_site(tmp_path, splits=("test", "test", "train"), backbone=overfitted.backbone)
    warnings = facts("audit", overfitted.folder, "-f", moved)["sites"]["site-1"]["warnings"]
    assert any("the run trained on 24 examples, and site.yaml now gives 16" in line for line in warnings)
