# SPDX-License-Identifier: Apache-2.0
"""The decoder's input, teacher forcing, generation, backbones and their fingerprints."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from medflare.core.errors import ConfigError
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import fingerprint, load_backbone
from medflare.models.encoders import EncoderSettings
from medflare.models.report_generator import (
    DecodingSettings,
    ModelSettings,
    ReportGenerator,
    parameter_counts,
)

ENCODER = EncoderSettings(name="small", weights="none", image_size=64, token_grid=2)


def generator(folder: Path, prompts: bool = True) -> ReportGenerator:
    settings = ModelSettings(encoder=ENCODER, prompts=prompts)
    return ReportGenerator(load_backbone(folder, "fp32"), settings, (GENERIC,), seed=0).eval()


@pytest.fixture(scope="module")
def model(tiny_backbone: Path) -> ReportGenerator:
    return generator(tiny_backbone)


IMAGES = torch.rand(3, 1, 64, 64, generator=torch.Generator().manual_seed(0))
CODES = torch.randint(0, 4, (3, 14), generator=torch.Generator().manual_seed(1))


def test_prefix_is_text_image_and_fourteen_diagnosis_tokens(
    model: ReportGenerator, tiny_backbone: Path
) -> None:
    with_prompts = model.prefix(model.encode_images(IMAGES), CODES).shape[1]
    without = generator(tiny_backbone, prompts=False)
    assert with_prompts - without.prefix(without.encode_images(IMAGES), CODES).shape[1] == 14


def test_logits_are_those_of_a_plain_forward_pass(model: ReportGenerator) -> None:
    prefix = model.prefix(model.encode_images(IMAGES), CODES)
    reports = torch.randint(5, 60, (3, 7))
    decoded = model.decode(prefix, reports)
    table = model.backbone.model.get_input_embeddings()
    logits = model.backbone.model(inputs_embeds=torch.cat([prefix, table(reports)], 1)).logits
    expected = logits[:, prefix.shape[1] - 1 : -1]
    assert torch.allclose(decoded.logits, expected.flatten(0, 1), atol=1e-5)
    assert decoded.hidden.shape == (3 * 7, model.backbone.hidden)
    kept = torch.arange(7) < torch.tensor([[7], [2], [5]])
    short = model.decode(prefix, reports, kept)
    assert torch.allclose(short.logits, expected[kept], atol=1e-5)
    assert short.hidden.shape == (14, model.backbone.hidden)


def test_gradients_reach_everything_that_travels_and_nothing_frozen(model: ReportGenerator) -> None:
    model.adapters.use((GENERIC,), train=(GENERIC,))
    features = model.encode_images(IMAGES)
    out = model.decode(model.prefix(features, CODES), torch.randint(5, 60, (3, 7)))
    (out.logits.logsumexp(-1).mean() + features.logits.square().mean()).backward()
    assert all(p.grad is not None for p in [*model.body(), *model.encoder.parameters()])
    assert all(p.grad is not None for p in model.adapters.parameters(GENERIC))
    assert model.backbone.model.get_output_embeddings().weight.grad is None
    model.zero_grad(set_to_none=True)


def test_generation_gives_a_text_and_the_codes_that_prompted_it(model: ReportGenerator) -> None:
    texts, codes = model.generate(IMAGES, DecodingSettings(beams=2, max_new_tokens=5, min_new_tokens=0))
    assert len(texts) == 3
    assert torch.equal(codes, model.encode_images(IMAGES).logits.argmax(-1))


def test_reports_are_cut_and_end_in_one_eos(model: ReportGenerator) -> None:
    rows = model.tokenise(["No effusion. " * 40, "Clear."], 10)
    assert len(rows[0]) == 11
    assert [row.count(model.backbone.tokenizer.eos_token_id) for row in rows] == [1, 1]


def test_counts_add_up_to_what_is_shared(model: ReportGenerator) -> None:
    counts = parameter_counts(model, GENERIC)
    shared = sum(t.numel() for t in model.shared_tensors().values())
    shared += sum(t.numel() for t in model.adapters.state(GENERIC).values())
    assert sum(counts.values()) == shared


def test_start_values_are_the_same_at_every_site(tiny_backbone: Path) -> None:
    first, second = generator(tiny_backbone), generator(tiny_backbone)
    assert all(torch.equal(a, b) for a, b in zip(first.body(), second.body(), strict=True))


def test_fingerprint_follows_weights_and_not_their_files(tiny_backbone: Path, tmp_path: Path) -> None:
    other = tmp_path / "resharded"
    shutil.copytree(tiny_backbone, other)
    state = load_file(other / "model.safetensors")
    names = sorted(state)
    (other / "model.safetensors").unlink()
    save_file({n: state[n] for n in names[:5]}, other / "a.safetensors")
    save_file({n: state[n] for n in names[5:]}, other / "b.safetensors")
    assert fingerprint(other) == fingerprint(tiny_backbone)
    state[names[0]][0] += 1e-3
    save_file({n: state[n] for n in names[:5]}, other / "a.safetensors")
    assert fingerprint(other) != fingerprint(tiny_backbone)


def test_missing_backbone_and_pickled_weights_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        load_backbone(tmp_path / "nowhere")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        load_backbone(tmp_path)
    with pytest.raises(ConfigError, match="expected one of auto, fp32"):
        load_backbone(None, "fp16")


def test_nf4_gradients_survive_an_evaluation_in_between(tiny_backbone: Path) -> None:
    """libraries.md 4: bitsandbytes repacks in eval mode on CPU and LoRA gradients go wrong afterwards."""

    def gradient(model: ReportGenerator) -> torch.Tensor:
        model.adapters.use((GENERIC,), train=(GENERIC,))
        prefix = model.prefix(model.encode_images(IMAGES).detach(), CODES)
        model.decode(prefix.detach(), torch.arange(5, 12).repeat(3, 1)).logits.logsumexp(-1).mean().backward()
        grad = model.adapters.parameters(GENERIC)[1].grad
        assert grad is not None
        copy = grad.clone()
        model.zero_grad(set_to_none=True)
        for p in model.adapters.parameters(GENERIC):
            p.grad = None
        return copy

    settings = ModelSettings(encoder=ENCODER)
    model = ReportGenerator(load_backbone(tiny_backbone, "nf4"), settings, (GENERIC,), seed=0)
    assert any("4bit" in type(m).__name__ for m in model.backbone.model.modules())
    before = gradient(model)
    with model.evaluating(), torch.no_grad():
        model.generate(IMAGES, DecodingSettings(beams=1, max_new_tokens=3, min_new_tokens=0))
    assert before.abs().sum() > 0
    assert torch.allclose(gradient(model), before, atol=1e-6)


def test_backbones_that_load_at_the_same_time_keep_their_tied_weights() -> None:
    """As thread workers do."""
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: load_backbone(None, "fp32", "cpu", "notes_decoder"), range(8)))
    for backbone in [*loaded, load_backbone(None, "fp32", "cpu", "notes_decoder")]:
        table = backbone.model.get_input_embeddings().weight
        assert backbone.model.get_output_embeddings().weight is table
        assert not table.is_meta
