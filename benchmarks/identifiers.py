# SPDX-License-Identifier: Apache-2.0
"""Recall and precision of the identifier rules, on identifiers that are planted in synthetic notes.

    python benchmarks/identifiers.py [--notes FOLDER | --images FOLDER | --dicom FOLDER]

prints the numbers of docs/results/identifiers.md. Names are drawn from lists that the detector does not have,
most of them with a word beside them that tells. The sentences are of the detector's author, so the recall is
an upper bound.
"""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from pydicom import Dataset, dcmread
from pydicom._dicom_dict import DicomDictionary
from pydicom.datadict import dictionary_VR
from pydicom.errors import InvalidDicomError

from medflare.data.load import load_cohort
from medflare.data.settings.site import SiteConfig
from medflare.identifiers.dicom_tags import FREE_TEXT, identifying_tags
from medflare.identifiers.kinds import KINDS, Kind
from medflare.identifiers.pixels import burned_in_text
from medflare.identifiers.rules import RuleDetector
from medflare.synthetic.notes.generate import generate_notes
from medflare.synthetic.notes.profiles import NOTE_HOSPITALS

RARE_FIRST = ["Tjorven", "Xiomara", "Oluwaseun", "Bronagh", "Ekaterini", "Thandiwe", "Siobhan", "Aoife"]
COMMON_FIRST = ["Mary", "James", "Elena", "Carlos", "Sophie", "Ahmed", "Hannah", "Peter"]
LAST = ["Quast", "Whitcombe", "Oyelaran", "Brzezinski", "Vandermolen", "Achterberg", "Szymanski", "Delacroix"]
STREETS = ["Oak Hill", "Linden", "Station", "Chapel", "Riverside"]
CITIES = ["Springfield, IL 62701", "Portland, OR 97201", "Savannah, GA"]
HOSPITALS = ["Mercy General Hospital", "Lakeside Medical Center", "St. Brigid Hospital", "Northfield Clinic"]

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
]

Maker = Callable[[random.Random], str]


def _name(draw: random.Random, first: list[str]) -> str:
    return f"{draw.choice(first)} {draw.choice(LAST)}"


def _date(draw: random.Random) -> str:
    year, month, day = draw.randint(1935, 2024), draw.randint(1, 12), draw.randint(1, 28)
    return draw.choice(
        [
            f"{month:02}/{day:02}/{year}",
            f"{year}-{month:02}-{day:02}",
            f"{day}.{month}.{year}",
            f"{draw.choice(MONTHS)} {day}, {year}",
            f"{day} {draw.choice(MONTHS)[:3]} {year}",
        ]
    )


def _digits(draw: random.Random, count: int) -> str:
    return "".join(str(draw.randint(0, 9)) for _ in range(count))


PERSON_WORDS = (
    "Discussed with {} today.",
    "She lives with {}.",
    "Accompanied by {}.",
    "His daughter, {}, agrees.",
    "We notified {} of the result.",
)
ALONE = (
    "{} was at the bedside.",
    "The plan is clear to {}.",
    "Per {}, the drain stays.",
    "Message left for {}.",
    "Thanks to {} for this referral.",
)
"""Sentences without any word that the rules know."""
PLANTS: dict[str, tuple[Kind, str | tuple[str, ...], Maker]] = {
    "name, with a title": ("name", "Seen by Dr. {}.", lambda d: _name(d, RARE_FIRST)),
    "name, in a field": ("name", "Patient name: {}.", lambda d: _name(d, RARE_FIRST)),
    "name, with a degree": ("name", "{}, MD.", lambda d: _name(d, RARE_FIRST)),
    "name, common first name": ("name", "Discussed with {} today.", lambda d: _name(d, COMMON_FIRST)),
    "name, rare, after a word for persons": (
        "name",
        PERSON_WORDS,
        lambda d: _name(d, RARE_FIRST),
    ),
    "name, rare and alone": ("name", ALONE, lambda d: _name(d, RARE_FIRST)),
    "surname alone, of a name found elsewhere": (
        "name",
        ("Seen by Dr. Xiomara {0}. Later {0} called back.",),
        lambda d: d.choice(LAST),
    ),
    "date": ("date", "Admitted on {}.", _date),
    "record number": ("record_number", "MRN: {}.", lambda d: _digits(d, 8)),
    "social security number": (
        "record_number",
        "SSN {}.",
        lambda d: f"{_digits(d, 3)}-{_digits(d, 2)}-{_digits(d, 4)}",
    ),
    "phone": ("phone", "Call {}.", lambda d: f"({_digits(d, 3)}) {_digits(d, 3)}-{_digits(d, 4)}"),
    "e-mail": ("email", "Write to {}.", lambda d: f"{d.choice(LAST).lower()}@example.com"),
    "street": ("address", "Lives at {}.", lambda d: f"{d.randint(1, 999)} {d.choice(STREETS)} Road"),
    "city and state": ("address", "Comes from {}.", lambda d: d.choice(CITIES)),
    "hospital": ("institution", "Transferred from {}.", lambda d: d.choice(HOSPITALS)),
    "age over 89": ("age_over_89", "A {}-year-old patient.", lambda d: str(d.randint(90, 104))),
}
"""Row of the table -> kind, the sentence that is planted, and what stands in its gap."""


def measure(texts: list[str], seed: int) -> tuple[dict[str, tuple[int, int]], Counter[str], int]:
    """Return row -> (found whole, planted), false alarms by kind, and all findings of the planted texts."""
    draw, detector = random.Random(seed), RuleDetector()
    rows: dict[str, tuple[int, int]] = dict.fromkeys(PLANTS, (0, 0))
    false: Counter[str] = Counter()
    total = 0
    for text in texts:
        planted, spans = text, []
        for name in draw.sample(list(PLANTS), 4):
            kind, sentences, make = PLANTS[name]
            sentence = sentences if isinstance(sentences, str) else draw.choice(sentences)
            words = make(draw)
            line = sentence.format(words)
            start = len(planted) + 1 + line.rindex(words)
            planted += "\n" + line
            spans.append((name, kind, start, start + len(words)))
        matches = detector.find(planted)
        total += len(matches)
        for name, _, start, end in spans:
            covered = any(item.start <= start and item.end >= end for item in matches)
            rows[name] = (rows[name][0] + covered, rows[name][1] + 1)
        for item in matches:
            if not any(item.start < end and item.end > start for _, _, start, end in spans):
                false[item.kind] += 1
    return rows, false, total


WORDS = ("WHITCOMBE, MARY", "DOB 03/14/1951", "ID 00481516", "Mercy Hospital")
SIZES = (10, 14, 20, 28)
"""Heights of the letters that are burned in, in pixels."""


def measure_pictures(folder: Path, seed: int, copy_flagged: Path | None) -> None:
    """Print how many pictures are flagged as they are, and with a line of text in a corner."""
    draw, files = random.Random(seed), sorted(p for p in folder.iterdir() if p.suffix in (".jpg", ".png"))
    found, flagged = dict.fromkeys(SIZES, 0), 0
    for file in files:
        picture = Image.open(file).convert("L")
        if burned_in_text(np.asarray(picture, dtype=np.float32) / 255):
            flagged += 1
            if copy_flagged is not None:
                copy_flagged.mkdir(parents=True, exist_ok=True)
                picture.save(copy_flagged / f"{file.stem}.png")
        for size in SIZES:
            planted, text = picture.copy(), draw.choice(WORDS)
            left, top = draw.choice([(0, 0), (1, 0), (0, 1), (1, 1)])
            place = (
                8 + left * max(picture.width - 16 - 9 * size, 0),
                8 + top * (picture.height - 20 - size),
            )
            ImageDraw.Draw(planted).text(place, text, fill=draw.choice([255, 200]), font_size=size)
            found[size] += burned_in_text(np.asarray(planted, dtype=np.float32) / 255)
    print(f"\n{len(files)} pictures, {flagged} flagged as they are; look at them to count false alarms.")
    for size, count in found.items():
        print(f"line of {size} pixels burned in: {count} of {len(files)} flagged")


def headers(folder: Path) -> list[Dataset]:
    """Return the headers of a folder's DICOM files, in the order of their names."""
    found = []
    for file in sorted(folder.rglob("*")):
        with suppress(InvalidDicomError, OSError, NotImplementedError, EOFError):
            if file.is_file():
                found.append(dcmread(file, stop_before_pixels=True))
    return [header for header in found if len(header)]


def standard_elements() -> list[str]:
    """Return the keywords of the standard's elements of a person, date, time, text or unique id."""
    personal = {"PN", "DA", "DT", "TM", "UI", *FREE_TEXT}
    entries = [(entry[0], entry[4]) for entry in DicomDictionary.values()]
    return sorted({keyword for kinds, keyword in entries if keyword and personal & set(kinds.split(" or "))})


PLANTED: dict[str, str | float] = {
    "PN": "Quast^Tjorven",
    "DA": "19510312",
    "DT": "19510312",
    "TM": "1015",
    "UI": "1.2.3.4.5",
}


def measure_headers(folder: Path) -> None:
    """Print what is found in headers as they are, and which of the standard's elements go unseen.

    Of each element that can tell of a person one is planted; free text says "Tjorven Quast, born 12.03.1951".
    """
    each = [identifying_tags(header) for header in headers(folder)]
    counts = Counter(name for names in each for name in names)
    print(
        f"{len(each)} files, {sum(map(bool, each))} with elements that may identify; of {len(counts)} kinds:"
    )
    print(", ".join(f"{name} {count}" for name, count in counts.most_common(12)))
    known, missed = standard_elements(), []
    for keyword in known:
        header, kind = Dataset(), dictionary_VR(keyword).split(" or ")[0]
        header.add_new(
            keyword, kind, PLANTED.get(kind, "Tjorven Quast, born 12.03.1951"[: 16 if kind == "SH" else 64])
        )
        if not identifying_tags(header):
            missed.append(keyword)
    print(f"{len(known)} elements of the standard hold a person, a date, a time, text or a unique id:")
    print(f"{len(known) - len(missed)} are named; not named: {', '.join(missed) or 'none'}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--notes", type=Path, help="BRAT folder of real, de-identified notes for false alarms"
    )
    parser.add_argument("--images", type=Path, help="folder of pictures, for burned-in text")
    parser.add_argument("--flagged", type=Path, help="where to copy pictures that are flagged as they are")
    parser.add_argument("--dicom", type=Path, help="folder of DICOM files, for their headers")
    parser.add_argument("--count", type=int, default=600)
    given = parser.parse_args()
    if given.dicom is not None:
        measure_headers(given.dicom)
        return
    if given.images is not None:
        measure_pictures(given.images, 0, given.flagged)
        return
    each = given.count // len(NOTE_HOSPITALS)
    texts = [note.text for profile in NOTE_HOSPITALS for note in generate_notes(profile, each)]
    rows, false, total = measure(texts, 0)
    print("| planted | kind | found | planted | recall |\n|---|---|---|---|---|")
    for name, (covered, planted) in rows.items():
        recall = 100 * covered / max(planted, 1)
        print(f"| {name} | {PLANTS[name][0]} | {covered} | {planted} | {recall:.1f} % |")
    right = total - sum(false.values())
    print(f"\nOf {total} findings in {len(texts)} synthetic notes, {right} were planted.")
    print(
        "Not planted (notes have dates and physicians of their own):",
        ", ".join(f"{kind} {false[kind]}" for kind in KINDS if false[kind]) or "none",
    )
    if given.notes is not None:
        document = {"cohort": {"format": "brat", "root": str(given.notes), "tasks": []}}
        notes = load_cohort(SiteConfig.model_validate(document)).notes
        counts = Counter(item.kind for note in notes for item in RuleDetector().find(note.text))
        words = sum(len(note.text.split()) for note in notes)
        print(
            f"\n{given.notes.name}: {sum(counts.values())} findings in {len(notes)} notes, {words:,} words:",
            ", ".join(f"{kind} {count}" for kind, count in counts.most_common()),
        )


if __name__ == "__main__":
    main()
