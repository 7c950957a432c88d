# SPDX-License-Identifier: Apache-2.0
"""Identifiers by rules: every kind is found, clinical words that look like one are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from medflare.core.errors import ConfigError
from medflare.identifiers.dicom_tags import identifying_tags, says_burned_in
from medflare.identifiers.kinds import Identifier, identifier_warning, without_overlaps
from medflare.identifiers.pixels import burned_in_text
from medflare.identifiers.presidio import PresidioDetector
from medflare.identifiers.rules import RuleDetector


def found(text: str) -> set[tuple[str, str]]:
    return {(item.kind, text[item.start : item.end]) for item in RuleDetector().find(text)}


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("Seen by Dr. Alice Meyer today.", "name", "Alice Meyer"),
        ("Mrs. Whitcombe was admitted.", "name", "Whitcombe"),
        ("Patient: Tjorven Quast, comes with cough.", "name", "Tjorven Quast"),
        ("John Quast, MD", "name", "John Quast"),
        ("Discussed with Tjorven Quast today.", "name", "Tjorven Quast"),
        ("She is accompanied by Xiomara B. Achterberg.", "name", "Xiomara B. Achterberg"),
        ("Her daughter, Bronagh Oyelaran, agrees.", "name", "Bronagh Oyelaran"),
        ("Mr. Whitcombe slept. In the morning Whitcombe ate.", "name", "Whitcombe"),
        ("Quoted from Smith, John in clinic.", "name", "Smith, John"),
        ("Ordered by Maria Quast on call.", "name", "Maria Quast"),
        ("DOB 1951-03-14", "date", "1951-03-14"),
        ("on 03/14/1951", "date", "03/14/1951"),
        ("am 14.03.1951", "date", "14.03.1951"),
        ("on March 3, 2021 she", "date", "March 3, 2021"),
        ("since 3rd May 2020", "date", "3rd May 2020"),
        ("in April 2019", "date", "April 2019"),
        ("MRN: 00481516", "record_number", "00481516"),
        ("Accession number A-558812 of", "record_number", "A-558812"),
        ("SSN 123-45-6789", "record_number", "123-45-6789"),
        ("call (617) 555-1234 now", "phone", "(617) 555-1234"),
        ("+49 30 1234567", "phone", "+49 30 1234567"),
        ("pager 55123", "phone", "55123"),
        ("m.whit@example.com", "email", "m.whit@example.com"),
        ("see www.example.org", "web_address", "www.example.org"),
        ("lives at 12 Oak Hill Road.", "address", "12 Oak Hill Road"),
        ("from Boston, MA 02115", "address", "Boston, MA 02115"),
        ("Lindenstraße 12", "address", "Lindenstraße 12"),
        ("at Mercy General Hospital for", "institution", "Mercy General Hospital"),
        ("a 93-year-old man", "age_over_89", "93"),
    ],
)
def test_an_identifier_is_found(text: str, kind: str, words: str) -> None:
    assert (kind, words) in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "Foley catheter and Swan-Ganz catheter in place.",
        "Crohn disease, Parkinson disease, Hodgkin lymphoma, Wilms tumor.",
        "BP 120/80, Na 140, K 3.9, INR 1.2-1.5, T1 and T2 lesions, L4/5.",
        "A 72-year-old woman with pain 3/10 and strength 4/5.",
        "May have mild edema. Grade II murmur. Will follow.",
        "Take 1 tablet 2 times daily, 81 mg.",
        "FINDINGS: The heart is enlarged. No pleural effusion or pneumothorax.",
        "Sample Name: Gen Med Consult. Seen by Dr. X. The patient left. Cycle 11.3/33.",
        "Apgar 8/9, Glasgow 15, Gleason 3+4.",
        "Discussed with Infectious Disease and with Physical Therapy. Seen by Internal Medicine.",
        "Performed by Interventional Radiology; followed by Social Work, Case Management and Pain Service.",
        "McBurney tenderness; Murphy sign negative.",
        "The trachea is midline. Right Upper Lobe opacity.",
    ],
)
def test_clinical_words_are_no_identifiers(text: str) -> None:
    assert found(text) == set()


def test_the_longer_of_two_overlapping_identifiers_stays() -> None:
    inner, outer, other = Identifier(2, 5, "date"), Identifier(0, 6, "name"), Identifier(7, 9, "phone")
    assert without_overlaps([inner, other, outer]) == [outer, other]


def test_a_warning_names_kinds_and_places_and_never_the_words() -> None:
    said = identifier_warning("Compared with 03/14/1951, Dr. Alice Meyer.", RuleDetector())
    assert said is not None
    assert "date at 14:24" in said
    assert "Meyer" not in said
    assert "1951" not in said
    assert identifier_warning("The lungs are clear.", RuleDetector()) is None


def test_a_model_that_is_not_there_is_said_before_anything_is_read() -> None:
    with pytest.raises(ConfigError, match=r"Presidio is not installed|no spaCy model 'none'"):
        PresidioDetector("none")


def test_dicom_elements_are_harmless_only_by_name() -> None:
    from pydicom.dataset import Dataset

    header, item = Dataset(), Dataset()
    header.Modality, header.Rows, header.PatientSex = "DX", 10, "F"
    assert identifying_tags(header) == []
    header.PatientName, header.StudyDescription, header.PatientID = "A^B", "Chest of A. B.", ""
    item.OperatorsName = "C"
    header.RequestAttributesSequence = [item]
    header.private_block(0x0011, "vendor", create=True).add_new(0x01, "LO", "A. B.")
    assert identifying_tags(header) == [
        "OperatorsName",
        "PatientName",
        "StudyDescription",
        "private",
    ]
    assert not says_burned_in(header)
    header.BurnedInAnnotation = "YES"
    assert says_burned_in(header)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("Digital Detector 3000", []),
        (["Digital", "Detector"], []),
        ("Dr. Quast", ["ManufacturerModelName"]),
        ("seen 12.03.1951", ["ManufacturerModelName"]),
        (["Detector", "Mary Quast"], ["ManufacturerModelName"]),
        ("x" * 65, ["ManufacturerModelName"]),
    ],
)
def test_a_free_text_is_harmless_only_where_nothing_is_found_in_it(value: Any, found: list[str]) -> None:
    from pydicom.dataset import Dataset

    header = Dataset()
    header.ManufacturerModelName = value
    assert identifying_tags(header) == found


def test_a_free_text_about_the_picture_is_not_on_the_list() -> None:
    from pydicom.dataset import Dataset

    header = Dataset()
    header.WindowCenterWidthExplanation, header.DeidentificationMethod = "NORMAL", "by hand"
    assert identifying_tags(header) == ["DeidentificationMethod", "WindowCenterWidthExplanation"]


def radiograph() -> Image.Image:
    """A grey picture with soft shapes and a lung-like dark field."""
    noise = np.random.default_rng(0).normal(0, 6, (512, 512))
    rows, columns = np.mgrid[:512, :512]
    field = 90 + 60 * np.cos(rows / 90) * np.cos(columns / 110) + noise
    return Image.fromarray(field.clip(10, 240).astype(np.uint8))


@pytest.mark.parametrize(
    ("text", "size", "grey", "burned"),
    [
        ("", 22, 255, False),
        ("R", 22, 255, False),
        ("WHITCOMBE, MARY", 22, 255, True),
        ("DOB 03/14/1951", 22, 255, True),
        ("WHITCOMBE, MARY", 11, 230, True),
    ],
)
def test_a_line_of_text_in_the_pixels_is_noticed_and_a_side_marker_is_not(
    text: str, size: int, grey: int, burned: bool
) -> None:
    image = radiograph()
    ImageDraw.Draw(image).text((20, 20), text, fill=grey, font_size=size)
    assert burned_in_text(np.asarray(image, dtype=np.float32) / 255) is burned


def test_text_in_a_large_picture_is_noticed() -> None:
    image = radiograph().resize((2100, 2100))
    ImageDraw.Draw(image).text((60, 60), "WHITCOMBE, MARY", fill=255, font_size=60)
    assert burned_in_text(np.asarray(image, dtype=np.float32) / 255)
    assert not burned_in_text(np.asarray(radiograph().resize((2100, 2100)), dtype=np.float32) / 255)


def test_a_name_that_was_found_once_is_found_everywhere_but_not_as_a_word() -> None:
    text = "Seen by Dr. Long. The stay was long. Long was told. Long-term care."
    assert sum(item.kind == "name" for item in RuleDetector().find(text)) == 1
    text = "Seen by Dr. Quast. Later Quast was told, and Quast agreed."
    assert sum(item.kind == "name" for item in RuleDetector().find(text)) == 3
