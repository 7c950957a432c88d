# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals at work: studies in memory, cohorts on disk, and a contact sheet to look at."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import wrap

import numpy as np
from PIL import Image, ImageDraw

from medflare.synthetic.anatomy import Plane, compose, expose
from medflare.synthetic.findings import ChestFinding, deform, draw
from medflare.synthetic.patients import SyntheticPatient, SyntheticVisit, draw_anatomy, draw_patient, stream
from medflare.synthetic.profiles import HospitalProfile
from medflare.synthetic.scanner import acquire
from medflare.synthetic.styles.house import HouseStyle
from medflare.synthetic.styles.reports import write_report


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticStudy:
    """One examination; `image` is (size, size) float32 in [0, 1], or None from `generate_reports`."""

    study_id: str
    patient_id: str
    image: Plane | None
    report: str
    findings: tuple[ChestFinding, ...]
    codes: tuple[int, ...]  # 14 values of Code in the order of CONDITIONS
    age: int  # years at this visit
    sex: str  # "F" or "M"
    day: int  # days since the patient's first visit
    split: str  # "train", "val" or "test", the same for all studies of a patient


def generate(
    profile: HospitalProfile,
    patients: int,
    *,
    visits: tuple[int, int] = (1, 1),
    size: int = 128,
    longitudinal: bool = False,
) -> Iterator[SyntheticStudy]:
    """Yield the studies of `patients` patients, with pictures (size, size).

    Args:
        visits: fewest and most of a patient.
        longitudinal: follow-up reports also say what changed since the previous visit.

    Raises:
        ValueError: `size` is below 32, or `visits` is no range from 1 up.
    """
    if size < 32:
        raise ValueError(f"size is {size}; expected at least 32 pixels")
    for patient, study in _studies(profile, patients, visits, longitudinal):
        number = int(study.study_id.rsplit("-v", 1)[1])
        yield replace(study, image=render(profile, patient, number, study.findings, size))


def generate_reports(
    profile: HospitalProfile, patients: int, *, visits: tuple[int, int] = (1, 1), longitudinal: bool = False
) -> Iterator[SyntheticStudy]:
    """As `generate` without the pictures (image None): thousands of reports per second."""
    for _, study in _studies(profile, patients, visits, longitudinal):
        yield study


def render(
    profile: HospitalProfile,
    patient: SyntheticPatient,
    visit: int,
    findings: Sequence[ChestFinding],
    size: int,
) -> Plane:
    """Return the picture of one visit with the given findings, (size, size) float32 in [0, 1]."""
    chest = compose(deform(draw_anatomy(profile.seed, patient), findings), size)
    draw(chest, findings)
    return acquire(expose(chest), profile.scanner, stream(profile.seed, patient.index, "exposure", visit))


def split_of(profile: HospitalProfile, patient_id: str) -> str:
    """Return train (70 %), val (10 %) or test (20 %) by a stable hash of the seed and the patient."""
    digest = hashlib.blake2b(f"{profile.seed}/{patient_id}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "big") / 2**64
    return "train" if share < 0.7 else "val" if share < 0.8 else "test"


def _studies(
    profile: HospitalProfile, patients: int, visits: tuple[int, int], longitudinal: bool
) -> Iterator[tuple[SyntheticPatient, SyntheticStudy]]:
    if not 1 <= visits[0] <= visits[1]:
        raise ValueError(f"visits is {visits}; expected (fewest, most) with 1 <= fewest <= most")
    for index in range(patients):
        patient = draw_patient(profile, index, visits)
        for number, visit in enumerate(patient.visits):
            if not longitudinal:
                present = (f for f in visit.findings if f.change != "resolved")
                visit = replace(visit, findings=tuple(replace(f, change="") for f in present))
            yield patient, write_study(profile, patient, number, visit)


def write_study(
    profile: HospitalProfile,
    patient: SyntheticPatient,
    number: int,
    visit: SyntheticVisit,
    style: HouseStyle | None = None,
) -> SyntheticStudy:
    """Return the study of one visit, without its picture.

    Args:
        number: of the visit, from 0.
        visit: its report tells all findings, its picture shows those that are not resolved.
        style: of the report; default the hospital's.
    """
    patient_id = f"{profile.name}-p{patient.index:05d}"
    rng = stream(profile.seed, patient.index, "wording", number)
    report, codes = write_report(visit.findings, style or profile.style, rng)
    return SyntheticStudy(
        study_id=f"{patient_id}-v{number}",
        patient_id=patient_id,
        image=None,
        report=report,
        findings=tuple(f for f in visit.findings if f.change != "resolved"),
        codes=codes,
        age=visit.age,
        sex=patient.sex,
        day=visit.day,
        split=split_of(profile, patient_id),
    )


def write_hospital(
    profile: HospitalProfile,
    folder: Path | str,
    patients: int | None = None,
    *,
    visits: tuple[int, int] = (1, 1),
    size: int = 128,
    longitudinal: bool = False,
) -> Path:
    """Write `images/*.png` and `manifest.jsonl` (one JSON row per study) into `folder`; return the latter."""
    count = profile.patients if patients is None else patients
    studies = generate(profile, count, visits=visits, size=size, longitudinal=longitudinal)
    return write_manifest(((study, {}) for study in studies), folder, profile.scanner.bits)


def write_manifest(
    studies: Iterable[tuple[SyntheticStudy, Mapping[str, object]]], folder: Path | str, bits: int
) -> Path:
    """Write pictures of `bits` bits and manifest.jsonl into `folder`; return the latter.

    Args:
        studies: each with further columns of its row.
    """
    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.jsonl"
    with manifest.open("w", encoding="ascii", newline="\n") as out:
        for study, columns in studies:
            assert study.image is not None
            name = f"images/{study.study_id}.png"
            to_png(study.image, bits).save(folder / name)
            out.write(json.dumps({**manifest_row(study, name), **columns}) + "\n")
    return manifest


def manifest_row(study: SyntheticStudy, image: str) -> dict[str, object]:
    """Return one line of the `manifest` format; `image` is relative to the folder of the manifest."""
    return {
        "study_id": study.study_id,
        "patient_id": study.patient_id,
        "image": image,
        "report": study.report,
        "split": study.split,
        "age": study.age,
        "sex": study.sex,
        "day": study.day,
        "view": "PA",
        "labels": list(study.codes),
        "findings": [asdict(f) for f in study.findings],
    }


def to_png(image: Plane, bits: int = 8) -> Image.Image:
    """Quantise a picture in [0, 1] to an 8-bit or 16-bit greyscale image."""
    dtype = np.uint16 if bits == 16 else np.uint8
    return Image.fromarray(np.round(image * (2**bits - 1)).astype(dtype))


def contact_sheet(studies: Sequence[SyntheticStudy], columns: int = 6) -> Image.Image:
    """Return all pictures on one sheet with age, sex and findings underneath, for people to look at."""
    shown = [s for s in studies if s.image is not None]
    if not shown:
        raise ValueError("no study with an image; use generate(), not generate_reports()")
    cell, caption = max(len(np.asarray(s.image)) for s in shown), 49
    rows = -(-len(shown) // columns)
    sheet = Image.new("L", (columns * (cell + 4), rows * (cell + caption)), 20)
    pen = ImageDraw.Draw(sheet)
    for k, study in enumerate(shown):
        left, top = k % columns * (cell + 4), k // columns * (cell + caption)
        assert study.image is not None
        sheet.paste(to_png(study.image), (left, top))
        names = ", ".join(_short(f) for f in study.findings) or "no finding"
        lines = wrap(f"{study.sex} {study.age}, day {study.day}: {names}", max(8, cell // 6))[:3]
        for row, line in enumerate(lines):
            pen.text((left + 2, top + cell + 1 + 15 * row), line, fill=230)
    return sheet


def _short(f: ChestFinding) -> str:
    where = " ".join(filter(None, [f.side[:1].upper() if f.side else "", f.zone]))
    degree = "" if f.kind else "?" if f.uncertain else f.severity[:3]
    return " ".join(filter(None, [f.kind or f.condition, where, degree]))
