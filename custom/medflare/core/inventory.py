# SPDX-License-Identifier: Apache-2.0
"""The fixed inventory of clinical information extraction: 4 entity types and their 16 modifiers.

Guideline v1.1 of Fed-MedLoRA. The names are byte-identical to the published annotation.
A fixed inventory (and not the labels that occur in a test file) is what predictions are scored against.
"""

from __future__ import annotations

ENTITY_TYPES: tuple[str, ...] = ("problem", "treatment", "test", "drug")
"""Types that named entity recognition marks, and heads to which modifiers are linked."""

MODIFIERS: dict[str, tuple[str, ...]] = {
    "problem": (
        "severity",
        "condition",
        "uncertain",
        "subject",
        "bodyloc",
        "course",
        "temporal",
        "negation",
    ),
    "treatment": ("temporal", "negation"),
    "test": ("labvalue", "reference_range", "temporal", "negation"),
    "drug": ("strength", "dosage", "duration", "form", "frequency", "route", "temporal", "negation"),
}
"""Head type -> the modifiers it may have."""

MODIFIER_TYPES: tuple[str, ...] = tuple(dict.fromkeys(m for listed in MODIFIERS.values() for m in listed))
"""The 16 distinct modifiers, in the order of MODIFIERS."""

TYPES: tuple[str, ...] = ENTITY_TYPES + MODIFIER_TYPES

TASKS: tuple[str, ...] = ("ner", "re")
"""Named entity recognition; relation extraction, which is modifier tagging of one marked head."""
