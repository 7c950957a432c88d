# SPDX-License-Identifier: Apache-2.0
"""Hospitals with questions or summaries on disk, with the vocabulary and the key of their graphs."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from medflare.data.partition.texts import write_sites
from medflare.data.records import TextRecord
from medflare.synthetic.knowledge.hospitals import QuestionsDemo, question_hospitals
from medflare.synthetic.knowledge.note_summaries import note_terms
from medflare.synthetic.knowledge.obo import TermPairs, chest_terms, terms_of, write_vocabulary
from medflare.synthetic.knowledge.summaries import SummariesDemo, summary_hospitals
from medflare.synthetic.policy import AGREED
from medflare.synthetic.site_files import HEAD

VOCABULARY, KEY = "vocabulary.obo", "hospitals.key"
KEY_BYTES = 32
EXPLAINED = (
    f"{HEAD}, keyed by site name; files count from this folder. vocabulary.obo: the terms\n"
    "# of their world. hospitals.key: the secret that they share; the server never has it. policy: what\n"
    "# rule drfa and fedmrg's bank ask for; the patients are made up.\n"
)


def write_questions_demo(
    folder: Path | str, hospitals: int = 3, partition: str = "class", seed: int = 0, **further: Any
) -> dict[str, int]:
    """Writes `<hospital>/questions.jsonl` each, vocabulary.obo, hospitals.key and site.yaml.

    Args:
        further: of `QuestionsDemo`: questions, alpha, tested, diseases, groups, dialects.

    Returns:
        Hospital -> questions it trains on.
    """
    demo = QuestionsDemo(hospitals=hospitals, partition=partition, seed=seed, **further)
    dealt = question_hospitals(demo)
    return _write(Path(folder), dealt, terms_of(demo.world))


def write_summaries_demo(
    folder: Path | str, hospitals: int = 3, partition: str = "class", seed: int = 0, **further: Any
) -> dict[str, int]:
    """Writes `<hospital>/summaries.jsonl` each, and the other files as `write_questions_demo`.

    Args:
        further: of `SummariesDemo`: kind, reports, alpha.

    Returns:
        Hospital -> summaries it trains on.
    """
    demo = SummariesDemo(hospitals=hospitals, partition=partition, seed=seed, **further)
    return _write(
        Path(folder), summary_hospitals(demo), chest_terms() if demo.kind == "chests" else note_terms()
    )


def _write(folder: Path, dealt: dict[str, list[TextRecord]], terms: TermPairs) -> dict[str, int]:
    folder.mkdir(parents=True, exist_ok=True)
    write_vocabulary(terms, folder / VOCABULARY)
    write_key(folder / KEY)
    site = {"knowledge": {"vocabulary": [VOCABULARY], "key": KEY}, "policy": dict(AGREED)}
    write_sites(dealt, folder, EXPLAINED, site)
    return {name: sum(record.split == "train" for record in records) for name, records in dealt.items()}


def write_key(file: Path) -> Path:
    """Write a fresh secret of hexadecimal digits, readable by the file's owner alone; return its path."""
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
        out.write(f"{secrets.token_hex(KEY_BYTES)}\n")
    return file
