# SPDX-License-Identifier: Apache-2.0
"""What a graph suggests by itself: found on graphs with a rule behind them, and not on those without."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from medflare.core.config import parse
from medflare.core.errors import ConfigError
from medflare.core.variables import with_absolute_paths
from medflare.data.settings.knowledge import CompletionConfig, KnowledgeConfig
from medflare.knowledge.completion import calibrated, suggest_triples
from medflare.knowledge.site_graph import site_graph
from medflare.knowledge.triples import Triple, graph_of

GROUPS, DISEASES, SYMPTOMS = 4, 12, 8


def world() -> list[Triple]:
    """Diseases of a group have the group's symptoms and nothing else."""
    return [
        Triple(f"disease {group} {number}", "has symptom", f"symptom {group} {symptom}")
        for group in range(GROUPS)
        for number in range(DISEASES)
        for symptom in range(SYMPTOMS)
    ]


def known_part(facts: list[Triple], share: float = 0.9) -> dict[Triple, float]:
    kept = np.random.default_rng(0).random(len(facts)) < share
    return {fact: 1.0 for fact, there in zip(facts, kept, strict=True) if there}


def settings(**changes: object) -> CompletionConfig:
    return CompletionConfig(**({"width": 32, "epochs": 40, "seed": 1} | changes))


@pytest.fixture
def pykeen() -> None:
    pytest.importorskip("pykeen", reason="the extra `knowledge` is not installed")


@pytest.mark.usefixtures("pykeen")
@pytest.mark.parametrize("model", ["RotatE", "TransE"])
def test_missing_facts_of_a_regular_world_are_found(model: str) -> None:
    graph = known_part(world())
    graph |= {Triple("patient", "has", f"symptom 0 {number}"): 1.0 for number in range(SYMPTOMS)}
    added = suggest_triples(graph, settings(model=model, least_score=0.2))
    right = [triple in set(world()) for triple in added]
    assert len(right) >= 20
    assert np.mean(right) > 0.8
    assert all(0.2 <= confidence <= 1 for confidence in added.values())
    assert not any(triple.head == "patient" for triple in added)
    assert not added.keys() & graph.keys()


AFTER = """
import bitsandbytes.optim
from medflare.data.settings.knowledge import CompletionConfig
from medflare.knowledge.completion import suggest_triples
from medflare.knowledge.triples import Triple

graph = {Triple(f"a{i % 9}", f"r{i % 2}", f"b{(i * i) % 13}"): 1.0 for i in range(400)}
more = {Triple(f"c{i}", "r0", "b1"): 1.0 for i in range(80)}
suggest_triples(graph | more, CompletionConfig(width=8, epochs=1))
from class_resolver.contrib.torch import optimizer_resolver
print(optimizer_resolver.lookup("adagrad").__module__)
"""


@pytest.mark.usefixtures("pykeen")
def test_pykeen_starts_in_a_process_that_trains_adapters() -> None:
    """bitsandbytes, which PEFT imports, has optimisers of the same names as torch."""
    pytest.importorskip("bitsandbytes")
    result = subprocess.run([sys.executable, "-c", AFTER], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == "torch.optim.adagrad"


@pytest.mark.usefixtures("pykeen")
def test_the_same_graph_and_seed_give_the_same_triples() -> None:
    graph = known_part(world())
    one, other = (suggest_triples(graph, settings(epochs=5, least_score=0.01)) for _ in range(2))
    assert one == other


@pytest.mark.usefixtures("pykeen")
def test_a_graph_without_a_rule_behind_it_suggests_next_to_nothing() -> None:
    random = np.random.default_rng(0)
    graph = {Triple(f"a{random.integers(60)}", "r", f"b{random.integers(60)}"): 1.0 for _ in range(250)}
    assert len(suggest_triples(graph, settings(epochs=20))) <= 2


@pytest.mark.usefixtures("pykeen")
def test_a_small_graph_is_left_as_it_is_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert suggest_triples(dict(list(known_part(world()).items())[:40]), settings()) == {}
    assert "adds nothing: 40 triples" in caplog.text


def test_confidence_is_the_share_of_facts_at_a_score() -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=4000)
    chances = 1 / (1 + np.exp(-(2 * scores - 1)))
    confidences = calibrated(scores.tolist(), (random.random(4000) < chances).tolist())
    assert np.abs(np.array(confidences) - chances).max() < 0.05


@pytest.mark.parametrize(
    ("scores", "facts"),
    [
        ([1.0, 2.0], [False, False]),
        ([1.0, 2.0], [True, True]),
        ([1.0, 2.0, 3.0], [True, False, False]),
        ([], []),
    ],
    ids=["no fact", "nothing but facts", "facts score lowest", "nothing"],
)
def test_scores_that_teach_nothing_have_no_confidence(scores: list[float], facts: list[bool]) -> None:
    assert calibrated(scores, facts) == [0.0] * len(scores)


@pytest.mark.usefixtures("pykeen")
def test_with_and_without_completion_are_a_setting_apart(tmp_path: Path) -> None:
    lines = ["\t".join(triple) for triple in known_part(world())]
    (tmp_path / "kg.tsv").write_text("\n".join(lines))
    given = {"key": "k", "extractor": "none", "triples": "kg.tsv"}
    wanted = {"width": 32, "epochs": 40, "seed": 1, "least_score": 0.2}
    without = with_absolute_paths(parse(KnowledgeConfig, given, "site.yaml"), tmp_path)
    with_it = with_absolute_paths(
        parse(KnowledgeConfig, {**given, "completion": wanted}, "site.yaml"), tmp_path
    )
    plain, complete = site_graph(without, []), site_graph(with_it, [])
    assert plain == graph_of((triple, 1.0) for triple in known_part(world()))
    assert plain.items() < complete.items()


def test_without_pykeen_the_way_to_get_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "pykeen"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pykeen", None)
    with pytest.raises(ConfigError, match=r"pip install 'medflare\[knowledge\]'"):
        suggest_triples(known_part(world()), settings())
