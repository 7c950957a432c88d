# SPDX-License-Identifier: Apache-2.0
"""The rules that all houses share: problems, findings, persons and dates; `orders` has the rest."""

from __future__ import annotations

import re
from calendar import day_name, month_name
from collections.abc import Mapping

from medflare.synthetic.notes.grammar import Production, Writer, is_withheld, mark_modifiers
from medflare.synthetic.notes.lexicon import lexicon
from medflare.synthetic.notes.orders import ORDERS

_GRADED = re.compile(
    "pain|swelling|numb|stiff|weakness|discomfort|tender|cramp|redness|bruis|sore|tight|fatigue|malaise|nausea|headache"
    "|HA$|breath|SOB|cough|anxiety|itching|dizz|vertigo|tremor|edema|bloat|heartburn|dyspnea|crackles|wheez|agitation"
    "|constipation|diarrhea|confusion|pallor|jaundice|atrophy|ataxia|fluctuance|induration|erythema|mucositis"
)
_BARE = (
    *("a ", "a(n) ", "poor ", "low ", "decreased ", "early ", "swollen ", "easy "),
    *("bright ", "racing ", "weight "),
)


def problem(writer: Writer, phrase: str, key: str, adjective: str = "", determiner: str = "") -> str:
    """Return a problem with a degree or a course in or before its span, as the house marks them."""
    if determiner or writer.chance(writer.profile.inside):
        return f"[problem {key}|{determiner}{adjective}{mark_modifiers(phrase, key)}]"
    return f"{adjective}[problem {key}|{mark_modifiers(phrase, key)}]"


def adjective(writer: Writer, phrase: str, key: str) -> str:
    """Return a degree where the phrase has degrees, or a course; mostly nothing."""
    if phrase.startswith(_BARE) or "*" in phrase or writer.chance(0.6):
        return ""
    if _GRADED.search(phrase) and writer.chance(0.6):
        return f"[severity >{key}|{writer.pick(lexicon().degrees)}] "
    return f"[course >{key}|{writer.pick(lexicon().trends)}] "


def disease(writer: Writer, key: str) -> str:
    names = writer.entry(lexicon().diseases)
    graded = "+" in names and writer.chance(0.4)
    degree = f"[severity >{key}|{writer.pick(lexicon().degrees[:3])}] " if graded else ""
    return problem(writer, writer.form(names.replace("+", "")), key, degree)


def inherited(writer: Writer, key: str) -> str:
    """Return a disease that runs in families."""
    return problem(writer, writer.form(writer.entry(lexicon().inherited, borrow=0.4)), key)


def symptom(writer: Writer, key: str) -> str:
    phrase = any_symptom(writer)
    return problem(writer, phrase, key, adjective(writer, phrase, key))


def any_symptom(writer: Writer) -> str:
    return located(writer) if writer.chance(0.4) else writer.form(writer.entry(lexicon().symptoms))


def own_symptom(writer: Writer, key: str) -> str:
    """Return a symptom with the possessive in its span; houses add the course in words of their own."""
    return problem(writer, any_symptom(writer).removeprefix("a "), key, determiner=f"{writer.his} ")


def sign(writer: Writer, key: str) -> str:
    phrase = writer.form(writer.entry(lexicon().signs))
    degree = adjective(writer, phrase, key)
    return problem(writer, phrase, key, degree if degree.startswith("[severity") else "")


def plain_sign(writer: Writer, key: str) -> str:
    return problem(writer, writer.form(writer.entry(lexicon().signs)).removeprefix("a(n) "), key)


def located(writer: Writer) -> str:
    """Return a complaint of a place; so many combinations that test notes hold some that training lacks."""
    for _ in range(9):
        part = writer.pick(lexicon().parts[writer.specialty])
        place = f"{writer.pick(lexicon().sides)} {part}"
        complaint = writer.pick(lexicon().complaints.get(part, lexicon().pains))
        if part not in writer.mentioned and not is_withheld(f"{place} {complaint}", writer.profile.withheld):
            break
    writer.mentioned.add(part)
    if place.startswith("bilateral"):
        return f"_{place}_ {complaint}"
    return writer.pick((f"_{place}_ {complaint}", f"_{place}_ {complaint}", f"{complaint} in the _{place}_"))


def seen(writer: Writer, key: str) -> str:
    """Return a finding of the examination that the sentence named last."""
    names = writer.image.split("|")[1].split(";")
    finding = writer.pick([name for name in names if name.strip() not in writer.mentioned]).strip()
    writer.mentioned.add(finding)
    return f"[problem {key}|{mark_modifiers(writer.expand(writer.form(finding), key), key)}]"


def unseen(writer: Writer, key: str) -> str:
    """Return what that examination looked for."""
    mentioned = " ".join(writer.mentioned)
    names = writer.image.split("|")[2].split(";")
    name = writer.pick([name for name in names if name.split("=")[0].split()[-1] not in mentioned] or names)
    writer.mentioned.add(name.strip())
    return f"[problem {key}|{mark_modifiers(writer.form(name.strip()), key)}]"


def suspect(writer: Writer, key: str) -> str:
    """Return something to be ruled out; `workup` is the examination that does."""
    names, _, writer.workup = writer.entry(lexicon().suspicions).partition("|")
    return f"[problem {key}|{mark_modifiers(writer.form(names.strip()), key)}]"


def indication(writer: Writer, key: str, owner: str = "") -> str:
    """Return what the drug that the sentence named last is given for."""
    return f"[problem {key}|{owner}{mark_modifiers(writer.form(writer.indication), key)}]"


def relative(writer: Writer, key: str) -> str:
    """Return a relative that the note has not mentioned yet."""
    name = writer.pick([name for name in lexicon().relatives if name not in writer.mentioned])
    writer.mentioned.add(name)
    return name


SHARED: Mapping[str, Production] = {
    "disease": disease,
    "inherited": inherited,
    "symptom": symptom,
    "plain_symptom": lambda writer, key: problem(writer, any_symptom(writer), key),
    "own_symptom": own_symptom,
    "sign": sign,
    "plain_sign": plain_sign,
    "seen": seen,
    "unseen": unseen,
    "suspect": suspect,
    "indication": indication,
    "own_indication": lambda writer, key: indication(writer, key, f"{writer.his} "),
    **ORDERS,
    "he": lambda writer, key: "she" if writer.woman else "he",
    "his": lambda writer, key: writer.his,
    "him": lambda writer, key: "her" if writer.woman else "him",
    "sex": lambda writer, key: "woman" if writer.woman else "man",
    "female": lambda writer, key: "female" if writer.woman else "male",
    "mf": lambda writer, key: "F" if writer.woman else "M",
    "mr": lambda writer, key: writer.pick(("Mrs.", "Ms.") if writer.woman else ("Mr.", "Mr.")),
    "age": lambda writer, key: str(writer.age),
    "relative": relative,
    "size": lambda writer, key: writer.pick(lexicon().sizes),
    "side": lambda writer, key: writer.pick(lexicon().sides[:2]),
    "relative_age": lambda writer, key: str(int(writer.rng.integers(38, 86))),
    "year": lambda writer, key: str(writer.year - int(writer.rng.integers(1, 13))),
    "this_year": lambda writer, key: str(writer.year),
    "this_year_short": lambda writer, key: f"{writer.year % 100:02d}",
    "day": lambda writer, key: str(int(writer.rng.integers(1, 29))),
    "month_number": lambda writer, key: str(int(writer.rng.integers(1, 13))),
    "year_short": lambda writer, key: f"{(writer.year - int(writer.rng.integers(1, 8))) % 100:02d}",
    "clock": lambda writer, key: (
        f"{int(writer.rng.integers(1, 12))}:{int(writer.rng.integers(0, 12)) * 5:02d}"
    ),
    "number": ("two", "three", "four", "five", "six", "ten"),
    "digit": ("2", "3", "4", "5", "6", "7", "10"),
    "month": tuple(month_name)[1:],
    "weekday": tuple(day_name),
}
"""Rules of every house; a house may replace any of them."""
