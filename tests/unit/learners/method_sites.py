# SPDX-License-Identifier: Apache-2.0
"""Every method with a small model on a small cohort: one row of `SETTINGS` for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fedtar_sites import SMALL, site, write_visits

from medflare.core.learner import Learner
from medflare.data.settings.site import SiteConfig
from medflare.learners.registry import build_learner, task_of
from medflare.synthetic.knowledge import write_questions_demo, write_summaries_demo
from medflare.synthetic.notes import NOTE_HOSPITALS, write_notes_hospital
from site_builders import site_config

PART = {"layers": 1, "width": 32, "attention_heads": 2}
TEXT: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
    "optimiser": {"batch": 2, "lr": 2e-3, "accumulate": 2},
    "max_tokens": 400,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "fedmrg": {
        "model": {
            "encoder": {"name": "small", "weights": "none", "image_size": 48, "token_grid": 2},
            "lora": {"rank": 2, "lora_alpha": 8},
        },
        "batch": 8,
        "max_report_tokens": 30,
        "decoding": {"beams": 1, "max_new_tokens": 8},
    },
    "fed_medlora": {
        "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.1},
        "optimiser": {"batch": 2, "lr": 2e-3, "accumulate": 2},
        "max_tokens": 500,
    },
    "fedtar": {k: v for k, v in SMALL.items() if k not in ("patient", "mixture")}
    | {"variant": "pooled_baseline"},
    "question_answering": TEXT,
    "summarisation": TEXT,
    "token_classification": {"optimiser": {"batch": 8, "lr": 1e-3}, "eval_batch": 32},
    "fedvit_gpt2": {
        "model": {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}},
        "optimiser": {"lr": 3e-3},
        "max_report_tokens": 30,
        "decoding": {"beams": 1, "max_new_tokens": 8},
    },
}
SMALL_IMAGE = {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2}
WRITER: dict[str, Any] = {
    "encoder": {"name": "small", "weights": "none", "image_size": 32},
    **{"width": 16, "layers": 1, "attention_heads": 2, "feed_forward": 32, "positions": 48},
}
GENERATOR: dict[str, Any] = {
    "optimiser": {"batch": 8, "lr": 3e-3},
    "max_report_tokens": 16,
    "decoding": {"beams": 1, "max_new_tokens": 6},
}
SETTINGS |= {
    "transformer": GENERATOR | {"model": WRITER},
    "r2gen": GENERATOR | {"model": WRITER | {"memory": "relational"}},
    "wcl": GENERATOR | {"model": WRITER | {"memory": "relational", "contrast_width": 8}, "clusters": 3},
    "dcl": GENERATOR
    | {
        "model": {
            "encoder": SMALL_IMAGE,
            **{"width": 16, "layers": 1, "attention_heads": 2, "graph_heads": 2, "positions": 48},
            **{"feed_forward": 32, "graph_feed_forward": 32, "contrast_width": 8},
        },
        "queue": 16,
    },
    "ct2replong": GENERATOR
    | {
        "model": {
            "encoder": {
                **{"image_size": 32, "slices": 2, "patch": 16, "slice_patch": 1},
                **{"width": 16, "attention_heads": 2},
            },
            **{name: value for name, value in WRITER.items() if name != "encoder"},
        },
        "visits": 3,
        "max_former_tokens": 8,
    },
    "r2gengpt": GENERATOR | {"model": {"encoder": SMALL_IMAGE}},
    "promptmrg": GENERATOR
    | {
        "model": {"encoder": SMALL_IMAGE, "lora": {"rank": 2, "lora_alpha": 8}, "retrieval_width": 8},
        "retrieved": 3,
    },
}
Make = Callable[..., Learner]


@pytest.fixture(scope="session")
def method_notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for number in (1, 2):
        write_notes_hospital(NOTE_HOSPITALS[number - 1], folder / f"site-{number}", 12, "jsonl")
    return folder


@pytest.fixture(scope="session")
def method_texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`questions` and `summaries` of two hospitals."""
    folder = tmp_path_factory.mktemp("texts")
    write_questions_demo(folder / "questions", 2, questions=12, diseases=2, groups=2)
    write_summaries_demo(folder / "summaries", 2, reports=14)
    return folder


@pytest.fixture(scope="session")
def method_visits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("visits")
    for number in (1, 2):
        write_visits(folder / f"site-{number}", number - 1)
    return folder


@pytest.fixture
def site_of(
    method_notes: Path,
    method_texts: Path,
    method_visits: Path,
    small_hospital: Path,
    tiny_backbone: Path,
    tiny_encoder: Path,
) -> Callable[[str, str], SiteConfig]:
    """A method's hospital site-1 or site-2."""
    adapted = (
        *("fedmrg", "fed_medlora", "fedtar", "question_answering", "summarisation"),
        "promptmrg",
    )
    models = {**dict.fromkeys(adapted, tiny_backbone), "token_classification": tiny_encoder}

    def made(method: str, name: str) -> SiteConfig:
        reads, backbone = task_of(method).reads, models.get(method)
        if reads == "visits":
            return site(method_visits / name, backbone, name)
        if reads == "studies":
            return site_config("manifest", small_hospital, backbone, name)
        folder = method_notes if reads == "notes" else method_texts / reads
        return site_config(f"{reads}_jsonl", folder / name, backbone, name)

    return made


@pytest.fixture
def make_learner(site_of: Callable[[str, str], SiteConfig]) -> Make:
    """A learner of a method at site-1 or site-2 that has loaded its own initial state."""

    def made(method: str, name: str = "site-1", seed: int = 0, **settings: Any) -> Learner:
        learner = build_learner(method, SETTINGS[method] | settings, site_of(method, name), seed)
        learner.load_shared(learner.initial_shared())
        return learner

    return made


@pytest.fixture(params=sorted(SETTINGS))
def any_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)
