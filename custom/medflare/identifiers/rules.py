# SPDX-License-Identifier: Apache-2.0
"""Identifiers by rules and dictionaries: patterns for numbers and dates, words beside a name, lists of names.

The default detector. It needs no model and sends nothing anywhere. A rare name is found where a title, a
field, a degree or a word such as "discussed with" stands beside it somewhere in the text, and then everywhere
in it; docs/results/identifiers.md has the recall of each kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from pathlib import Path

from medflare.core.config import read_package_table
from medflare.identifiers.kinds import Identifier, Kind, without_overlaps

_MONTH = (
    r"(?:Jan(?:uary|uar)?|Feb(?:ruary|ruar)?|Mar(?:ch)?|M[äa]rz|Apr(?:il)?|May|Mai|June?|Juni|July?|Juli"
    r"|Aug(?:ust)?|Sept?(?:ember)?|O[ck]t(?:ober)?|Nov(?:ember)?|De[cz](?:ember)?)\.?"
)
_DAY = r"(?:0?[1-9]|[12]\d|3[01])"
_YEAR = r"(?:19|20)\d\d"
_STREET = (
    r"(?:Street|St\.|Avenue|Ave\.?|Road|Rd\.?|Lane|Ln\.?|Drive|Boulevard|Blvd\.?|Court|Ct\.|Way|Terrace"
    r"|Place)(?:,?[ \t]+(?:Apt|Suite|Unit)\.?[ \t]*\w+)?"
)
_STATE = (
    r"(?:AL|AK|AZ|AR|CA|CO|CT|DE|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM|NY|NC"
    r"|ND|OH|OK|OR|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|MD(?=[ \t]+\d{5}))(?:[ \t]+\d{5}(?:-\d{4})?)?"
)
_NAME = r"[A-ZÄÖÜ][a-zäöüßéèáíóñç]+(?:[-'][A-ZÄÖÜ]?[a-zäöüßé]+)?"
_TWO = rf"{_NAME}(?:[ \t]+{_NAME})?"
_OPENS = r"(?:The|She|He|Her|His|An?|At|Again|Review|In|On|This|We|It|Patient|There|Of|For|With)\b"
"""Words that open the next sentence after "Dr. X."."""
_LAST = rf"(?:[A-Z]\.[ \t]*)?(?:van |von |de |del |da |di )?{_NAME}"
_FULL = rf"(?:[A-Z]\.[ \t]*(?!{_OPENS}))?{_NAME}(?:[ \t]+{_LAST})?"
_NUMBER = r"[A-Z]{0,3}[-#]?\d[\dA-Z-]{3,14}\b"
_NO = r"(?: number| no\.?)?"
_RECORD = (
    rf"(?i:\b(?:MRN|medical record{_NO}|patient (?:id|number|no\.?)|account{_NO}|accession{_NO}"
    r"|case (?:number|no\.?)|insurance (?:number|no\.?)|SSN))"
)
_HOSPITAL = r"(?:Hospital|Medical Cent(?:er|re)|Clinic|Klinikum|Krankenhaus|Infirmary|Health System|Hospice)"
_TITLE = r"(?:Dr|Drs|Mr|Mrs|Ms|Miss|Prof|Professor|Nurse|Sister|Herr|Frau|Señora?)\.?"
_DEGREE = r"(?:MD|M\.D\.|DO|D\.O\.|RN|R\.N\.|PA-C|NP|PhD|Ph\.D\.)(?!\w)"
_FIELD = (
    r"(?i:\b(?:patient(?:'s)? name|name of patient|attending|referring physician|dictated by|signed by"
    r"|seen by|requested by|reported by|cc|next of kin|contact person)|^[ \t]*(?:patient|name))[ \t]*:[ \t]*"
)
_PERSON_BEFORE = (
    r"(?:\b(?i:(?:discussed|spoken?|talked|met|conferred|consulted|reviewed|visited?|lives?|living)[ \t]+with"
    r"|(?:seen|evaluated|examined|accompanied|referred|signed|dictated|assisted|followed|performed|admitted"
    r"|written|ordered|requested|witnessed|brought[ \t]+in)[ \t]+by"
    r"|(?:his|her|their|patient's)[ \t]+(?:wife|husband|spouse|partner|fiancée?|mother|father|sister|brother"
    r"|daughter|son|aunt|uncle|niece|nephew|friend|neighbou?r|caregiver|guardian|employer)"
    r"|named|called|contacted|phoned|notified|informed)[ \t]*,?[ \t]+)"
)
"""Words after which two capitalised words are a person, whatever the dictionary says of them."""
_NOBODY = (
    r"(?!(?:[A-Z][a-z]+[ \t]+)?(?:\w*(?:logy|logist|iatry|iatric[s]?|opedics?|ectomy|oscopy|otomy|itis|emia)"
    r"|Medicine|Surgery|Surgical|Therapy|Therapist|Care|Team|Services?|Department|Nurs\w+|Unit|Clinic|Center"
    r"|Hospital|Social|Work\w*|Emergency|Room|Internal|Family|Physical|Occupational|Speech|Case|Manage\w+"
    r"|General|Primary|Home|Health|Police|Poison|Control|Pain|Infectious|Disease|Syndrome|Catheter|Test|Sign"
    r"|Procedure|Technique|Bank|Board|State|County|City|School|Inc|Company)\b)"
)

PATTERNS: tuple[tuple[Kind, str], ...] = (
    ("date", rf"\b{_YEAR}-(?:0[1-9]|1[0-2])-{_DAY}(?:T[\d:]+)?\b"),
    ("date", rf"\b{_DAY}(?P<mark>[./-])(?:0?[1-9]|1[0-2])(?P=mark)(?:{_YEAR}|\d\d)\b"),
    ("date", rf"\b(?:0?[1-9]|1[0-2])(?P<mark>[/-]){_DAY}(?P=mark)(?:{_YEAR}|\d\d)\b"),
    ("date", rf"\b{_DAY}(?:st|nd|rd|th|\.)?[ \t]+{_MONTH},?[ \t]+{_YEAR}\b"),
    ("date", rf"\b{_MONTH}[ \t]+{_DAY}(?:st|nd|rd|th)?,?[ \t]+{_YEAR}\b"),
    ("date", rf"\b{_MONTH}[ \t]+{_DAY}(?:st|nd|rd|th)?\b(?![.,]?\d)"),
    ("date", rf"\b{_MONTH}[ \t]+{_YEAR}\b"),
    ("record_number", rf"{_RECORD}[ \t]*[:#]?[ \t]*(?P<id>{_NUMBER})"),
    ("record_number", r"\b\d{3}-\d{2}-\d{4}\b"),
    ("phone", r"(?<![\d.])(?:\+\d{1,3}[ .-]?)?\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}\b"),
    ("phone", r"(?<!\w)\+\d{1,3}[ \d/().-]{7,16}\d\b"),
    ("phone", r"(?i:\b(?:phone|tel\.?|telephone|pager|fax)[ \t]*[:#]?[ \t]*)(?P<id>[\d(][\d ()/.-]{3,16}\d)"),
    ("email", r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"),
    ("web_address", r"\bhttps?://[^\s<>\"']+|\bwww\.[\w-]+(?:\.[\w-]+)+"),
    ("address", rf"\b\d{{1,5}}[ \t]+(?:[NSEW]\.?[ \t]+)?{_TWO}[ \t]+{_STREET}"),
    ("address", rf"\b{_TWO},[ \t]+{_STATE}\b"),
    ("address", rf"\b{_NAME}(?:straße|strasse|weg|platz|gasse|allee)[ \t]+\d{{1,4}}[a-z]?\b"),
    ("address", rf"\b\d{{5}}[ \t]+{_NAME}\b(?=[,.\n]|$)"),
    ("institution", rf"\b{_NAME}(?:[ \t]+(?:of[ \t]+|and[ \t]+|&[ \t]+)?{_NAME}){{0,3}}[ \t]+{_HOSPITAL}\b"),
    ("institution", rf"\bSt\.[ \t]+{_NAME}(?:'s)?(?:[ \t]+{_HOSPITAL})?"),
    ("age_over_89", r"\b(?P<id>9\d|1[0-2]\d)(?=[ -]?(?:years?|yrs?|y)[ -]?(?:old|o\b)|[ -]?y/?o\b|-year)"),
    ("name", rf"\b{_TITLE}[ \t]+(?P<id>{_FULL})"),
    ("name", rf"\b(?P<id>{_NAME}(?:[ \t]+[A-Z]\.)?[ \t]+{_NAME}),?[ \t]+{_DEGREE}"),
    ("name", rf"{_FIELD}(?P<id>{_NAME},?[ \t]+(?:[A-Z]\.[ \t]*)?{_NAME})"),
    ("name", rf"{_PERSON_BEFORE}{_NOBODY}(?P<id>{_NAME}[ \t]+(?:[A-Z]\.[ \t]*)?{_NAME})"),
)
"""Kind, and the pattern of it; the group `id` is the identifier where the words beside it are none."""

_COMPILED = tuple((kind, re.compile(pattern, re.MULTILINE)) for kind, pattern in PATTERNS)
_WORD = re.compile(rf"\b{_NAME}\b")
_BETWEEN = re.compile(r"(?:,?[ \t]+|[ \t]+[A-Z]\.?[ \t]+)")


@cache
def _dictionary(name: str) -> frozenset[str]:
    table = read_package_table(dict[str, str], Path(__file__).with_name("dictionaries.yaml"))
    return frozenset(table[name].split())


class RuleDetector:
    """Finds identifiers by PATTERNS and by the lists of dictionaries.yaml."""

    def find(self, text: str) -> list[Identifier]:
        """Return the identifiers of a text in its order, none overlapping another."""
        found = [*_by_pattern(text), *_by_list(text)]
        return without_overlaps([*found, *_repeated(text, found)])


def _by_pattern(text: str) -> Iterator[Identifier]:
    for kind, pattern in _COMPILED:
        for match in pattern.finditer(text):
            group = "id" if "id" in pattern.groupindex else 0
            start, end = match.span(group)
            if kind != "name" or text[start:end].split()[0].strip(".,") not in _dictionary("not_names"):
                yield Identifier(start, end, kind)


def _repeated(text: str, found: list[Identifier]) -> Iterator[Identifier]:
    """Yield the words of names that were found, wherever else they stand in the text."""
    spans = [(item.start, item.end) for item in found if item.kind == "name"]
    names = {word[0] for span in spans for word in _WORD.finditer(text, *span)} - _dictionary("not_names")
    # a word that the text has in small letters too is none of a person alone
    small = set(re.findall(r"\b[a-z]{2,}\b", text))
    for word in _WORD.finditer(text):
        if word[0] in names and word[0].lower() not in small:
            yield Identifier(word.start(), word.end(), "name")


def _by_list(text: str) -> Iterator[Identifier]:
    """Yield first names with the capitalised word after them, and "Surname, First name" of the lists."""
    words = list(_WORD.finditer(text))
    first_names, surnames = _dictionary("first_names"), _dictionary("surnames")
    for word, following in zip_longest(words, words[1:]):
        adjacent = following is not None and _BETWEEN.fullmatch(text[word.end() : following.start()])
        if word[0] in first_names:
            end = word.end()
            if following is not None and adjacent and following[0] not in _dictionary("not_names"):
                end = following.end() if "," not in text[word.end() : following.start()] else end
            yield Identifier(word.start(), end, "name")
        elif following is not None and adjacent and word[0] in surnames and following[0] in first_names:
            yield Identifier(word.start(), following.end(), "name")
