# SPDX-License-Identifier: Apache-2.0
"""One pooled cohort of annotated notes dealt to several sites by patient, IID.

Splits stay what they are in the pool, so that what is tested at one site is trained on at none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from medflare.core.errors import ConfigError
from medflare.data.notes.note_tables import write_note_tables
from medflare.data.partition.partitioning import HEAD, SITE_FILE, write_site_file
from medflare.data.partition.texts import TextPlan, assign_groups_to_sites
from medflare.data.records import Note


def partition_notes(notes: Sequence[Note], plan: TextPlan) -> dict[str, list[Note]]:
    """Return site -> its notes; all notes of a patient are at one site.

    Raises:
        ConfigError: another method than iid, since notes have no classes; or fewer patients than sites.
    """
    if plan.method != "iid":
        raise ConfigError(
            f"partition '{plan.method}' of notes: they have no classes and are dealt iid alone."
        )
    owners = [note.patient_id or note.note_id for note in notes]
    given = assign_groups_to_sites(dict.fromkeys(owners, ""), plan)
    dealt: dict[str, list[Note]] = {site: [] for site in plan.sites}
    for owner, note in zip(owners, notes, strict=True):
        dealt[plan.sites[given[owner]]].append(note)
    return dealt


def write_notes_partition(
    notes: Sequence[Note], plan: TextPlan, folder: Path, site: dict[str, Any] | None = None
) -> Path:
    """Write <folder>/<site>/ for each site and <folder>/site.yaml; return the latter.

    Args:
        site: further settings of every site, such as its `backbone`.
    """
    dealt = partition_notes(notes, plan)
    cohorts = {name: write_note_tables(listed, folder / name) for name, listed in dealt.items()}
    head = f"{HEAD} {len(notes)} notes: {json.dumps(asdict(plan))}\n"
    return write_site_file(folder / SITE_FILE, cohorts, head, site)
