# SPDX-License-Identifier: Apache-2.0
"""Questions and summaries by DDCS through controller and executors: who trains, and what opens again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fed_equality import real_learners, train
from fed_harness import SITES, Federation, Make, completed, final
from fed_real import real_federation

from medflare.aggregation import make_rule
from medflare.data.settings.site import load_site
from medflare.models.adapters.base import GENERIC
from medflare.recipes.after_run import score_site
from medflare.reporting.page import write_page
from medflare.synthetic.knowledge import write_questions_demo, write_summaries_demo
from medflare.tasks.prediction_files import read_answers, read_summaries
from medflare.tasks.questions.answerer import load_answerer
from medflare.tasks.summaries.summariser import load_summariser

UNSEEN = "site-4"
SETTINGS: dict[str, dict[str, Any]] = {
    "question_answering": {"eval_limit": 4},
    "summarisation": {"eval_limit": 2, "writing": {"max_new_tokens": 5}},
}
SMALL: dict[str, Any] = {
    "lora": {"rank": 2, "lora_alpha": 8, "targets": ["q_proj", "v_proj"], "dropout": 0.0},
    "optimiser": {"batch": 2, "lr": 2e-3},
    "max_tokens": 400,
}
PROFILES = {
    name: {"seconds_per_example": seconds, "down": 50.0, "up": 10.0}
    for name, seconds in zip(SITES, (0.1, 0.5, 2.0), strict=True)
}
ROUNDS, STEPS, LIMIT = 3, 2, 2


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Method -> folder with four hospitals and their site.yaml."""
    root = tmp_path_factory.mktemp("hospitals")
    write_questions_demo(root / "questions", 4, questions=12, diseases=2, groups=3)
    write_summaries_demo(root / "summaries", 4, reports=14)
    return {"question_answering": root / "questions", "summarisation": root / "summaries"}


def site_block(folder: Path, name: str, backbone: Path) -> dict[str, Any]:
    """A hospital's own site.yaml: the demo's, with absolute paths and the tiny backbone."""
    site = load_site(folder / "site.yaml", name)
    block = site.model_dump(mode="json", include={"cohort", "knowledge"}, exclude_defaults=True)
    return block | {"backbone": {"folder": str(backbone), "precision": "fp32"}, "device": "cpu"}


@pytest.fixture
def text_runs(hospitals: dict[str, Path], tiny_backbone: Path, tmp_path: Path) -> Make:
    def make(method: str, **rule: Any) -> Federation:
        blocks = {name: site_block(hospitals[method], name, tiny_backbone) for name in (*SITES, UNSEEN)}
        return real_federation(
            tmp_path,
            blocks,
            method=method,
            settings=SMALL | SETTINGS[method],
            rule={"rule": "ddcs", "rule_settings": {"draws": 3, "most_variance": 2.0}} | rule,
            controller={
                "num_rounds": ROUNDS,
                "steps": STEPS,
                "final_limit": LIMIT,
                "latency_profiles": PROFILES,
            },
        )

    return make


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_a_run_selects_trains_tests_and_opens_again(
    text_runs: Make, method: str, tiny_backbone: Path
) -> None:
    run = text_runs(method)
    record = completed(run)
    assert set(record.preparation["sketches"]["sites"]) == set(SITES)
    seconds = [entry.simulated_seconds for entry in record.rounds]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    for entry in record.rounds:
        assert sum(entry.rule["drawn"].values()) == 3
        assert set(entry.rule["drawn"]) == set(entry.accepted)
    assert {item.site: item.studies for item in record.evaluations} == dict.fromkeys(SITES, LIMIT)
    result = run.folder / record.artefacts["final"]
    opened = load_answerer if method == "question_answering" else load_summariser
    model = opened(result, backbone=tiny_backbone, precision="fp32").model
    shared = final(run)
    for name, value in model.adapters.state(GENERIC).items():
        assert torch.equal(value, shared[f"adapter.{name}"])
    again = score_site(run.folder / "run.json", load_site(run.root / UNSEEN / "local/site.yaml", UNSEEN))
    assert (again.role, again.site) == ("unseen", UNSEEN)
    read = read_answers if method == "question_answering" else read_summaries
    assert len(read(run.folder / str(again.predictions))) == again.studies > 0
    unit = "questions" if method == "question_answering" else "summaries"
    assert f"{UNSEEN} (unseen)" in (page := write_page(run.folder / "run.json").read_text())
    assert f'href="#gallery">{unit.capitalize()}<' in page


@pytest.mark.parametrize("method", sorted(SETTINGS))
def test_a_run_is_what_the_plain_loop_learns(text_runs: Make, method: str) -> None:
    run = text_runs(method, rule="uniform_selection", rule_settings={"draws": 2})
    completed(run)
    rule = make_rule("uniform_selection", {"draws": 2})
    plain = train(real_learners(run, 0), rule, ROUNDS, steps=STEPS, seed=0)
    shared = final(run)
    for name, value in plain.state.items():
        torch.testing.assert_close(shared[name], value, atol=1e-6, rtol=1e-5)
    assert any(value.any() for name, value in plain.state.items() if name.endswith("lora_B.weight"))
