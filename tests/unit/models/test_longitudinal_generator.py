# SPDX-License-Identifier: Apache-2.0
"""Visits to reports: several pictures, the report before, patients' factors, and rows of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from medflare.core.errors import ConfigError
from medflare.models.backbone import load_backbone
from medflare.models.longitudinal_generator import (
    LongitudinalGenerator,
    LongitudinalSettings,
    VisitBatch,
    export_settings,
    left_padded,
    parameter_counts,
)
from medflare.models.report_generator import DecodingSettings

COMPONENTS = 3
GREEDY = DecodingSettings(beams=1, max_new_tokens=12, min_new_tokens=4, repetition_penalty=1.0)
TARGETS = {"llama": ["q_proj", "v_proj"], "gpt2": ["c_attn"]}
PRIORS = (None, "The heart is large.", "There is a small left pleural effusion and mild edema.", None)


@pytest.fixture(scope="session")
def tiny_gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a two-layer GPT-2 with random weights and the embedded tokenizer."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from medflare.models.embedded import decoder_folder

    folder = tmp_path_factory.mktemp("gpt2") / "tiny-gpt2"
    tokenizer = AutoTokenizer.from_pretrained(decoder_folder())
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=48,
        n_layer=2,
        n_head=2,
        n_positions=256,
        bos_token_id=1,
        eos_token_id=2,
        initializer_range=0.2,
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def settings(kind: str = "llama", **changes: Any) -> LongitudinalSettings:
    patient = {"width": 8, "rank": 2, "lora_alpha": 8, "targets": TARGETS[kind]}
    base: dict[str, Any] = {
        "model": {
            "encoder": {"name": "small", "weights": "none", "image_size": 32},
            "lora": {"rank": 2, "targets": TARGETS[kind]},
            "prompts": False,
        },
        "patient": patient,
        "components": COMPONENTS,
        "prior_context": True,
        "max_prior_tokens": 6,
    }
    return LongitudinalSettings.model_validate(base | changes)


def learnt(model: LongitudinalGenerator) -> LongitudinalGenerator:
    """With factors that are no longer zero, and a decoder that says different things."""
    torch.manual_seed(7)
    with torch.no_grad():
        for weight in model.backbone.model.parameters():
            weight.mul_(5 if model.backbone.name == "tiny-llama" and weight.dim() > 1 else 1)
        for name, tensor in model.shared_tensors().items():
            if name.endswith(".b.weight"):
                tensor.normal_(std=0.3)
        for name, tensor in model.adapters.shared_parameters("generic").items():
            if "lora_B" in name:
                tensor.normal_(std=0.2)
    return model.eval()


@pytest.fixture(params=["llama", "gpt2"])
def model(request: Any, tiny_backbone: Path, tiny_gpt2: Path) -> LongitudinalGenerator:
    folder = tiny_gpt2 if request.param == "gpt2" else tiny_backbone
    return learnt(LongitudinalGenerator(load_backbone(folder, "fp32"), settings(request.param), 0))


def visits(model: LongitudinalGenerator, rows: list[int] | None = None) -> VisitBatch:
    """Four visits of 1, 2, 3 and 1 pictures; or some of them, with no more pictures than those have."""
    draw = torch.Generator().manual_seed(3)
    patches = torch.randn(4, 3, model.encoder.tokens, model.encoder.width, generator=draw)
    counts, rows = torch.tensor([1, 2, 3, 1]), list(range(4)) if rows is None else rows
    there = torch.arange(3) < counts[:, None]
    most = int(counts[rows].max())
    q = torch.softmax(torch.randn(4, COMPONENTS, generator=draw), 1)
    return VisitBatch(patches[rows, :most], there[rows, :most], [PRIORS[row] for row in rows], q[rows])


def texts(count: int) -> tuple[Tensor, Tensor]:
    ids = torch.randint(5, 400, (4, 7), generator=torch.Generator().manual_seed(1))
    return ids[:count], ids[:count].clone()


def test_a_row_has_the_same_loss_alone_and_among_rows_of_other_lengths(model: LongitudinalGenerator) -> None:
    ids, targets = texts(4)
    with torch.no_grad():
        together = model.token_losses(visits(model), ids, targets)
        alone = [
            model.token_losses(visits(model, [row]), ids[row, None], targets[row, None])[0]
            for row in range(4)
        ]
    assert torch.allclose(together, torch.stack(alone), atol=2e-5)
    assert float(together.std(0).min()) > 0.03


@pytest.mark.parametrize("beams", [1, 2, 3])
def test_a_row_has_the_same_draft_alone_and_among_others(model: LongitudinalGenerator, beams: int) -> None:
    """With beams, the rows of one patient stay together and have that patient's factors."""
    decoding = GREEDY.model_copy(update={"beams": beams})
    together = model.draft(visits(model), decoding)
    alone = [model.draft(visits(model, [row]), decoding)[0] for row in range(4)]
    assert together == alone
    assert len(set(together)) > 1


def test_gradients_of_padded_rows_are_numbers_and_those_of_the_rows_alone(
    model: LongitudinalGenerator,
) -> None:
    ids, targets = texts(4)
    learning = {n: t for n, t in model.shared_tensors().items() if t.requires_grad}

    def gradient(parts: list[list[int]]) -> dict[str, Tensor]:
        sums = [model.token_losses(visits(model, p), ids[p], targets[p]).sum() for p in parts]
        total = torch.stack(sums).sum()
        return dict(zip(learning, torch.autograd.grad(total, list(learning.values())), strict=True))

    one, other = gradient([[0, 1, 2, 3]]), gradient([[0], [1], [2], [3]])
    for name, value in one.items():
        assert torch.allclose(value, other[name], rtol=1e-3, atol=2e-4), name


def test_every_picture_and_the_report_before_are_read(model: LongitudinalGenerator) -> None:
    ids, targets = texts(1)
    with torch.no_grad():
        both_images = visits(model, [2])
        loss = model.token_losses(both_images, ids, targets)
        fewer = VisitBatch(
            both_images.patches[:, :2], both_images.pictures[:, :2], both_images.priors, both_images.assigned
        )
        first = VisitBatch(both_images.patches, both_images.pictures, [None], both_images.assigned)
        other = VisitBatch(
            both_images.patches, both_images.pictures, both_images.priors, both_images.assigned.flip(1)
        )  # type: ignore[union-attr]
        for changed in (fewer, first, other):
            assert not torch.allclose(model.token_losses(changed, ids, targets), loss, atol=1e-3)


def test_a_picture_that_is_not_there_is_not_read(model: LongitudinalGenerator) -> None:
    ids, targets = texts(2)
    batch = visits(model, [0, 2])
    with torch.no_grad():
        loss = model.token_losses(batch, ids, targets)
        batch.patches[0, 1:] = 1e3
        assert torch.equal(model.token_losses(batch, ids, targets), loss)


def test_the_report_before_is_cut_and_its_absence_has_words(model: LongitudinalGenerator) -> None:
    tokenizer = model.backbone.tokenizer
    ids, known = model._priors([PRIORS[2], None])
    decoded = [tokenizer.decode(row[there]) for row, there in zip(ids, known, strict=True)]
    assert decoded[1].strip() == "First visit."
    assert decoded[0].strip().startswith("Previous report: There is a small")
    wording = len(tokenizer(" Previous report:", add_special_tokens=False)["input_ids"])
    assert int(known[0].sum()) == wording + 6


def test_without_prior_context_no_report_is_read(tiny_backbone: Path) -> None:
    model = learnt(
        LongitudinalGenerator(load_backbone(tiny_backbone, "fp32"), settings(prior_context=False), 0)
    )
    batch = visits(model, [2])
    other = VisitBatch(batch.patches, batch.pictures, [None], batch.assigned)
    with torch.no_grad():
        assert torch.equal(model.visit_prefix(batch)[0], model.visit_prefix(other)[0])


def test_with_visit_context_it_is_told_which_visit_is_a_first_and_nothing_of_the_report(
    tiny_backbone: Path,
) -> None:
    chosen = settings(prior_context=False, visit_context=True)
    model = learnt(LongitudinalGenerator(load_backbone(tiny_backbone, "fp32"), chosen, 0))
    ids, known = model._priors([None, PRIORS[2], "Another report.", ""])
    first, *later = (
        model.backbone.tokenizer.decode(row[there]).strip() for row, there in zip(ids, known, strict=True)
    )
    assert (first, set(later)) == ("First visit.", {"Follow-up visit."})
    batch = visits(model, [2])
    same, other = (
        VisitBatch(batch.patches, batch.pictures, [text], batch.assigned) for text in ("Yes.", None)
    )
    with torch.no_grad():
        (told, _), (again, _), (without, _) = map(model.visit_prefix, (batch, same, other))
    assert torch.equal(told, again)
    assert told.shape != without.shape or not torch.equal(told, without)
    assert model.positions(3, 10) >= told.shape[1] + 10


def test_positions_are_those_of_the_longest_visit(model: LongitudinalGenerator) -> None:
    prefix, _ = model.visit_prefix(visits(model, [2]))
    assert model.positions(3, 10) == prefix.shape[1] + 10


def test_padding_goes_to_the_left_and_order_stays() -> None:
    embedded = torch.arange(8.0).reshape(2, 4, 1)
    there = torch.tensor([[True, False, True, False], [True, True, False, True]])
    moved, kept = left_padded(embedded, there)
    assert kept is not None
    assert kept.tolist() == [[False, True, True], [True, True, True]]
    assert moved[..., 0][kept].tolist() == [0, 2, 4, 5, 7]
    assert left_padded(embedded, there | True)[1] is None


# ---- what travels ------------------------------------------------------------------------------------------


def test_bridge_adapter_and_generators_learn_and_nothing_else_does(model: LongitudinalGenerator) -> None:
    learning = {id(p) for p in model.parameters() if p.requires_grad}
    learning |= {id(p) for p in model.backbone.model.parameters() if p.requires_grad}
    travelling = [t for t in model.shared_tensors().values()] + model.adapters.parameters("generic")
    assert learning == {id(t) for t in travelling}
    starts = {name.split(".")[0] for name in model.shared_tensors()}
    assert starts == {"projection", "patient"}
    counts = parameter_counts(model)
    assert sum(counts.values()) == sum(t.numel() for t in travelling)
    assert counts["projection"] == (model.encoder.width + 1) * model.backbone.hidden
    held = parameter_counts(model, ("patient.projection.",))
    assert set(counts) - set(held) == {"patient_projection"}


def test_personalisation_starts_as_nothing_and_can_be_left_out(tiny_backbone: Path) -> None:
    cases: list[dict[str, Any]] = [{}, {"patient": None}]
    personal, plain = (
        LongitudinalGenerator(load_backbone(tiny_backbone, "fp32"), settings(**changes), 0)
        for changes in cases
    )
    assert not [name for name in plain.shared_tensors() if name.startswith("patient")]
    ids, targets = texts(4)
    with torch.no_grad():
        one, other = (m.eval().token_losses(visits(m), ids, targets) for m in (personal, plain))
    assert torch.allclose(one, other, atol=1e-6)


def test_everything_can_learn(tiny_backbone: Path) -> None:
    model = LongitudinalGenerator(load_backbone(tiny_backbone, "fp32"), settings(train_backbone=True), 0)
    shared = model.shared_tensors()
    assert {"decoder.model.embed_tokens.weight", "decoder.model.layers.0.self_attn.q_proj.weight"} <= set(
        shared
    )
    assert [name for name in shared if name.startswith("encoder.")]
    assert not [name for name in shared if "lora" in name]
    base_parameters = {id(p) for p in model.backbone.model.parameters()} - {
        id(p) for p in model.adapters.parameters("generic")
    }
    assert {id(t) for n, t in shared.items() if n.startswith("decoder.")} == base_parameters
    assert {"encoder", "decoder"} <= set(parameter_counts(model))


def test_an_export_says_how_to_build_the_model_again(model: LongitudinalGenerator) -> None:
    export = export_settings(model, GREEDY)
    assert export["file"] == "longitudinal_generator"
    assert LongitudinalSettings.model_validate(export["generator"]) == model.parts


def test_what_cannot_be_is_said(tiny_backbone: Path) -> None:
    prompted = settings().model.model_copy(update={"prompts": True})
    with pytest.raises(ConfigError, match=r"model\.prompts: diagnosis tokens belong to FedMRG"):
        LongitudinalGenerator(load_backbone(tiny_backbone, "fp32"), settings(model=prompted), 0)
    with pytest.raises(ConfigError, match=r"train_backbone: the decoder was loaded in bf16"):
        LongitudinalGenerator(load_backbone(tiny_backbone, "bf16"), settings(train_backbone=True), 0)
