# SPDX-License-Identifier: Apache-2.0
"""Choice of the label map that fits the annotation of a folder of notes; else a table to fill in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from medflare.core.inventory import TYPES
from medflare.data.detection.guess import CohortGuess
from medflare.data.notes.inventory_mapping import map_source_notes
from medflare.data.readers import read_source
from medflare.data.settings.cohort import CohortConfig
from medflare.data.settings.label_maps import LABEL_MAPS

UNKNOWN = "unknown type"


def with_label_map(guess: CohortGuess, config: CohortConfig) -> CohortGuess:
    """Return the guess with the `label_map` that the notes' labels need, unchanged where they need none.

    Args:
        config: settings of the guess without a label map.
    """
    if "label_map" in guess.settings or not config.tasks:
        return guess
    failures = {name: _unknown_labels(config.model_copy(update={"label_map": name})) for name in LABEL_MAPS}
    plain = _unknown_labels(config)
    if not plain:
        return guess
    best = min(failures, key=lambda name: failures[name])
    if failures[best] <= 0.05 * plain:
        chosen, reason = {"label_map": best}, "the named map that knows the labels of these notes"
        return replace(
            guess, settings=guess.settings | chosen, reasons=guess.reasons | {"label_map": reason}, remarks=()
        )
    labels = Counter(entity.label for note in read_source(config).notes for entity in note.entities)
    unknown = {label: None for label, _ in labels.most_common() if label not in TYPES}
    reasons = {
        f"label_map.{label}": f"{labels[label]} times; which type? null leaves it out" for label in unknown
    }
    remark = f"Say in 'label_map' what each label is. The types: {', '.join(TYPES)}."
    return replace(
        guess,
        settings=guess.settings | {"label_map": unknown},
        reasons=guess.reasons | reasons,
        remarks=(remark,),
    )


def _unknown_labels(config: CohortConfig) -> int:
    """Return how many notes have a label that is no type of the inventory under these settings."""
    source = read_source(config)
    map_source_notes(source, config)
    return sum(item.reason == UNKNOWN for item in source.skipped)
