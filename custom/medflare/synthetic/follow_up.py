# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients who come again: pictures, reports that state what changed, folders that a site reads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from medflare.synthetic.hospitals import SyntheticStudy, contact_sheet, manifest_row, render, split_of, to_png
from medflare.synthetic.patients import stream
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL, HospitalProfile
from medflare.synthetic.progression import PROGRESSIONS, Course, Progression, follow
from medflare.synthetic.styles.house import HouseStyle
from medflare.synthetic.styles.reports import write_report

COMPARISONS: Mapping[str, str] = {
    "american": "Comparison is made with the prior study.",
    "terse": "Compared with prior film.",
    "british": "Compared with the prior radiograph.",
    "academic": "Comparison: prior radiograph.",
    "itemised": "Compared with the prior examination.",
    "continental": "In comparison with the prior image.",
}
"""Frames of a house style -> the sentence with which the reports of later visits begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowUp:
    """One visit: its planned number, the study, and (condition, what became of it) since the visit before."""

    number: int
    study: SyntheticStudy
    changes: tuple[tuple[str, str], ...]


def follow_up(
    profile: HospitalProfile,
    patients: int,
    visits: int,
    *,
    progression: Progression | None = None,
    size: int = 128,
) -> Iterator[FollowUp]:
    """Patients in order, each with up to `visits` visits in order; pictures included.

    Args:
        progression: how findings change; default the hospital's of PROGRESSIONS, else Progression().
    """
    if size < 32:
        raise ValueError(f"size is {size}; expected at least 32 pixels")
    for course, visit in _visits(profile, patients, visits, progression):
        picture = render(profile, course.patient, visit.number - 1, visit.study.findings, size)
        yield replace(visit, study=replace(visit.study, image=picture))


def follow_up_reports(
    profile: HospitalProfile, patients: int, visits: int, *, progression: Progression | None = None
) -> Iterator[FollowUp]:
    """As `follow_up` without the pictures (image None)."""
    for _, visit in _visits(profile, patients, visits, progression):
        yield visit


def _visits(
    profile: HospitalProfile, patients: int, visits: int, progression: Progression | None
) -> Iterator[tuple[Course, FollowUp]]:
    if visits < 1:
        raise ValueError(f"visits is {visits}; expected at least 1")
    chosen = progression or PROGRESSIONS.get(profile.name, Progression())
    later = _compares(profile.style)
    for course in follow(profile, chosen, patients, visits):
        who = course.patient
        patient_id = f"{profile.name}-p{who.index:05d}"
        for number, visit in zip(course.numbers, who.visits, strict=True):
            rng = stream(profile.seed, who.index, "wording", number - 1)
            report, codes = write_report(visit.findings, profile.style if number == 1 else later, rng)
            study = SyntheticStudy(
                study_id=f"{patient_id}-v{number - 1}",
                patient_id=patient_id,
                image=None,
                report=report,
                findings=tuple(f for f in visit.findings if f.change != "resolved"),
                codes=codes,
                age=visit.age,
                sex=who.sex,
                day=visit.day,
                split=split_of(profile, patient_id),
            )
            changes = tuple((f.condition, f.change) for f in visit.findings if f.change)
            yield course, FollowUp(number=number, study=study, changes=changes)


def _compares(style: HouseStyle) -> HouseStyle:
    """The style of a report that has a prior one to compare with."""
    return replace(style, opening=" ".join(filter(None, [style.opening, COMPARISONS[style.frames]])))


def write_follow_up(
    profile: HospitalProfile, folder: Path | str, patients: int, visits: int, *, size: int = 128
) -> Path:
    """Writes `images/*.png` and `manifest.jsonl`, a row for each visit; returns the latter.

    A row is that of `hospitals.manifest_row` with `visit` and `changes`, [condition, change] each, besides.
    """
    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.jsonl"
    with manifest.open("w", encoding="ascii", newline="\n") as out:
        for visit in follow_up(profile, patients, visits, size=size):
            study = visit.study
            assert study.image is not None
            name = f"images/{study.study_id}.png"
            to_png(study.image, profile.scanner.bits).save(folder / name)
            row = {**manifest_row(study, name), "visit": visit.number, "changes": visit.changes}
            out.write(json.dumps(row) + "\n")
    return manifest


def write_follow_up_demo(
    out: Path, visits: int, patients: int = 0, size: int = 128, seed: int = 0, sheet: bool = True
) -> dict[str, int]:
    """The demo hospitals with up to `visits` visits a patient, `site.yaml` and a sheet; hospital -> patients.

    Args:
        patients: of each hospital; 0 for each one's own number.
    """
    hospitals = [hospital.with_seed(seed) for hospital in (*DEMO_HOSPITALS, UNSEEN_HOSPITAL)]
    counts = {hospital.name: patients or hospital.patients for hospital in hospitals}
    lines = ["# The synthetic hospitals, keyed by site name; folders count from this file.", "sites:"]
    for hospital in hospitals:
        write_follow_up(hospital, out / hospital.name, counts[hospital.name], visits, size=size)
        cohort = f"format: manifest, root: {hospital.name}, visits: {{order: visit, most: {visits}}}"
        lines += [f"  {hospital.name}:", f"    cohort: {{{cohort}}}"]
    (out / "site.yaml").write_text("\n".join([*lines, ""]), encoding="utf-8")
    if sheet:
        shown = [visit.study for hospital in hospitals for visit in follow_up(hospital, 2, visits, size=192)]
        contact_sheet(shown, visits).save(out / "contact_sheet.png")
    return counts
