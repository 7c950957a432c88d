# SPDX-License-Identifier: Apache-2.0
"""Terms as an OBO file: the vocabulary that all hospitals map their words to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from medflare.core.config import read_package_table
from medflare.synthetic.knowledge.world import RELATIONS, World

TermPairs = Sequence[tuple[str, tuple[str, ...]]]
"""(kind, names), the preferred name first."""


def terms_of(world: World) -> TermPairs:
    """Return every disease of the world and everything linked to one."""
    return [
        (category, term.names) for category in ("disease", *RELATIONS) for term in world.of_kind(category)
    ]


@lru_cache(maxsize=1)
def chest_terms() -> TermPairs:
    """Return what the reports of the synthetic chests mention, in the words of all their schools."""
    table = read_package_table(
        dict[str, tuple[tuple[str, ...], ...]], Path(__file__).with_name("chest_findings.yaml")
    )
    return [("finding", names) for names in table["findings"]]


def write_vocabulary(terms: TermPairs, file: Path) -> Path:
    """Write one [Term] each, with other names as exact synonyms, and return `file`."""
    rows = ["format-version: 1.2", "ontology: medflare-synthetic", ""]
    for number, (category, (name, *others)) in enumerate(terms, 1):
        rows += ["[Term]", f"id: MFW:{number:06d}", f"name: {name}", f"namespace: {category}"]
        rows += [f'synonym: "{other}" EXACT []' for other in others]
        rows.append("")
    file.write_text("\n".join(rows), encoding="utf-8", newline="\n")
    return file
