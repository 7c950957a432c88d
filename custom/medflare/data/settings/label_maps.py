# SPDX-License-Identifier: Apache-2.0
"""From a corpus's own labels to the inventory; None leaves a label out.

Keys are a corpus's native names, which say more than the common names that were later laid over them. A label
may be mapped only where most of its spans are what the type means: an entity left out costs recall at one
site, a wrong one teaches every site. A relation's label may be a key too; None then leaves its links out.
"""

from __future__ import annotations

from collections.abc import Mapping

from medflare.core.inventory import TYPES

LabelMap = Mapping[str, str | None]

MTSAMPLES: LabelMap = {name: name for name in TYPES}
"""Annotated after guideline v1.1 itself: the inventory, linked by hasAttr from head to modifier."""

MACCROBAT: LabelMap = {
    "Sign_symptom": "problem",
    "Disease_disorder": "problem",
    "Therapeutic_procedure": "treatment",
    "Diagnostic_procedure": "test",
    "Medication": "drug",
    "Severity": "severity",
    "Biological_structure": "bodyloc",
    "Subject": "subject",  # mother, donor, another patient: whose problem it is
    "Lab_value": "labvalue",
    # sizes and amounts: values where a test found them; links from problems fall outside the inventory
    **dict.fromkeys(("Area", "Distance", "Height", "Mass", "Volume", "Weight"), "labvalue"),
    "Date": "temporal",
    "Time": "temporal",
    "Duration": "temporal",  # mostly of symptoms; `duration` in the inventory is a drug's alone
    "Dosage": "dosage",
    "Administration": "route",
    "Frequency": "frequency",
    # course, side, size, histology and imaging phase in one label: no type of the inventory
    **dict.fromkeys(("Detailed_description", "Qualitative_concept", "Quantitative_concept"), None),
    **dict.fromkeys(("Biological_attribute", "Color", "Shape", "Texture"), None),
    # the patient, and what happened to him that is neither finding nor care
    **dict.fromkeys(("Age", "Sex", "Occupation", "Personal_background"), None),
    # whole phrases that hold problems of their own, which stay unmarked inside them
    **dict.fromkeys(("History", "Family_history"), None),
    **dict.fromkeys(("Activity", "Clinical_event", "Nonbiological_location", "Outcome"), None),
    **dict.fromkeys(("Coreference", "Other_entity", "Other_event"), None),
    # a date before or after a finding is not the finding's own time
    **dict.fromkeys(("BEFORE", "AFTER"), None),
}
"""Caufield et al., MACCROBAT2020."""

CHIA: LabelMap = {
    "Condition": "problem",
    "Procedure": "treatment",  # some are diagnostic, the corpus does not say which
    "Device": "treatment",
    "Measurement": "test",
    "Drug": "drug",
    "Value": "labvalue",
    "Temporal": "temporal",
    "Negation": "negation",
    "Mood": "uncertain",  # suspected, risk of; "planned" hangs on procedures, which have no `uncertain`
    "Qualifier": None,  # severe, active, other, elective: severity, course and neither in one label
    "Multiplier": None,  # daily, chronic, at least two, 75 mg: frequency, dose and count in one label
    "Observation": None,  # life expectancy, informed consent, smoking: few are problems
    **dict.fromkeys(("Person", "Reference_point", "Visit"), None),
    **dict.fromkeys(
        ("Subjective_judgement", "Pregnancy_considerations", "Intoxication_considerations"), None
    ),
    "Subsumes": None,  # a part of a phrase, not a property
}
"""Kury et al., Scientific Data 2020."""

PHEE: LabelMap = {
    "Effect": "problem",
    "Subject.Disorder": "problem",
    "Treatment.Disorder": "problem",
    "Drug": "drug",
    "Severity": "severity",
    "Speculated": "uncertain",
    "Negated": "negation",
    "Treatment.Dosage": "dosage",
    "Treatment.Route": "route",
    "Treatment.Freq": "frequency",
    "Treatment.Duration": "duration",  # of the drug, which the inventory keeps apart from `temporal`
    "Treatment.Time_elapsed": "temporal",
    "Treatment": None,  # the phrase around a Drug (98 % of them): it would mark drugs as treatments
    "Trigger:Adverse_event": None,  # the verb of an event
    "Trigger:Potential_therapeutic_event": None,
    **dict.fromkeys(("Subject", "Subject.Age", "Subject.Gender", "Subject.Population", "Subject.Race"), None),
}
"""Sun et al., EMNLP 2022; the links from drugs were derived, see the reader's `derived`."""

I2B2_2010: LabelMap = {
    "problem": "problem",
    "treatment": None,  # drugs too: it would teach that a drug is a treatment; a map of your own may keep it
    "test": "test",
}
"""Uzuner et al., JAMIA 2011. Its relations link heads with heads; the inventory has no place for them."""

LABEL_MAPS: dict[str, LabelMap] = {
    "mtsamples": MTSAMPLES,
    "maccrobat": MACCROBAT,
    "chia": CHIA,
    "phee": PHEE,
    "i2b2_2010": I2B2_2010,
}


def mapping_of(label_map: str | LabelMap) -> LabelMap:
    """The mapping that a site's `label_map` names or is."""
    return LABEL_MAPS[label_map] if isinstance(label_map, str) else label_map


def targets(mapping: LabelMap) -> tuple[str, ...]:
    """The types that a mapping leads to, in the inventory's order."""
    found = set(mapping.values())
    return tuple(name for name in TYPES if name in found)
