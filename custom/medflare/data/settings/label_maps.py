# SPDX-License-Identifier: Apache-2.0
"""From a corpus's own labels to the inventory: the maps of label_maps.yaml, and those of a site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from medflare.core.config import read_package_table
from medflare.core.inventory import TYPES

LabelMap = Mapping[str, str | None]
"""Label -> type of the inventory; None leaves the label out."""

LABEL_MAPS: dict[str, LabelMap] = {
    "mtsamples": {name: name for name in TYPES},  # annotated after guideline v1.1, which is the inventory
    **read_package_table(dict[str, LabelMap], Path(__file__).with_name("label_maps.yaml")),
}


def mapping_of(label_map: str | LabelMap) -> LabelMap:
    """Return the mapping that a site's `label_map` names or is."""
    return LABEL_MAPS[label_map] if isinstance(label_map, str) else label_map


def targets(mapping: LabelMap) -> tuple[str, ...]:
    """Return the types that a mapping leads to, in the inventory's order."""
    types = set(mapping.values())
    return tuple(name for name in TYPES if name in types)
