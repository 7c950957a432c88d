# SPDX-License-Identifier: Apache-2.0
"""Synthetic hospitals: profiles, studies in memory, cohorts on disk, and a contact sheet to look at.

for study in generate(DEMO_HOSPITALS[0], patients=100): ...
write_hospital(DEMO_HOSPITALS[0], Path("site-1"), patients=400)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from medflare.cohort.records import CONDITIONS, Code

from .anatomy import Plane, compose, expose
from .findings import Finding, deform, draw
from .patients import Patient, Visit, courses, draw_anatomy, stream
from .scanner import Scanner, acquire
from .styles.house import STYLES, HouseStyle
from .styles.layouts import LAYOUTS
from .styles.lexicon import ABNORMAL, FRAMES, VOCABULARIES
from .styles.reports import write_report

PRETRAINING_SEED = 5_000_000  # far from the seeds of the demo hospitals and of studies over seeds


@dataclass(frozen=True, slots=True, kw_only=True)
class HospitalProfile:
    """What makes one hospital different from the next.

    Attributes:
        name: site name and prefix of patient ids.
        style: how it writes; scanner: how its pictures look.
        prevalence: condition -> multiplier of the base prevalence (1 where absent).
        age: mean and standard deviation in years; women: share of women.
        patients: usual number of patients, for callers that do not choose one.
        seed: of everything random; profiles with the same seed and different settings share no patients.
    """

    name: str
    style: HouseStyle
    scanner: Scanner = field(default_factory=Scanner)
    prevalence: Mapping[str, float] = field(default_factory=dict)
    age: tuple[float, float] = (60.0, 16.0)
    women: float = 0.5
    patients: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.prevalence) - set(ABNORMAL)):
            raise ValueError(f"{self.name}: prevalence names {unknown}; choose from {', '.join(ABNORMAL)}")

    def with_seed(self, seed: int) -> HospitalProfile:
        """The same hospital with other patients, for studies over seeds (0 <= seed < 1000)."""
        if not 0 <= seed < 1000:
            raise ValueError(f"seed is {seed}; expected 0 to 999")
        block = self.seed // PRETRAINING_SEED * PRETRAINING_SEED
        return replace(self, seed=block + self.seed % 1000 + 1000 * seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticStudy:
    """One examination; `image` is (size, size) float32 in [0, 1], or None from `generate_reports`."""

    study_id: str
    patient_id: str
    image: Plane | None
    report: str
    findings: tuple[Finding, ...]
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
    """Studies of `patients` patients with `visits` (fewest, most) visits each, pictures `size` pixels square.

    With `longitudinal`, follow-up reports also say what changed since the previous visit.
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
    profile: HospitalProfile, patient: Patient, visit: int, findings: Sequence[Finding], size: int
) -> Plane:
    """The picture of one visit with the given findings, (size, size) float32 in [0, 1]."""
    chest = compose(deform(draw_anatomy(profile.seed, patient), findings), size)
    draw(chest, findings)
    return acquire(expose(chest), profile.scanner, stream(profile.seed, patient.index, "exposure", visit))


def split_of(profile: HospitalProfile, patient_id: str) -> str:
    """70 % train, 10 % val, 20 % test by a stable hash of the seed and the patient."""
    digest = hashlib.blake2b(f"{profile.seed}/{patient_id}".encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "big") / 2**64
    return "train" if share < 0.7 else "val" if share < 0.8 else "test"


def _studies(
    profile: HospitalProfile, patients: int, visits: tuple[int, int], longitudinal: bool
) -> Iterator[tuple[Patient, SyntheticStudy]]:
    if not 1 <= visits[0] <= visits[1]:
        raise ValueError(f"visits is {visits}; expected (fewest, most) with 1 <= fewest <= most")
    for patient in courses(profile.seed, patients, visits, profile.age, profile.women, profile.prevalence):
        patient_id = f"{profile.name}-p{patient.index:05d}"
        for number, visit in enumerate(patient.visits):
            seen, told = _told(visit, longitudinal)
            rng = stream(profile.seed, patient.index, "wording", number)
            report, codes = write_report(told, profile.style, rng)
            yield (
                patient,
                SyntheticStudy(
                    study_id=f"{patient_id}-v{number}",
                    patient_id=patient_id,
                    image=None,
                    report=report,
                    findings=seen,
                    codes=codes,
                    age=visit.age,
                    sex=patient.sex,
                    day=visit.day,
                    split=split_of(profile, patient_id),
                ),
            )


def _told(visit: Visit, longitudinal: bool) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """What is in the picture, and what the report tells (with or without changes and resolved ones)."""
    seen = tuple(f for f in visit.findings if f.change != "resolved")
    if longitudinal:
        return seen, visit.findings
    seen = tuple(replace(f, change="") for f in seen)
    return seen, seen


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
    folder = Path(folder)
    (folder / "images").mkdir(parents=True, exist_ok=True)
    manifest = folder / "manifest.jsonl"
    count = profile.patients if patients is None else patients
    with manifest.open("w", encoding="ascii", newline="\n") as out:
        for study in generate(profile, count, visits=visits, size=size, longitudinal=longitudinal):
            assert study.image is not None
            name = f"images/{study.study_id}.png"
            to_png(study.image, profile.scanner.bits).save(folder / name)
            out.write(json.dumps(manifest_row(study, name)) + "\n")
    return manifest


def manifest_row(study: SyntheticStudy, image: str) -> dict[str, object]:
    """One line of the `manifest` format; `image` is relative to the folder of the manifest."""
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
    """All pictures on one sheet with age, sex and findings underneath, for people and documentation."""
    shown = [s for s in studies if s.image is not None]
    if not shown:
        raise ValueError("no study with an image; use generate(), not generate_reports()")
    cell, caption = max(len(np.asarray(s.image)) for s in shown), 34
    rows = -(-len(shown) // columns)
    sheet = Image.new("L", (columns * (cell + 4), rows * (cell + caption)), 20)
    pen = ImageDraw.Draw(sheet)
    for k, study in enumerate(shown):
        left, top = k % columns * (cell + 4), k // columns * (cell + caption)
        assert study.image is not None
        sheet.paste(to_png(study.image), (left, top))
        names = [_short(f) for f in study.findings] or ["no finding"]
        pen.text((left + 2, top + cell + 1), f"{study.sex} {study.age}  {names[0]}", fill=230)
        pen.text((left + 2, top + cell + 16), ", ".join(names[1:]), fill=230)
    return sheet


def _short(f: Finding) -> str:
    where = " ".join(filter(None, [f.side[:1].upper() if f.side else "", f.zone]))
    degree = "" if f.kind else "?" if f.uncertain else f.severity[:3]
    return " ".join(filter(None, [f.kind or f.condition, where, degree]))


def prevalence_of(studies: Sequence[SyntheticStudy]) -> dict[str, float]:
    """Share of studies whose report calls each condition positive."""
    hits = np.mean([[c == Code.POSITIVE for c in s.codes] for s in studies], axis=0)
    return dict(zip(CONDITIONS, hits.tolist(), strict=True))


DEMO_HOSPITALS: tuple[HospitalProfile, ...] = (
    HospitalProfile(
        name="site-1",
        style=STYLES["prose"],
        seed=1,
        patients=600,
        age=(64.0, 14.0),
        women=0.46,
        scanner=Scanner(blur=0.35, contrast=1.08, brightness=-0.01, noise=0.012, marker="R"),
        prevalence={
            "cardiomegaly": 1.5,
            "edema": 1.6,
            "pleural effusion": 1.3,
            "support devices": 1.4,
            "lung lesion": 0.6,
            "pneumothorax": 0.7,
        },
    ),
    HospitalProfile(
        name="site-2",
        style=STYLES["structured"],
        seed=2,
        patients=400,
        age=(48.0, 17.0),
        women=0.52,
        scanner=Scanner(
            blur=0.65, contrast=0.90, brightness=0.04, gamma=0.85, noise=0.022, vignette=0.25, marker="L"
        ),
        prevalence={
            "pneumothorax": 2.0,
            "fracture": 2.0,
            "consolidation": 1.3,
            "cardiomegaly": 0.6,
            "edema": 0.5,
        },
    ),
    HospitalProfile(
        name="site-3",
        style=STYLES["british"],
        seed=3,
        patients=250,
        age=(68.0, 12.0),
        women=0.55,
        scanner=Scanner(
            blur=0.45,
            contrast=1.18,
            brightness=-0.04,
            gamma=1.2,
            noise=0.016,
            collimation=0.03,
            marker="",
            bits=16,
        ),
        prevalence={
            "lung lesion": 2.0,
            "pleural other": 2.2,
            "atelectasis": 1.4,
            "pneumonia": 1.5,
            "support devices": 0.5,
            "pneumothorax": 0.6,
        },
    ),
)

UNSEEN_HOSPITAL = HospitalProfile(
    name="hospital-4",
    style=STYLES["registrar"],
    seed=4,
    patients=300,
    age=(57.0, 18.0),
    women=0.50,
    scanner=Scanner(
        blur=0.25,
        contrast=1.0,
        brightness=0.03,
        gamma=1.1,
        noise=0.028,
        vignette=0.4,
        collimation=0.015,
        marker="R",
    ),
    prevalence={"pneumonia": 1.6, "consolidation": 1.3, "pleural effusion": 0.8, "cardiomegaly": 0.9},
)


def pretraining_hospitals(count: int | None = None) -> Iterator[HospitalProfile]:
    """Other hospitals, none of them in any experiment: mixed styles, random machines and prevalences.

    Yields `count` profiles, or for ever when None; profile k is the same whatever `count` is.
    """
    k = 0
    while count is None or k < count:
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence((PRETRAINING_SEED, k))))
        yield HospitalProfile(
            name=f"pretraining-{k}",
            style=_mixed_style(k, rng),
            scanner=_random_scanner(rng),
            prevalence={c: float(np.exp(rng.normal(0, 0.4))) for c in ABNORMAL},
            age=(float(rng.uniform(45, 70)), 16.0),
            women=float(rng.uniform(0.4, 0.6)),
            seed=PRETRAINING_SEED + k,
        )
        k += 1


def _mixed_style(k: int, rng: np.random.Generator) -> HouseStyle:
    """Random frames, layout and negatives, and a vocabulary mixed condition by condition."""
    words, frames, layouts = list(VOCABULARIES), list(FRAMES), list(LAYOUTS)
    common = [c for c in ABNORMAL if c not in ("support devices",)]
    often = rng.permutation(len(common))[: int(rng.integers(5, 8))]
    openings = ["", *(s.opening for s in STYLES.values() if s.opening)]
    return HouseStyle(
        name=f"mixture-{k}",
        frames=frames[int(rng.integers(len(frames)))],
        layout=layouts[k % len(layouts)],
        vocabulary=words[int(rng.integers(len(words)))],
        borrowed={c: words[int(rng.integers(len(words)))] for c in ABNORMAL},
        negatives=tuple(common[int(i)] for i in np.sort(often)),
        opening=openings[int(rng.integers(len(openings)))],
    )


def _random_scanner(rng: np.random.Generator) -> Scanner:
    return Scanner(
        blur=float(rng.uniform(0.2, 0.8)),
        contrast=float(rng.uniform(0.85, 1.2)),
        brightness=float(rng.uniform(-0.05, 0.05)),
        gamma=float(rng.uniform(0.8, 1.25)),
        noise=float(rng.uniform(0.008, 0.03)),
        vignette=float(rng.uniform(0, 0.5)),
        marker=("", "L", "R")[int(rng.integers(3))],
        collimation=float(rng.choice([0.0, 0.0, 0.02, 0.03])),
    )
