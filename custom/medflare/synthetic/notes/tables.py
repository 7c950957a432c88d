# SPDX-License-Identifier: Apache-2.0
"""Tables of the lexicon from texts that a person can read and extend, and British spelling."""

from __future__ import annotations

BRITISH = {
    "anemia": "anaemia",
    "edema": "oedema",
    "hemo": "haemo",
    "hemat": "haemat",
    "emorrh": "aemorrh",
    "diarrhea": "diarrhoea",
    "esophag": "oesophag",
    "tumor": "tumour",
    "ischemi": "ischaemi",
    "leukemia": "leukaemia",
    "calemia": "calaemia",
    "kalemia": "kalaemia",
    "natremia": "natraemia",
    "glycemia": "glycaemia",
    "celiac": "coeliac",
    "cteremia": "cteraemia",
    "acetaminophen": "paracetamol",
    "albuterol": "salbutamol",
    "furosemide": "frusemide",
    "x-ray": "radiograph",
    "counseling": "counselling",
    "estrogen": "oestrogen",
    "mcg": "µg",
    "dyspnea": "dyspnoea",
    "apnea": "apnoea",
    "color": "colour",
    "center": "centre",
}
"""Replacements in the order in which they are made."""


def rows(text: str) -> tuple[str, ...]:
    """Entries between commas."""
    return tuple(" ".join(item.split()) for item in text.split(",") if item.strip())


def lines(text: str) -> tuple[str, ...]:
    """One entry a line; a line that begins with "+" continues the one before."""
    joined = " ".join(f"\n{line.strip()}" for line in text.strip().splitlines()).replace("\n+", "")
    return tuple(" ".join(line.split()) for line in joined.strip().splitlines())
