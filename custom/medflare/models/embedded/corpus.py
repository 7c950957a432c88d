# SPDX-License-Identifier: Apache-2.0
"""Text the embedded decoder is pretrained on: synthetic reports after a context, and CC0 clinical notes.

Each synthetic example reads `<s> <ctx> findings <dx> codes <rep> report </s>`. Findings and codes are each
left out at random, so that the frozen decoder can write from either, both or neither; visual tokens later
take the place of the findings, and diagnosis tokens that of the codes (libraries.md 6.5).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from medflare.cohort.records import Code
from medflare.cohort.synthetic import SyntheticStudy, generate_reports, pretraining_hospitals

SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    "<ctx>",
    "<dx>",
    "<rep>",
    "<blank>",
    "<positive>",
    "<negative>",
    "<uncertain>",
)
CODE_WORDS = {code: SPECIAL[7 + code] for code in Code}
PROMPT_SETTINGS = {
    "template": {"prefix": "<ctx>", "suffix": "<dx>", "instruction": "<rep>"},
    "code_words": list(CODE_WORDS.values()),
}
KEPT = {"findings": 0.65, "codes": 0.55}


def studies(hospitals: int, patients: int) -> Iterator[SyntheticStudy]:
    """Reports of hospitals that no experiment uses."""
    for profile in pretraining_hospitals(hospitals):
        yield from generate_reports(profile, patients)


def context(study: SyntheticStudy, rng: np.random.Generator) -> str:
    """`<ctx> ... <dx> ... <rep>` of one study, parts left out at random, findings in random order."""
    words = []
    if rng.random() < KEPT["findings"]:
        for finding in rng.permutation(np.array(study.findings, dtype=object)):
            parts = (finding.severity, finding.side, finding.zone, finding.condition, finding.kind)
            words.append(" ".join(part for part in parts if part))
        words = words or ["normal"]
    codes = "".join(CODE_WORDS[Code(code)] for code in study.codes) if rng.random() < KEPT["codes"] else ""
    return f"<ctx>{'; '.join(words)}<dx>{codes}<rep>"


def notes(file: Path, words: int = 90) -> list[str]:
    """Pieces of about `words` words of the CC0 notes in a JSONL file with a `text` key."""
    pieces = []
    for line in file.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)["text"].replace(",  ", " ").split()
        pieces += [" ".join(found[i : i + words]) for i in range(0, len(found), words)]
    return pieces
