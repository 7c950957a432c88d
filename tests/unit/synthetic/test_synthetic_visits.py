# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients come again: what changes depends on who they are, and reports say it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pytest

from medflare.core.conditions import CONDITIONS, Code
from medflare.data.load import load_cohort
from medflare.data.settings.site import load_site_file
from medflare.data.visit_samples import open_visits
from medflare.data.visits.longitudinal import group_patients
from medflare.labelling.labels import label_report
from medflare.synthetic import DEMO_HOSPITALS, UNSEEN_HOSPITAL, generate, generate_reports
from medflare.synthetic.follow_up import (
    FollowUp,
    follow_up,
    follow_up_reports,
    write_follow_up,
    write_follow_up_demo,
)
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.progression import PROGRESSIONS, Progression, follow

ONE, TWO, THREE = DEMO_HOSPITALS
ALL = (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)


def by_patient(visits: list[FollowUp]) -> list[list[FollowUp]]:
    return [list(own) for _, own in groupby(visits, key=lambda visit: visit.study.patient_id)]


def shares(profile: HospitalProfile, progression: Progression, kept: range = range(2, 9)) -> Counter[str]:
    """Change -> share among the findings of the visits `kept`, of 250 patients."""
    result = Counter(
        finding.change
        for course in follow(profile, progression, 250, 4)
        for number, visit in zip(course.numbers, course.patient.visits, strict=True)
        for finding in visit.findings
        if number in kept
    )
    return Counter({change: count / result.total() for change, count in result.items()})


def of_age(years: float, women: float) -> HospitalProfile:
    return replace(TWO, age=(years, 0.1), women=women)


# ---- what the single-visit hospitals are must not move -----------------------------------------------------


def test_single_visit_hospitals_are_what_they_were() -> None:
    """Digests of studies from before progression existed: shipped weights were trained on such."""
    digest = hashlib.sha256()
    for profile in ALL:
        for study in generate_reports(profile, 40):
            digest.update(f"{study.study_id}{study.report}{study.codes}{study.age}{study.sex}".encode())
    assert digest.hexdigest()[:16] == "9342a930a04293cb"
    digest = hashlib.sha256()
    for study in generate_reports(ONE, 40, visits=(1, 3), longitudinal=True):
        digest.update(f"{study.study_id}{study.report}{study.codes}{study.day}".encode())
    assert digest.hexdigest()[:16] == "6f9b093ab8049e88"


def test_the_first_visit_is_the_single_visit_study() -> None:
    single = {study.study_id: study for study in generate(THREE, 12, size=48)}
    firsts = [visit.study for visit in follow_up(THREE, 5, 3, size=48) if visit.number == 1]
    assert len(firsts) == 5
    for study in firsts:
        assert (study.report, study.codes) == (single[study.study_id].report, single[study.study_id].codes)
        np.testing.assert_array_equal(study.image, single[study.study_id].image)


# ---- visits ------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_visits_and_fewer_patients_the_first_of_them() -> None:
    many, few = (list(follow_up_reports(ONE, count, 4)) for count in (8, 3))
    assert many[: len(few)] == few
    other = [visit.study.report for visit in follow_up_reports(ONE.with_seed(1), 3, 4)]
    assert other != [visit.study.report for visit in few]


def test_more_visits_add_to_the_end_only() -> None:
    short, long = (by_patient(list(follow_up_reports(TWO, 6, visits))) for visits in (2, 4))
    assert [own[:2] for own in long] == short


def test_hospitals_have_schedules_of_their_own() -> None:
    numbers = {
        profile.name: Counter(visit.number for visit in follow_up_reports(profile, 60, 5)) for profile in ALL
    }
    assert numbers["site-2"] == {number: 60 for number in range(1, 6)}
    assert max(numbers["site-3"]) == 4
    assert 40 < numbers["site-1"][3] < 60
    gaps = {
        later.study.day - earlier.study.day
        for own in by_patient(list(follow_up_reports(TWO, 20, 5)))
        for earlier, later in pairwise(own)
    }
    assert gaps == {42}


def test_a_patient_has_one_split_one_sex_one_body_and_ages_with_the_days() -> None:
    for own in by_patient(list(follow_up_reports(THREE, 40, 5))):
        assert len({(visit.study.split, visit.study.sex) for visit in own}) == 1
        days = [visit.study.day for visit in own]
        assert days == sorted(set(days))
        assert all(v.study.age == own[0].study.age + v.study.day // 365 for v in own)
        assert own[0].changes == ()


def test_what_changed_agrees_with_what_is_there() -> None:
    for own in by_patient(list(follow_up_reports(TWO, 60, 4))):
        for before, after in pairwise(own):
            was = {f.condition: f for f in before.study.findings}
            now = {f.condition: f for f in after.study.findings}
            for condition, change in after.changes:
                if change == "new":
                    assert condition in now
                    continue
                assert condition in was
                if change == "resolved":
                    assert now.get(condition) is None
                else:
                    moved = now[condition].extent - was[condition].extent
                    assert np.sign(moved) == {"increased": 1, "decreased": -1, "unchanged": 0}[change]
            changed = {condition for condition, _ in after.changes}
            assert {f.condition for f in after.study.findings} <= changed


# ---- who the patient is decides ----------------------------------------------------------------------------


def test_findings_of_old_men_get_worse_and_those_of_young_women_better() -> None:
    plain = Progression(drift=0.0)
    old, young = shares(of_age(80, 0.0), plain), shares(of_age(35, 1.0), plain)
    assert old["increased"] > young["increased"] + 0.4
    assert young["decreased"] + young["resolved"] > old["decreased"] + old["resolved"] + 0.3


def test_sex_alone_and_age_alone_matter() -> None:
    plain = Progression(drift=0.0)
    men, women = shares(of_age(60, 0.0), plain), shares(of_age(60, 1.0), plain)
    assert men["increased"] > women["increased"] + 0.2
    old, young = shares(of_age(80, 0.5), plain), shares(of_age(40, 0.5), plain)
    assert old["increased"] > young["increased"] + 0.25


def test_without_age_and_sex_in_the_progression_neither_matters() -> None:
    blind = Progression(age=0.0, men=0.0, drift=0.0, new=0.0)
    old, young = shares(of_age(80, 0.0), blind), shares(of_age(35, 1.0), blind)
    assert abs(old["increased"] - young["increased"]) < 0.08


def test_the_drift_turns_worsening_into_recovery_over_the_visits() -> None:
    early, late = (shares(ONE, Progression(drift=-0.6), range(t, t + 1)) for t in (2, 4))
    assert early["increased"] > late["increased"] + 0.05
    assert late["decreased"] + late["resolved"] > early["decreased"] + early["resolved"] + 0.1


def test_demo_hospitals_differ_in_how_strongly_it_depends() -> None:
    assert len({(p.age, p.drift, p.gap) for p in PROGRESSIONS.values()}) == len(ALL)


def test_a_hospital_where_nobody_has_a_finding_is_refused() -> None:
    healthy = replace(ONE, prevalence=dict.fromkeys(CONDITIONS[:-1], 0.0))
    with pytest.raises(ValueError, match="0 of 501 patients have a finding; raise prevalence"):
        next(follow(healthy, Progression(), 1, 2))


# ---- reports -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ALL, ids=[profile.name for profile in ALL])
def test_later_reports_compare_and_first_ones_do_not(profile: HospitalProfile) -> None:
    for visit in follow_up_reports(profile, 15, 3):
        compares = " prior " in f" {visit.study.report.lower()} "
        assert compares == (visit.number > 1)


@pytest.mark.parametrize("profile", ALL, ids=[profile.name for profile in ALL])
def test_labels_read_from_follow_up_reports_are_the_generators(profile: HospitalProfile) -> None:
    hits = [
        code == gold
        for visit in follow_up_reports(profile, 40, 4)
        for code, gold in zip(label_report(visit.study.report), visit.study.codes, strict=True)
        if gold in (Code.POSITIVE, Code.NEGATIVE)
    ]
    assert np.mean(hits) > 0.97


# ---- on disk -----------------------------------------------------------------------------------------------


def test_written_hospitals_are_read_back_with_holes_where_visits_were_missed(tmp_path: Path) -> None:
    write_follow_up_demo(tmp_path, 4, patients=6, size=32, sheet=False)
    for name, site in load_site_file(tmp_path / "site.yaml").items():
        profile = next(profile for profile in ALL if profile.name == name)
        made = by_patient(list(follow_up_reports(profile, 6, 4)))
        cohort = load_cohort(site)
        assert cohort.skipped == []
        patients = group_patients(cohort.studies)
        for patient, own in zip(patients, made, strict=True):
            read = [(visit.number, visit.study.day) for visit in patient.visits]
            assert read == [(visit.number, visit.study.day) for visit in own]
    assert open_visits(load_site_file(tmp_path / "site.yaml")["site-3"], 32).counts("train", 4)[3] == 0


def test_rows_tell_what_changed(tmp_path: Path) -> None:
    manifest = write_follow_up(TWO, tmp_path, 3, 3, size=32)
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    made = list(follow_up_reports(TWO, 3, 3))
    assert [row["changes"] for row in rows] == [[list(pair) for pair in visit.changes] for visit in made]
    assert [row["visit"] for row in rows] == [1, 2, 3] * 3
