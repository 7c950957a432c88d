# SPDX-License-Identifier: Apache-2.0
"""Shared rules for what is ordered: tests with values, examinations, treatments and prescriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from medflare.synthetic.notes.grammar import Production, Writer, mark_modifiers
from medflare.synthetic.notes.lexicon import lexicon

LONG = ("once", "once a week", "once a month", "every three weeks", "every eight weeks", "every three days")
_MASS = (
    *("testing", "cytometry", "telemetry", "flow", "electrophoresis", "sediment", "elastase"),
    *("CK", "TSH", "PPD", "uric acid", "biopsy of the liver"),
)


def lab(writer: Writer, key: str) -> str:
    """Return a laboratory test with its value in the pattern of the house (`lab_form`)."""
    names, limits, unit, reference = (part.strip() for part in writer.entry(lexicon().labs).split(";"))
    low, high, digits = limits.split()
    value = f"{writer.rng.uniform(float(low), float(high)):.{digits}f}"
    value += f"{unit}" if unit == "%" else f" {unit}" if unit and writer.chance(writer.profile.units) else ""
    pattern = writer.write("lab_form", key)
    for token, text in (("NAME", writer.form(names)), ("VALUE", value), ("RANGE", reference)):
        pattern = pattern.replace(token, text)
    return pattern


def lab_name(writer: Writer, key: str) -> str:
    return f"[test {key}|{writer.form(writer.entry(lexicon().labs).split(';')[0])}]"


def _study(article: str) -> Production:
    """Return the rule of a test whose result is a word, with an article or without."""
    return lambda writer, key: _named(writer, writer.entry(lexicon().studies), key, article)


def _image(article: str) -> Production:
    """Return the rule of an examination with findings; `seen` and `unseen` speak of it."""

    def image(writer: Writer, key: str) -> str:
        writer.image = writer.entry(lexicon().imaging)
        return _named(writer, writer.image.split("|")[0], key, article)

    return image


def _named(writer: Writer, names: str, key: str, article: str = "") -> str:
    """Return a test with the article where its name takes one."""
    name = writer.expand(writer.form(names.strip()), key)
    writer.plural = name.endswith("s") and not name.endswith(("sis", "gas"))
    bare = writer.plural or name.endswith(_MASS)
    return f"[test {key}|{'' if bare else article}{name}]"


def vitals(writer: Writer, key: str) -> str:
    """Return two to four vital signs with values, in the names and pattern of the house."""
    rng = writer.rng
    systolic = int(rng.integers(88, 186))
    celsius = rng.uniform(36.1, 39.6)
    unit = writer.pick(writer.rules["degrees"])  # type: ignore[arg-type]
    degrees = f"{celsius:.1f}" if "C" in unit else f"{celsius * 1.8 + 32:.1f}"
    values = {
        "bp": f"{systolic}/{int(systolic * rng.uniform(0.52, 0.68))}",
        "pulse": str(int(rng.integers(48, 128))),
        "temp": degrees + (f" {unit}" if unit.startswith("deg") else unit),
        "breaths": str(int(rng.integers(12, 28))),
        "oxygen": f"{int(rng.integers(86, 101))}%",
        "weight": f"{int(rng.integers(48, 118))} kg",
    }
    count = int(rng.integers(2, 5))
    chosen = [list(values)[int(i)] for i in sorted(rng.permutation(len(values))[:count])]
    parts = []
    for number, name in enumerate(chosen):
        pattern = writer.write("vital_form", f"{key}v{number}")
        label = writer.pick(writer.rules[f"vital_{name}"])  # type: ignore[arg-type]
        parts.append(pattern.replace("NAME", label).replace("VALUE", values[name]))
    return ", ".join(parts)


def _treatment(writer: Writer, entries: Mapping[str, Sequence[str]], key: str) -> str:
    return f"[treatment {key}|{writer.form(writer.entry(entries, borrow=0.12))}]"


def drug(writer: Writer, key: str) -> str:
    names, *_, writer.indication = _drug_entry(writer).split(";")
    writer.indication = writer.indication.strip()
    return f"[drug {key}|{writer.form(names)}]"


def prescription(writer: Writer, key: str) -> str:
    """Return a drug as it is ordered, one that was not named before."""
    writer.order = _drug_entry(writer)
    return ordered(writer, key)


def short_course(writer: Writer, key: str) -> str:
    """Return a drug that can be given for some days, which those given weekly or once cannot."""
    for _ in range(9):
        writer.order = _drug_entry(writer)
        if writer.order.split(";")[4].strip() not in LONG:
            break
    return ordered(writer, key)


def treated(writer: Writer, key: str, owner: str = "") -> str:
    """Return a problem that is under treatment; `ordered` is the drug."""
    writer.order = _drug_entry(writer)
    names = writer.order.split(";")[-1].strip()
    return f"[problem {key}|{owner}{mark_modifiers(writer.form(names), key)}]"


def _drug_entry(writer: Writer) -> str:
    return writer.entry(lexicon().drugs, borrow=0.25)


def ordered(writer: Writer, key: str) -> str:
    """Return the current order; `rx_form` of the house says in which sequence its modifiers come."""
    house = writer.profile.house
    columns = [column.strip() for column in writer.order.split(";")]
    names, strengths, form, route, often, writer.indication = columns
    pattern = writer.write("rx_form", key)
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
    return " ".join(pattern.split()).replace(" ,", ",")


ORDERS: Mapping[str, Production] = {
    "lab": lab,
    "lab_name": lab_name,
    "study": _study(""),
    "a_study": _study("a(n) "),
    "image": _image(""),
    "an_image": _image("a(n) "),
    "workup": lambda writer, key: _named(writer, writer.workup, key, "a(n) "),
    "bare_workup": lambda writer, key: _named(writer, writer.workup, key),
    "was": lambda writer, key: "were" if writer.plural else "was",
    "vitals": vitals,
    "operation": lambda writer, key: _treatment(writer, lexicon().operations, key),
    "therapy": lambda writer, key: _treatment(writer, lexicon().therapies, key),
    "drug": drug,
    "prescription": prescription,
    "short_course": short_course,
    "treated": treated,
    "own_treated": lambda writer, key: treated(writer, key, f"{writer.his} "),
    "ordered": ordered,
    "ordered_name": lambda writer, key: f"[drug {key}|{writer.form(writer.order.split(';')[0])}]",
}
