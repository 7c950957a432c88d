# SPDX-License-Identifier: Apache-2.0
"""The rules that all houses share: problems, tests with values, prescriptions, times and persons."""

from __future__ import annotations

from collections.abc import Mapping

from .grammar import Rule, Writer, marked, withheld
from .lexicon_drugs import DRUGS
from .lexicon_problems import (
    COMPLAINTS,
    DEGREES,
    DISEASES,
    LESIONS,
    PARTS,
    RELATIVES,
    SIDES,
    SIGNS,
    SYMPTOMS,
    TRENDS,
)
from .lexicon_tests import LABS, MODALITIES, REGIONS, STUDIES, TREATMENTS


def problem(writer: Writer, phrase: str, key: str, determiner: str = "", share: float = 0.3) -> str:
    """A problem with, now and then, a degree or a course in or before its span as the house marks them."""
    words = ""
    if writer.chance(share):
        graded = writer.chance(0.5)
        words = f"[severity >{key}|{writer.pick(DEGREES)}] " if graded else ""
        words = words or f"[course >{key}|{writer.pick(TRENDS)}] "
    if determiner or writer.chance(writer.profile.inside):
        return f"[problem {key}|{determiner}{words}{marked(phrase, key)}]"
    return f"{words}[problem {key}|{marked(phrase, key)}]"


def disease(writer: Writer, key: str) -> str:
    names = writer.entry(DISEASES)
    phrase = writer.form(names.replace("+", ""))
    return problem(writer, phrase, key, share=0.35 if "+" in names else 0.0)


def symptom(writer: Writer, key: str, determiner: str = "", share: float = 0.3) -> str:
    phrase = located(writer) if writer.chance(0.4) else writer.form(writer.entry(SYMPTOMS))
    bare = phrase.startswith(("a ", "poor ", "low ")) or "*" in phrase
    return problem(
        writer, phrase, key, determiner if not phrase.startswith("a ") else "", 0 if bare else share
    )


def plain_symptom(writer: Writer, key: str) -> str:
    return symptom(writer, key, share=0.0)


def own_symptom(writer: Writer, key: str) -> str:
    return symptom(writer, key, determiner="her " if writer.woman else "his ")


def sign(writer: Writer, key: str) -> str:
    phrase = writer.form(writer.entry(SIGNS))
    return problem(writer, phrase, key, share=0.25)


def plain_sign(writer: Writer, key: str) -> str:
    return problem(writer, writer.form(writer.entry(SIGNS)), key, share=0.0)


def located(writer: Writer) -> str:
    """A complaint of a place: thousands of combinations, so that test notes hold some that training lacks."""
    place = f"{writer.pick(SIDES)} {writer.pick(PARTS[writer.specialty])}"
    for complaint in (writer.pick(COMPLAINTS) for _ in range(9)):
        if not withheld(f"{place} {complaint}", writer.profile.withheld):
            break
    writer.said.add(place)
    if place.startswith("bilateral"):
        return f"_{place}_ {complaint}"
    return writer.pick((f"_{place}_ {complaint}", f"_{place}_ {complaint}", f"{complaint} in the _{place}_"))


def lesion(writer: Writer, key: str) -> str:
    """A countable finding with its article, as pictures show it."""
    place = f"{writer.pick(SIDES[:2])} {writer.pick(PARTS[writer.specialty])}"
    words = writer.pick(
        (
            "",
            "",
            f"[severity >{key}|{writer.pick(('small', 'large', 'tiny', 'moderate-sized', '3-mm', '1.4-cm', '2-cm'))}] ",
            f"[course >{key}|{writer.pick(('new', 'stable', 'growing', 'resolving', 'enlarging'))}] ",
        )
    )
    what = writer.pick(LESIONS)
    bodyloc = f"[bodyloc >{key}|{place}]"
    if writer.chance(0.5):
        return f"[problem {key}|a_n {words}{bodyloc} {what}]"
    return f"[problem {key}|a_n {words}{what} in the {bodyloc}]"


def lab(writer: Writer, key: str) -> str:
    """A laboratory test with its value in the pattern of the house (`lab_form`)."""
    names, limits, unit, reference = (part.strip() for part in writer.entry(LABS).split(";"))
    low, high, digits = limits.split()
    value = f"{writer.rng.uniform(float(low), float(high)):.{digits}f}"
    value += f"{unit}" if unit == "%" else f" {unit}" if unit and writer.chance(writer.profile.units) else ""
    pattern = writer.expand(writer.pick(writer.rules["lab_form"]), key)  # type: ignore[arg-type]
    for token, text in (("NAME", writer.form(names)), ("VALUE", value), ("RANGE", reference)):
        pattern = pattern.replace(token, text)
    return pattern


def lab_name(writer: Writer, key: str) -> str:
    return f"[test {key}|{writer.form(writer.entry(LABS).split(';')[0])}]"


def study_name(writer: Writer, key: str) -> str:
    if writer.specialty in ("orthopaedics", "general") and writer.chance(0.4):
        name = f"{writer.pick(MODALITIES)} of the {writer.pick(SIDES[:2])} {writer.pick(REGIONS)}"
        return writer.pick((name, name.replace(" of the", "").replace("left ", "L ")) if key else (name,))
    return writer.form(writer.entry(STUDIES))


def study(writer: Writer, key: str) -> str:
    return f"[test {key}|{study_name(writer, '')}]"


def a_study(writer: Writer, key: str) -> str:
    name = study_name(writer, "")
    plural = name.endswith(("s", "testing")) and not name.endswith(("US", "sis", "gas"))
    return f"[test {key}|{'' if plural else 'a_n '}{name}]"


def vitals(writer: Writer, key: str) -> str:
    """Two to four vital signs with values, in the names and pattern of the house."""
    rng = writer.rng
    systolic = int(rng.integers(88, 186))
    celsius = rng.uniform(36.1, 39.6)
    unit = writer.pick(writer.rules["degrees"])  # type: ignore[arg-type]
    degrees = f"{celsius:.1f}" if "C" in unit else f"{celsius * 1.8 + 32:.1f}"
    values = {
        "bp": f"{systolic}/{int(systolic * rng.uniform(0.52, 0.68))}",
        "pulse": str(int(rng.integers(48, 128))),
        "temp": degrees + unit,
        "breaths": str(int(rng.integers(12, 28))),
        "oxygen": f"{int(rng.integers(86, 101))}%",
        "weight": f"{int(rng.integers(48, 118))} kg",
    }
    count = int(rng.integers(2, 5))
    chosen = [list(values)[int(i)] for i in sorted(rng.permutation(len(values))[:count])]
    parts = []
    for number, name in enumerate(chosen):
        pattern = writer.expand(writer.pick(writer.rules["vital_form"]), f"{key}v{number}")  # type: ignore[arg-type]
        label = writer.pick(writer.rules[f"vital_{name}"])  # type: ignore[arg-type]
        parts.append(pattern.replace("NAME", label).replace("VALUE", values[name]))
    return ", ".join(parts)


def treatment(writer: Writer, key: str) -> str:
    return f"[treatment {key}|{writer.form(writer.entry(TREATMENTS))}]"


def drug(writer: Writer, key: str) -> str:
    return f"[drug {key}|{writer.form(writer.entry(DRUGS, borrow=0.25).split(';')[0])}]"


def prescription(writer: Writer, key: str) -> str:
    """A drug as it is ordered; `rx_form` of the house says in which order its modifiers come."""
    house = writer.profile.house
    names, strengths, form, route, often = (p.strip() for p in writer.entry(DRUGS, borrow=0.25).split(";"))
    pattern = writer.expand(writer.pick(writer.rules["rx_form"]), key)  # type: ignore[arg-type]
    strength = ""
    if strengths:
        numbers, _, unit = strengths.partition(" ")
        label = "dosage" if unit in ("units", "mL") else "strength"
        strength = f"[{label} >{key}|{writer.pick(numbers.split(','))} {unit}]"
    shown = house.form.get(form, (form,))
    dose = house.form.get(f"dose {form}", ())
    taken = f"[form >{key}|{writer.pick(shown)}]"
    if dose and "[dosage" not in strength and writer.chance(0.35):
        number, _, noun = writer.pick(dose).partition(" ")
        taken = f"[dosage >{key}|{number}] [form >{key}|{noun}]"
    filled = {
        "NAME": f"[drug {key}|{writer.form(names)}]",
        "STRENGTH": strength,
        "FORM": taken if writer.chance(writer.profile.forms) or not strength else "",
        "ROUTE": f"[route >{key}|{writer.pick(house.route[route])}]",
        "OFTEN": f"[frequency >{key}|{writer.pick(house.frequency[often])}]",
    }
    for token, text in filled.items():
        pattern = pattern.replace(token, text)
    return " ".join(pattern.split())


SHARED: Mapping[str, Rule] = {
    "disease": disease,
    "symptom": symptom,
    "plain_symptom": plain_symptom,
    "own_symptom": own_symptom,
    "sign": sign,
    "plain_sign": plain_sign,
    "lesion": lesion,
    "lab": lab,
    "lab_name": lab_name,
    "study": study,
    "a_study": a_study,
    "vitals": vitals,
    "treatment": treatment,
    "drug": drug,
    "prescription": prescription,
    "he": lambda writer, key: "she" if writer.woman else "he",
    "his": lambda writer, key: "her" if writer.woman else "his",
    "him": lambda writer, key: "her" if writer.woman else "him",
    "sex": lambda writer, key: "woman" if writer.woman else "man",
    "female": lambda writer, key: "female" if writer.woman else "male",
    "mf": lambda writer, key: "F" if writer.woman else "M",
    "mr": lambda writer, key: writer.pick(("Mrs.", "Ms.") if writer.woman else ("Mr.", "Mr.")),
    "age": lambda writer, key: str(writer.age),
    "relative": lambda writer, key: writer.pick(RELATIVES),
    "relative_age": lambda writer, key: str(int(writer.rng.integers(38, 86))),
    "year": lambda writer, key: str(int(writer.rng.integers(1996, 2020))),
    "day": lambda writer, key: str(int(writer.rng.integers(1, 29))),
    "month_number": lambda writer, key: str(int(writer.rng.integers(1, 13))),
    "year_short": lambda writer, key: f"{int(writer.rng.integers(8, 20)):02d}",
    "clock": lambda writer, key: (
        f"{int(writer.rng.integers(1, 12))}:{int(writer.rng.integers(0, 12)) * 5:02d}"
    ),
    "number": ("two", "three", "four", "five", "six", "ten"),
    "digit": ("2", "3", "4", "5", "6", "7", "10"),
    "month": (
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ),
    "weekday": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
}
"""Rules of every house; a house may replace any of them."""
