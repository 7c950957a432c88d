# SPDX-License-Identifier: Apache-2.0
"""Rows that train nothing: what each may know of a test study, and that it knows no more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from medflare.core.errors import ConfigError
from medflare.data.settings.site import SiteConfig
from medflare.synthetic.findings import ChestFinding
from medflare.synthetic.hospitals import SyntheticStudy, generate_reports, manifest_row
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL
from medflare.tasks.prediction_files import read_predictions
from method_comparison.tasks.untrained_reports import Untrained, typical, write_untrained
from site_builders import site_config

EFFUSION = "There is a left pleural effusion."
LARGE = "There is a large left pleural effusion."
CLEAR = "The lungs are clear. No pleural effusion."


def site_of(folder: Path, rows: list[dict[str, object]], name: str = "site-1") -> SiteConfig:
    folder.mkdir(parents=True, exist_ok=True)
    Image.new("L", (8, 8)).save(folder / "x.png")
    lines = [json.dumps({**row, "image": "x.png"}) + "\n" for row in rows]
    (folder / "manifest.jsonl").write_text("".join(lines))
    return site_config("manifest", folder, None, name, {})


def drafts(site: SiteConfig, mode: Untrained, folder: Path) -> list[str]:
    path = folder / mode / "predictions_generic.jsonl"
    write_untrained(site, mode, path, 10, folder)
    return [item.generated for item in read_predictions(path)]


def test_the_commonest_training_report_and_that_of_the_studys_conditions(tmp_path: Path) -> None:
    rows = [("train", CLEAR)] * 3 + [("train", EFFUSION)] * 2 + [("test", EFFUSION), ("test", CLEAR)]
    site = site_of(
        tmp_path / "site-1",
        [
            {"study_id": f"s{i}", "patient_id": f"p{i}", "report": report, "split": split}
            for i, (split, report) in enumerate(rows)
        ],
    )
    assert drafts(site, "commonest", tmp_path) == [CLEAR, CLEAR]
    assert drafts(site, "conditions", tmp_path) == [EFFUSION, CLEAR]
    with pytest.raises(ConfigError, match="synthetic hospitals"):
        drafts(site, "known_places", tmp_path / "nowhere")


def test_at_the_unseen_hospital_no_study_is_written_from_its_own_report(tmp_path: Path) -> None:
    """All its studies are tests and all are counted, so its own report could be the commonest."""
    reports = [CLEAR, CLEAR, EFFUSION, LARGE]
    site = site_of(
        tmp_path / "hospital-4",
        [
            {"study_id": f"s{i}", "patient_id": f"p{i}", "report": report, "split": "test"}
            for i, report in enumerate(reports)
        ],
        UNSEEN_HOSPITAL.name,
    )
    assert drafts(site, "conditions", tmp_path) == [CLEAR, CLEAR, LARGE, EFFUSION]


@pytest.mark.parametrize("hospital", [DEMO_HOSPITALS[0], UNSEEN_HOSPITAL], ids=lambda hospital: hospital.name)
def test_the_more_is_known_the_nearer_are_the_usual_words(hospital, tmp_path: Path) -> None:
    """With all findings known only the reporter's free choice of words is missing."""
    studies: list[SyntheticStudy] = list(generate_reports(hospital, 150))
    rows = [manifest_row(study, "x.png") for study in studies]
    site = site_of(tmp_path / hospital.name, rows, hospital.name)
    equal, codes = {}, {}
    for mode in ("known_conditions", "known_places", "known_findings"):
        path = tmp_path / mode / "predictions_generic.jsonl"
        write_untrained(site, mode, path, 150, tmp_path)
        items = read_predictions(path)
        equal[mode] = sum(item.generated == item.reference for item in items) / len(items)
        codes[mode] = sum(item.predicted_codes == item.gold_codes for item in items) / len(items)
    assert equal["known_conditions"] < equal["known_places"] < equal["known_findings"] < 1.0
    assert equal["known_findings"] > 0.3
    assert codes == dict.fromkeys(codes, 1.0), "the conditions are known to all three"


def test_what_is_not_known_is_as_in_most_others() -> None:
    large = ChestFinding(condition="pleural effusion", extent=0.9, side="left")
    small = replace(large, extent=0.3, side="right")
    seen = [small, small, large, ChestFinding(condition="edema", extent=0.9)]
    assert typical(replace(large, extent=0.5), seen, places=False) == small
    assert typical(replace(small, extent=0.9), seen, places=True) == small
    assert typical(replace(large, extent=0.5), seen, places=True) == large
    here = replace(large, side="bilateral", extent=0.9)
    assert typical(here, seen, places=True) == replace(small, side="bilateral"), "nobody has it on both sides"
    alone = ChestFinding(condition="fracture", extent=0.5, zone="upper")
    assert typical(alone, seen, places=False) == alone
