# SPDX-License-Identifier: Apache-2.0
"""Text the embedded decoder is pretrained on: synthetic reports after a context, and CC0 clinical notes.

Each synthetic example reads `<s> <ctx> findings <dx> codes <rep> report </s>`. Findings and codes are each
left out at random, so that the frozen decoder can write from either, both or neither; visual tokens later
take the place of the findings, and diagnosis tokens that of the codes. A code is one position that carries
the sum of two embeddings: what is said (`<positive>`) and of what (`<c3>`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medflare.core.conditions import CONDITIONS, Code
from medflare.synthetic import SyntheticStudy, generate_reports, pretraining_hospitals

CODE_WORDS = tuple(f"<{code.name.lower()}>" for code in Code)
CONDITION_WORDS = tuple(f"<c{index}>" for index in range(len(CONDITIONS)))
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>", "<ctx>", "<dx>", "<rep>", *CODE_WORDS, *CONDITION_WORDS)
PROMPT_SETTINGS = {
    "template": {"prefix": "<ctx>", "suffix": "<dx>", "instruction": "<rep>"},
    "code_words": list(CODE_WORDS),
    "condition_words": list(CONDITION_WORDS),
}


@dataclass(frozen=True, slots=True)
class Kept:
    """Shares of examples with findings and codes in the context."""

    findings: float = 0.75
    codes: float = 0.55


def studies(hospitals: int, patients: int) -> Iterator[SyntheticStudy]:
    """Reports of hospitals that no experiment uses."""
    for profile in pretraining_hospitals(hospitals):
        yield from generate_reports(profile, patients)


def context(study: SyntheticStudy, rng: np.random.Generator, kept: Kept) -> tuple[str, tuple[int, ...]]:
    """Findings in words and in random order, and the 14 codes; "" and () where left out at random."""
    words = []
    if rng.random() < kept.findings:
        for finding in rng.permutation(np.array(study.findings, dtype=object)):
            parts = (finding.severity, finding.side, finding.zone, finding.condition, finding.kind)
            words.append(" ".join(part for part in parts if part))
        words = words or ["normal"]
    return "; ".join(words), study.codes if rng.random() < kept.codes else ()


def notes(file: Path, words: int = 90) -> list[str]:
    """Pieces of about `words` words of the CC0 notes in a JSONL file with a `text` key."""
    pieces = []
    for line in file.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)["text"].replace(",  ", " ").split()
        pieces += [" ".join(found[i : i + words]) for i in range(0, len(found), words)]
    return pieces
