# SPDX-License-Identifier: Apache-2.0
"""Choice of the label map that fits the annotation of a folder of notes; else a table to fill in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from medflare.core.inventory import TYPES
from medflare.data.detection.guess import CohortGuess
from medflare.data.notes.inventory_mapping import unknown_labels
from medflare.data.readers.common import SourceRecords
from medflare.data.settings.label_maps import LABEL_MAPS, LabelMap


def with_label_map(guess: CohortGuess, source: SourceRecords) -> CohortGuess:
    """Return the guess with the `label_map` that the notes' labels need, unchanged where they need none.

    Args:
        source: what is read by the guess without a label map.
    """
    if "label_map" in guess.settings or guess.settings.get("tasks") == []:
        return guess

    def failures_of(mapping: LabelMap) -> int:
        return sum(bool(unknown_labels(note, mapping)) for note in source.notes)

    plain = failures_of({})
    if not plain:
        return guess
    failures = {name: failures_of(mapping) for name, mapping in LABEL_MAPS.items()}
    best = min(failures, key=lambda name: failures[name])
    if failures[best] <= 0.05 * plain:
        chosen, reason = {"label_map": best}, "the named map that knows the labels of these notes"
        return replace(
            guess, settings=guess.settings | chosen, reasons=guess.reasons | {"label_map": reason}, remarks=()
        )
    labels = Counter(entity.label for note in source.notes for entity in note.entities)
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
