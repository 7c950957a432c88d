# SPDX-License-Identifier: Apache-2.0
"""Small sites with questions and summaries, on a tiny backbone or the embedded notes decoder in fp32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medflare.core.plan import RoundPlan
from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import build_learner
from site_builders import site_config

METHODS = ("question_answering", "summarisation")
FORMATS = {"question_answering": "questions_jsonl", "summarisation": "summaries_jsonl"}
TREATED = {
    "asthma": "salbutamol",
    "gout": "colchicine",
    "angina": "nitroglycerin",
    "scurvy": "vitamin C",
    "anaphylaxis": "adrenaline",
    "hypothyroidism": "levothyroxine",
}
SPLITS = ("train", "train", "train", "val", "test")
SMALL: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "optimiser": {"batch": 2, "lr": 2e-3},
    "max_tokens": 120,
}
PLAN = RoundPlan(round=0, rounds=2, steps=2)


def questions(number: int = 1) -> list[dict[str, Any]]:
    """Which drug treats what; the sites ask in other words and begin elsewhere in the list."""
    question = ("Which drug treats {}?", "What is given for {}?")[number % 2]
    drugs, rows = list(TREATED.values()), []
    for place, (disease, drug) in enumerate(list(TREATED.items()) * 2):
        others = [other for other in drugs if other != drug]
        options = [others[place % 5], others[(place + 2) % 5]]
        options.insert(place % 3, drug)
        rows.append(
            {
                "id": f"q{number}-{place}",
                "question": question.format(disease) + (" Name it." if place >= len(TREATED) else ""),
                "options": dict(zip("ABC", options, strict=True)),
                "answer": "ABC"[place % 3],
                "split": SPLITS[(place + number) % 5],
                "group": "lung" if place % 2 else "other",
            }
        )
    return rows


def summaries(number: int = 1) -> list[dict[str, Any]]:
    """Findings with an impression that repeats one of them."""
    findings = (
        "Large pleural effusion",
        "Mild edema",
        "Right pneumothorax",
        "Left rib fracture",
        "Lungs clear",
    )
    return [
        {
            "id": f"s{number}-{place}",
            "patient_id": f"p{number}-{place}",
            "findings": f"{findings[place % 5]}. The heart is normal in size. Film {place}.",
            "impression": f"{findings[place % 5]}.",
            "split": SPLITS[(place + number) % 5],
        }
        for place in range(10)
    ]


ROWS = {"question_answering": questions, "summarisation": summaries}


def write_site(folder: Path, method: str, number: int = 1, rows: list[dict[str, Any]] | None = None) -> Path:
    """`<folder>/site-<number>/rows.jsonl` with the records of a site."""
    place = folder / f"site-{number}"
    place.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row) for row in (ROWS[method](number) if rows is None else rows)]
    (place / "rows.jsonl").write_text("\n".join(lines) + "\n")
    return place


def site(root: Path, method: str, backbone: Path | None = None, **further: Any) -> SiteConfig:
    """The settings of the site whose records are in `root`."""
    return site_config(FORMATS[method], root, backbone, root.name, **further)


def make(method: str, config: SiteConfig, seed: int = 0, **settings: Any) -> Any:
    """A learner that has loaded its own initial state."""
    learner = build_learner(method, SMALL | settings, config, seed)
    learner.load_shared(learner.initial_shared())
    return learner
