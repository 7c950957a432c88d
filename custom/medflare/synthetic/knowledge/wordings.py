# SPDX-License-Identifier: Apache-2.0
"""How facts are asked: each split has wordings of its own, so that a test asks for knowledge, not for words.

"D" is the disease. A wording without a question mark is completed by the right option.
"""

from __future__ import annotations

WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "symptom": {
        "train": (
            "D presents with",
            "Which symptom is typical of D?",
            "What do patients with D complain of?",
            "D is characterised by",
            "Which of these findings suggests D?",
            "A patient in whom D is suspected has most likely noticed",
        ),
        "val": ("What is the leading symptom of D?",),
        "test": ("D manifests as", "Which complaint fits D best?"),
    },
    "treatment": {
        "train": (
            "D is treated with",
            "Which treatment is used for D?",
            "What is given to patients with D?",
            "D responds to",
            "Which of these therapies relieves D?",
            "The physician who finds D should prescribe",
        ),
        "val": ("What is the treatment of choice in D?",),
        "test": ("D is managed with", "Which therapy fits D best?"),
    },
    "test": {
        "train": (
            "D is confirmed by",
            "Which test is used for D?",
            "What is ordered for patients with suspected D?",
            "D is followed by means of",
            "Which of these examinations detects D?",
            "The physician who suspects D should request",
        ),
        "val": ("What is the test of choice in D?",),
        "test": ("D is diagnosed by", "Which examination fits D best?"),
    },
    "cause": {
        "train": (
            "D is caused by",
            "Which cause is typical of D?",
            "What is behind the disease of patients with D?",
            "D results from",
            "Which of these factors leads to D?",
            "In a patient with D the history or work-up will reveal",
        ),
        "val": ("What is the leading cause of D?",),
        "test": ("D is due to", "Which origin fits D best?"),
    },
    "complication": {
        "train": (
            "D is complicated by",
            "Which complication is typical of D?",
            "What threatens patients with D?",
            "D leads to",
            "Which of these events may follow D?",
            "The physician who treats D should watch for",
        ),
        "val": ("What is the leading complication of D?",),
        "test": ("D can end in", "Which late event fits D best?"),
    },
}
"""Relation -> split -> wordings."""

VIGNETTES: tuple[str, ...] = (
    "A AGE-year-old SEX is seen in clinic.",
    "A AGE-year-old SEX is admitted.",
    "You see a AGE-year-old SEX.",
    "History: SEX, AGE years.",
)
"""Openings that some hospitals put before a question; they carry no fact."""
