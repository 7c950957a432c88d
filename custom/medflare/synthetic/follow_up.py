# SPDX-License-Identifier: Apache-2.0
"""Synthetic patients who come again: pictures, reports that state what changed, folders that a site reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from medflare.synthetic.demo import write_demo_hospitals
from medflare.synthetic.hospitals import SyntheticStudy, contact_sheet, render, write_manifest, write_study
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.progression import PROGRESSIONS, Course, Progression, follow
from medflare.synthetic.styles.schools import schools


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
    """Yield patients in order, each with up to `visits` visits in order; pictures included.

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
    # The report of a later visit compares with the one before.
    style, comparison = profile.style, schools()[profile.style.frames].frames.comparison
    later = replace(style, opening=" ".join(filter(None, [style.opening, comparison])))
    for course in follow(profile, chosen, patients, visits):
        for number, visit in zip(course.numbers, course.patient.visits, strict=True):
            written = write_study(profile, course.patient, number - 1, visit, style if number == 1 else later)
            changes = tuple((f.condition, f.change) for f in visit.findings if f.change)
            yield course, FollowUp(number=number, study=written, changes=changes)


def write_follow_up(
    profile: HospitalProfile, folder: Path | str, patients: int, visits: int, *, size: int = 128
) -> Path:
    """Write `images/*.png` and `manifest.jsonl`, a row for each visit; return the latter.

    A row is that of `hospitals.manifest_row` with `visit` and `changes`, [condition, change] each, besides.
    """
    rows = (
        (visit.study, {"visit": visit.number, "changes": visit.changes})
        for visit in follow_up(profile, patients, visits, size=size)
    )
    return write_manifest(rows, folder, profile.scanner.bits)


def write_follow_up_demo(
    out: Path, visits: int, patients: int = 0, size: int = 128, seed: int = 0, sheet: bool = True
) -> dict[str, int]:
    """Write the demo hospitals with up to `visits` visits a patient, `site.yaml` and a contact sheet.

    Args:
        patients: of each hospital; 0 for each one's own number.

    Returns:
        Hospital -> patients.
    """

    def write(hospital: HospitalProfile, count: int) -> str:
        write_follow_up(hospital, out / hospital.name, count, visits, size=size)
        return f", visits: {{order: visit, most: {visits}}}"

    hospitals, counts = write_demo_hospitals(out, patients, seed, write)
    if sheet:
        shown = [visit.study for hospital in hospitals for visit in follow_up(hospital, 2, visits, size=192)]
        contact_sheet(shown, visits).save(out / "contact_sheet.png")
    return counts
