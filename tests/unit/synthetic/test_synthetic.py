# SPDX-License-Identifier: Apache-2.0
"""Facts about the synthetic hospitals as a whole: determinism, splits, prevalence, files."""

import hashlib
import itertools
import json
import pickle
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.records import SPLITS
from medflare.synthetic import (
    DEMO_HOSPITALS,
    UNSEEN_HOSPITAL,
    contact_sheet,
    generate,
    generate_reports,
    pretraining_hospitals,
    write_hospital,
)
from medflare.synthetic.notes import NOTE_HOSPITALS, UNSEEN_NOTES, pretraining_note_hospitals

ONE, TWO, THREE = DEMO_HOSPITALS
EVERYONE = (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)


def test_same_seed_gives_the_same_bytes():
    first, again = (list(generate(ONE, 3, visits=(1, 3), size=64)) for _ in range(2))
    for a, b in zip(first, again, strict=True):
        assert a.image.tobytes() == b.image.tobytes()
        assert replace(a, image=None) == replace(b, image=None)


def test_reports_are_the_same_on_every_machine():
    """Golden digest: embedded models are trained on these words, so a change of wording is a decision."""
    studies = generate_reports(ONE, 20, visits=(1, 3), longitudinal=True)
    text = "\n".join(s.report for s in studies)
    assert hashlib.blake2b(text.encode(), digest_size=8).hexdigest() == "960c994bf7226bc4"


KINDS = {
    "reports": (EVERYONE, pretraining_hospitals),
    "notes": ((*NOTE_HOSPITALS, UNSEEN_NOTES), pretraining_note_hospitals),
}


@pytest.mark.parametrize("kind", KINDS)
def test_profiles_travel_to_worker_processes(kind):
    hospitals, more = KINDS[kind]
    for profile in (*hospitals, *more(2)):
        assert pickle.loads(pickle.dumps(profile)) == profile


def test_another_seed_gives_other_patients():
    a, b = (next(generate(profile, 1, size=64)) for profile in (ONE, ONE.with_seed(1)))
    assert not np.array_equal(a.image, b.image)
    texts = [[s.report for s in generate_reports(ONE.with_seed(k), 50)] for k in (0, 1)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_of_hospitals_never_meet_and_have_a_range(kind):
    hospitals, more = KINDS[kind]
    seeds = [profile.with_seed(k).seed for profile in (*hospitals, *more(20)) for k in range(20)]
    assert len(set(seeds)) == len(seeds)
    with pytest.raises(ValueError, match=r"1000|999"):
        hospitals[0].with_seed(1000)


def test_a_patient_does_not_depend_on_how_many_there_are():
    few = list(generate_reports(TWO, 5, visits=(2, 4), longitudinal=True))
    many = list(generate_reports(TWO, 50, visits=(2, 4), longitudinal=True))
    assert many[: len(few)] == few


def test_reports_without_pictures_are_those_with_pictures():
    for a, b in zip(generate(THREE, 3, size=48), generate_reports(THREE, 3), strict=True):
        assert replace(a, image=None) == b


def test_images_are_float32_in_unit_range_at_any_size():
    for size in (32, 75, 128):
        image = next(generate(ONE, 1, size=size)).image
        assert image.shape == (size, size)
        assert image.dtype == np.float32
        assert 0 <= image.min() < 0.1 < 0.8 < image.max() <= 1


def test_all_visits_of_a_patient_are_in_one_split():
    splits: dict[str, set[str]] = {}
    for s in generate_reports(ONE, 400, visits=(1, 3)):
        splits.setdefault(s.patient_id, set()).add(s.split)
    assert all(len(v) == 1 for v in splits.values())
    share = {name: sum(name in v for v in splits.values()) / len(splits) for name in SPLITS}
    assert share["train"] == pytest.approx(0.7, abs=0.07)
    assert share["val"] == pytest.approx(0.1, abs=0.05)


def test_prevalence_differs_by_site_and_every_condition_occurs():
    rates = []
    for hospital in DEMO_HOSPITALS:
        positive = [[c == Code.POSITIVE for c in s.codes] for s in generate_reports(hospital, 800)]
        rates.append(dict(zip(CONDITIONS, np.mean(positive, axis=0).tolist(), strict=True)))
    assert rates[1]["pneumothorax"] > 2 * rates[0]["pneumothorax"]
    assert rates[2]["lung lesion"] > 1.5 * rates[0]["lung lesion"]
    assert rates[0]["cardiomegaly"] > 1.5 * rates[1]["cardiomegaly"]
    assert all(rate[c] > 0.01 for rate in rates for c in CONDITIONS)


def test_prevalence_rises_with_age():
    studies = list(generate_reports(UNSEEN_HOSPITAL, 2000))
    sick = [(s.age > 60, s.codes[CONDITIONS.index("cardiomegaly")] == 1) for s in studies]
    old, young = (np.mean([hit for elder, hit in sick if elder == group]) for group in (True, False))
    assert old > 1.2 * young


def test_visits_are_dated_and_findings_come_and_go():
    changes = set()
    for _, visits in itertools.groupby(
        generate_reports(ONE, 60, visits=(4, 4), longitudinal=True), key=lambda s: s.patient_id
    ):
        days = [s.day for s in visits]
        assert days[0] == 0
        assert days == sorted(set(days))
    for s in generate_reports(ONE, 60, visits=(4, 4), longitudinal=True):
        changes |= {f.change for f in s.findings}
    assert changes == {"", "new", "increased", "decreased", "unchanged"}


def test_first_visits_are_not_moved_by_later_ones():
    once = {s.patient_id: s.report for s in generate_reports(ONE, 30)}
    often = {s.patient_id: s.report for s in generate_reports(ONE, 30, visits=(3, 3)) if s.day == 0}
    assert once == often


@pytest.mark.parametrize("profile", [ONE, THREE], ids=["8 bit", "16 bit"])
def test_manifest_round_trip(tmp_path, profile):
    manifest = write_hospital(profile, tmp_path, 3, visits=(1, 2), size=48)
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    studies = list(generate(profile, 3, visits=(1, 2), size=48))
    levels = 2**profile.scanner.bits - 1
    for row, study in zip(rows, studies, strict=True):
        assert set(row) == {
            "study_id",
            "patient_id",
            "image",
            "report",
            "split",
            "age",
            "sex",
            "day",
            "view",
            "labels",
            "findings",
        }
        assert row["labels"] == list(study.codes)
        assert row["report"] == study.report
        assert [f["condition"] for f in row["findings"]] == [f.condition for f in study.findings]
        pixels = np.asarray(Image.open(tmp_path / row["image"])) / levels
        assert np.abs(pixels - study.image).max() <= 0.51 / levels


def test_pretraining_hospitals_are_endless_and_unlike_the_demo():
    few, more = list(pretraining_hospitals(3)), list(itertools.islice(pretraining_hospitals(), 6))
    assert more[:3] == few
    assert {p.style.name for p in more}.isdisjoint(p.style.name for p in EVERYONE)
    for p in more:
        assert len(list(generate_reports(p, 5))) == 5


def test_contact_sheet_holds_every_picture():
    sheet = contact_sheet(list(generate(TWO, 5, size=64)), columns=3)
    assert sheet.size == (3 * 68, 2 * 113)
    with pytest.raises(ValueError, match="generate"):
        contact_sheet(list(generate_reports(TWO, 2)))


def test_unknown_condition_in_a_profile_is_refused():
    with pytest.raises(ValueError, match="cardiomegaly"):
        replace(ONE, prevalence={"flu": 2.0})
