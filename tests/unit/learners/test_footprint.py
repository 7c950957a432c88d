# SPDX-License-Identifier: Apache-2.0
"""The estimate of memory agrees with learners that are really built, and grows with what makes it grow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fedtar_sites import SMALL as SMALL_VISITS
from fedtar_sites import learner as learner_of_visits
from fedtar_sites import site as visits_site
from fedtar_sites import write_visits

from medflare.data.settings.site import SiteConfig
from medflare.learners.extraction.settings import ExtractionSettings
from medflare.learners.footprint import Footprint, footprint
from medflare.learners.registry import METHODS, build_learner
from medflare.models.backbone import load_backbone

SITE = SiteConfig.model_validate(
    {
        "cohort": {"format": "manifest", "root": "."},
        "device": "cpu",
        "backbone": {"precision": "fp32"},
    }
)
LORA = {"lora": {"rank": 4, "lora_alpha": 8, "targets": ["q_proj", "v_proj"]}}


WITH_FROZEN_WEIGHTS = (
    *("fed_medlora", "fedmrg", "fedtar", "question_answering", "summarisation", "promptmrg", "r2gengpt"),
    "dcl",  # its momentum networks
)


def estimate(method: str, **settings: Any) -> Footprint:
    result = footprint(method, settings, SITE)
    assert result is not None
    return result


@pytest.mark.parametrize("method", sorted(name for name, method in METHODS.items() if method.footprint))
def test_every_method_has_an_estimate_in_all_its_parts(method: str) -> None:
    result = estimate(method)
    assert result.learning == 2 * result.exchange > 0
    assert result.activations > 0
    assert (result.frozen > 0) == (method in WITH_FROZEN_WEIGHTS)
    parts = result.frozen + result.learning + result.exchange + result.activations + result.runtime
    assert result.total == parts


@pytest.mark.parametrize("dual", [True, False])
def test_learning_weights_of_fedmrg_are_those_that_the_learner_trains(
    small_hospital: Path, dual: bool
) -> None:
    settings = {"model": LORA, "dual": dual, "distil_to_generic": dual, "distil_to_specialised": dual}
    site = SITE.model_copy(update={"cohort": (SITE.cohort[0].model_copy(update={"root": small_hospital}),)})
    learner: Any = build_learner("fedmrg", settings, site, 0)
    shared = sum(v.numel() for v in learner.initial_shared().values())
    private = sum(p.numel() for p in learner.model.adapters.parameters("specialised")) if dual else 0
    assert estimate("fedmrg", **settings).learning == 16 * (shared + private)


@pytest.mark.parametrize("method", ["dcl", "promptmrg", "r2gen", "r2gengpt", "transformer", "wcl"])
@pytest.mark.parametrize("rate", [1.0, 0.0])
def test_learning_weights_of_a_report_generator_are_those_of_its_optimiser(
    small_hospital: Path, method: str, rate: float
) -> None:
    settings = {"optimiser": {"encoder_lr_scale": rate}}
    site = SITE.model_copy(update={"cohort": (SITE.cohort[0].model_copy(update={"root": small_hospital}),)})
    learner: Any = build_learner(method, settings, site, 0)
    learning = sum(p.numel() for p in learner.learning() if p.requires_grad)
    assert estimate(method, **settings).learning == 16 * learning


def test_more_slices_of_a_volume_and_a_former_visit_take_more_memory() -> None:
    def activations(slices: int, former: bool) -> int:
        return estimate("ct2replong", model={"encoder": {"slices": slices}}, former=former).activations

    assert activations(4, False) < activations(4, True) < activations(8, True)


@pytest.mark.parametrize("changes", [{}, {"personal": False}, {"train_backbone": True}], ids=str)
def test_learning_weights_of_fedtar_are_those_that_travel(
    tmp_path: Path, tiny_backbone: Path, changes: dict[str, Any]
) -> None:
    folder = write_visits(tmp_path / "site", patients=6)
    config = visits_site(folder, tiny_backbone)
    learner = learner_of_visits(config, **changes)
    shared = sum(value.numel() for value in learner.initial_shared().values())
    result = footprint("fedtar", SMALL_VISITS | changes, config)
    assert result is not None
    assert result.learning == 16 * shared


def test_frozen_weights_are_those_of_the_backbone() -> None:
    frozen = sum(p.numel() for p in load_backbone(None, "fp32", embedded="notes_decoder").model.parameters())
    assert estimate("fed_medlora", **LORA).frozen == 4 * frozen


@pytest.mark.parametrize(
    ("small", "large"),
    [
        ({"optimiser": {"batch": 2}}, {"optimiser": {"batch": 8}}),
        ({"max_tokens": 128}, {"max_tokens": 512}),
        ({"optimiser": {"gradient_checkpointing": True}}, {"optimiser": {"gradient_checkpointing": False}}),
    ],
)
def test_activations_grow_with_the_batch_and_the_text_and_shrink_with_checkpointing(
    small: dict[str, Any], large: dict[str, Any]
) -> None:
    assert 1.5 * estimate("fed_medlora", **small).activations < estimate("fed_medlora", **large).activations


def test_no_weight_is_loaded_and_no_memory_taken_for_a_model_of_seven_billion(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=11008
    )
    config.save_pretrained(tmp_path)
    backbone = SITE.backbone.model_copy(update={"folder": tmp_path, "precision": "bf16"})
    result = footprint("fed_medlora", {}, SITE.model_copy(update={"backbone": backbone}))
    assert result is not None
    assert result.frozen == 2 * 6_738_415_616
    assert 30e9 < result.total < 120e9


def test_a_packed_model_of_eight_billion_is_estimated_above_what_a_gpu_took(tmp_path: Path) -> None:
    """docs/how-to/preflight.md: 10.5 GB on the card, of which weights 5.70; an H200 took 9.63 and 5.70."""
    from transformers import LlamaConfig

    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 128256}
    LlamaConfig(
        **sizes, num_key_value_heads=8, intermediate_size=14336, max_position_embeddings=8192
    ).save_pretrained(tmp_path)
    backbone = SITE.backbone.model_copy(update={"folder": tmp_path, "precision": "nf4"})
    site = SITE.model_copy(update={"backbone": backbone})
    result = footprint("fed_medlora", {"preset": "paper", "max_tokens": 800}, site)
    assert result is not None
    assert result.frozen == pytest.approx(5.70e9, rel=0.002)
    assert result.total - result.runtime - result.exchange == pytest.approx(10.5e9, rel=0.01)


@pytest.mark.parametrize("method", ["fed_medlora", "question_answering", "summarisation"])
def test_every_text_task_has_an_estimate_that_grows_with_its_batch(method: str) -> None:
    small, large = (estimate(method, optimiser={"batch": batch}) for batch in (1, 4))
    assert small.frozen == large.frozen > 0
    assert 2 * small.activations < large.activations


def test_logits_are_counted_of_answers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = estimate("question_answering", scoring="letters").activations
    options = estimate("question_answering", scoring="options").activations
    assert letters < options
    answers = estimate("fed_medlora").activations
    monkeypatch.delattr(ExtractionSettings, "most_answer_tokens")
    assert answers < estimate("fed_medlora").activations


def test_virtual_tokens_have_no_estimate() -> None:
    assert footprint("fed_medlora", {"peft": {"method": "prompt", "tokens": 8}}, SITE) is None
