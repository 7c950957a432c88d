# SPDX-License-Identifier: Apache-2.0
"""Fed-MedLoRA's settings as a benchmark: training sites, external cohorts, a new site, few notes (BM-9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeInt

from medflare.benchmark.folder import BENCHMARK, TEST_HEAD, split_facts, write_facts
from medflare.benchmark.index import digest_of
from medflare.core.config import Settings
from medflare.core.errors import ConfigError
from medflare.data.heterogeneity import vocabulary
from medflare.data.load import load_cohort
from medflare.data.notes.note_tables import write_note_tables
from medflare.data.partition.partitioning import write_site_file
from medflare.data.pool import limit_records
from medflare.data.records import Note
from medflare.data.settings.site import SiteConfig
from medflare.data.splits import stable_hash

HEAD = "# Sites that train; made by `medflare benchmark medlora`.\n"
SERVER = "server"
"""Entry of a site.yaml that is the server's."""


class NotesBenchmarkSettings(Settings):
    """One benchmark of annotated notes.

    Attributes:
        external: cohorts that are tested as a whole and trained on nowhere.
        train_notes: of a training site, the first by a stable hash; None for all (the low-resource setting).
        server_notes: at most so many training notes of the first site are the server's, which weighs updates
            by them: whole patients, whom nobody trains on then.
    """

    external: tuple[str, ...] = ()
    train_notes: int | None = Field(default=None, ge=1)
    server_notes: int = Field(default=0, ge=0)
    seed: NonNegativeInt = 0


def build_notes(
    settings: NotesBenchmarkSettings, sources: Mapping[str, SiteConfig], out: Path
) -> dict[str, Any]:
    """Build the benchmark in `out` and return what benchmark.json says.

    Args:
        sources: cohort of annotated notes by name, each in its own format, as a site.yaml has them.

    Raises:
        ConfigError: an external cohort that `sources` has not, no site that trains, or two places of one
            name.
        DataError: a cohort cannot be read.
    """
    if unknown := sorted(set(settings.external) - set(sources)):
        raise ConfigError(f"--external {', '.join(unknown)}: the sources are {', '.join(sources)}.")
    clients = [name for name in sources if name not in settings.external]
    if not clients:
        raise ConfigError("all sources are external; at least one has to train.")
    cohorts = {name: _notes(name, config) for name, config in sources.items()}
    dealt = {name: _few(cohorts[name], settings) for name in clients}
    tests = {f"{name}-test": [n for n in dealt[name] if n.split == "test"] for name in clients}
    tests |= {
        f"{name}-external": [replace(n, split="test") for n in cohorts[name]] for name in settings.external
    }
    kept = {name: [n for n in notes if n.split != "test"] for name, notes in dealt.items()}
    kept |= _server(kept, clients[0], settings)
    places = kept | {name: notes for name, notes in tests.items() if notes}
    names = Counter([*clients, *tests, SERVER])
    if twice := [name for name, count in names.items() if count > 1]:
        raise ConfigError(
            f"{', '.join(twice)}: is the name of a source, and of notes that this benchmark sets apart. Give "
            "the source another name in --sources."
        )
    if empty := [n for n in clients if not any(note.split == "train" for note in kept[n])]:
        raise ConfigError(f"{', '.join(empty)}: has no training note; look with `medflare cohort inspect`.")
    with BENCHMARK.building(out, overwrite=True) as folder:
        written = {name: write_note_tables(notes, folder / name) for name, notes in places.items()}
        tables = sorted(path.relative_to(folder).as_posix() for path in folder.glob("*/*.jsonl"))
        facts = {
            "schema_version": 1,
            "benchmark": "medlora",
            "settings": settings.model_dump(mode="json"),
            "splits": split_facts({n: [(r.note_id, r.split) for r in notes] for n, notes in places.items()}),
            "tables": {table: digest_of(folder / table) for table in tables},
            "tests_that_are_trained_on": trained_on(kept, tests),
            "clients": statistics(kept),
        }
        write_site_file(folder / "site.yaml", {name: written[name] for name in kept}, HEAD)
        if tested := {name: cohort for name, cohort in written.items() if name not in kept}:
            write_site_file(folder / "test.yaml", tested, TEST_HEAD)
        write_facts(folder, facts)
    return facts


def _notes(name: str, config: SiteConfig) -> list[Note]:
    notes = load_cohort(config).notes
    if not notes:
        raise ConfigError(f"{name}: holds no annotated note, but this benchmark is of notes.")
    return notes


def _few(notes: Sequence[Note], settings: NotesBenchmarkSettings) -> list[Note]:
    """Return notes with at most `train_notes` training notes; a smaller number is part of a larger one."""
    order = _by_hash([note for note in notes if note.split == "train"], settings.seed)
    taken = {note.note_id for note in order[: settings.train_notes]}
    return [note for note in notes if note.split != "train" or note.note_id in taken]


def _server(
    kept: Mapping[str, Sequence[Note]], first: str, settings: NotesBenchmarkSettings
) -> dict[str, list[Note]]:
    """Return the server's notes, if it has any, and what the first site keeps without them."""
    if not settings.server_notes:
        return {}
    trained = [note for note in kept[first] if note.split == "train"]
    taken = {note.note_id for note in limit_records(trained, settings.server_notes, settings.seed + 1)}
    return {
        first: [note for note in kept[first] if note.note_id not in taken],
        SERVER: [replace(note, split="val") for note in kept[first] if note.note_id in taken],
    }


def trained_on(kept: Mapping[str, Sequence[Note]], tests: Mapping[str, Sequence[Note]]) -> dict[str, int]:
    """Return test set -> its notes that a site trains on word for word, of sets that have such notes."""
    trained = {note.repetition_key for notes in kept.values() for note in notes if note.split == "train"}
    counts = {name: sum(note.repetition_key in trained for note in notes) for name, notes in tests.items()}
    return {name: count for name, count in counts.items() if count}


def _by_hash(notes: Sequence[Note], seed: int) -> list[Note]:
    return sorted(notes, key=lambda note: (stable_hash(note.note_id, seed), note.note_id))


def statistics(sites: Mapping[str, Sequence[Note]]) -> dict[str, Any]:
    """Return what each site holds: notes, entities by type, relations, and words that others have too."""
    words = {name: vocabulary([note.text for note in notes]) for name, notes in sites.items()}
    table = {}
    for name, notes in sites.items():
        others = set().union(*(found for other, found in words.items() if other != name))
        table[name] = {
            "notes": len(notes),
            "entities": dict(sorted(Counter(e.label for note in notes for e in note.entities).items())),
            "relations": sum(len(note.relations) for note in notes),
            "vocabulary": len(words[name]),
            "overlap": round(len(words[name] & others) / max(len(words[name]), 1), 4),
        }
    return table
