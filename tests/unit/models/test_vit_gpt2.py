# SPDX-License-Identifier: Apache-2.0
"""FedViT-GPT2's model: what it counts, what it begins with, what a loss and a draft are, how it reopens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    VisionEncoderDecoderConfig,
    VisionEncoderDecoderModel,
    ViTConfig,
    ViTForImageClassification,
)

from medflare.core.errors import ConfigError, DataError
from medflare.learners.vit_gpt2.learner import PAPER
from medflare.models.embedded import decoder_folder
from medflare.models.padding import pad
from medflare.models.report_generator import DecodingSettings
from medflare.models.report_result import load_generator
from medflare.models.vit_gpt2 import (
    BeamSettings,
    ViTGPT2,
    ViTGPT2Settings,
    export_settings,
    parameter_counts,
)
from medflare.models.vit_gpt2_folder import load_vit_gpt2
from medflare.models.vit_stem import new_vit

PART = {"layers": 1, "width": 32, "attention_heads": 2}
SMALL = ViTGPT2Settings.model_validate(
    {"encoder": PART | {"image_size": 32}, "decoder": PART | {"positions": 48}, "dropout": 0.0}
)
GREEDY = BeamSettings(beams=1, max_new_tokens=6)
REPORTS = ["The heart is normal.", "Large left pleural effusion with atelectasis. No pneumothorax."]


@pytest.fixture
def model() -> ViTGPT2:
    return load_vit_gpt2(None, "fp32", "cpu", SMALL, 0).eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """encoder/: a ViT classifier for one channel; decoder/: a narrower GPT-2 with the embedded tokenizer."""
    path = tmp_path_factory.mktemp("models") / "vit-gpt2"
    torch.manual_seed(3)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    vit = ViTConfig(hidden_size=32, image_size=48, patch_size=16, num_channels=1, **sizes)
    ViTForImageClassification(vit).save_pretrained(path / "encoder")
    (path / "encoder/preprocessor_config.json").write_text('{"image_mean": [0.4], "image_std": [0.2]}')
    gpt2 = GPT2Config(vocab_size=4096, n_embd=16, n_layer=1, n_head=2, n_positions=64)
    GPT2LMHeadModel(gpt2).save_pretrained(path / "decoder")
    AutoTokenizer.from_pretrained(decoder_folder()).save_pretrained(path / "decoder")
    return path


def images(count: int = 2, side: int = 32) -> Tensor:
    return torch.rand((count, 1, side, side), generator=torch.Generator().manual_seed(5))


def written(model: ViTGPT2) -> tuple[Tensor, Tensor]:
    return pad(model.tokenise(REPORTS, 40))


def test_the_papers_model_is_counted_again() -> None:
    with torch.device("meta"):
        config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(), GPT2Config())
        network = VisionEncoderDecoderModel(config)
        assert sum(p.numel() for p in network.parameters()) == 239_195_904
        facts = {
            "name": "",
            "fingerprint": "",
            "precision": "fp32",
            "begin": 0,
            "normalisation": ([0.5],) * 2,
        }
        counts = parameter_counts(ViTGPT2(network, None, SMALL, **facts))
    assert counts["cross_attention"] == 12 * (2 * 768 * 768 + 2 * 768 + 2 * (768 * 768 + 768) + 2 * 768)
    assert counts["encoder"] + 768 * 768 + 768 == 86_389_248
    assert counts["decoder"] == 124_439_808
    assert sum(counts.values()) == PAPER["total"]
    assert PAPER["bytes_fp32_per_direction"] == 4 * PAPER["total"]


def test_the_loss_is_transformers_own(model: ViTGPT2) -> None:
    reports, targets = written(model)
    model.network.config.decoder_start_token_id, model.network.config.pad_token_id = model.begin, 0
    reference = model.network(pixel_values=model.pixels(images()), labels=targets).loss
    assert model.report_loss(images(), reports, targets).item() == pytest.approx(reference.item(), rel=1e-5)


def test_padding_adds_nothing_to_the_loss(model: ViTGPT2) -> None:
    reports, targets = written(model)
    more = torch.full((2, 5), 7)
    longer = torch.cat([reports, more], 1), torch.cat([targets, torch.full_like(more, -100)], 1)
    assert torch.allclose(model.report_loss(images(), *longer), model.report_loss(images(), reports, targets))


def test_a_report_begins_and_ends_with_its_marks(model: ViTGPT2) -> None:
    tokenizer = model.tokenizer
    assert (model.begin, tokenizer.eos_token_id) == (1, 2)
    assert all(row[-1] == 2 and row.count(2) == 1 for row in model.tokenise(REPORTS, 40))
    assert [len(row) for row in model.tokenise(["effusion " * 90], 500)] == [48]


def test_a_greedy_draft_is_the_likeliest_token_after_each(model: ViTGPT2) -> None:
    ids = torch.tensor([[model.begin]])
    with torch.no_grad():
        for _ in range(GREEDY.max_new_tokens):
            step = model.network(pixel_values=model.pixels(images(1)), decoder_input_ids=ids).logits[0, -1]
            ids = torch.cat([ids, step.argmax().view(1, 1)], 1)
            if ids[0, -1] == model.tokenizer.eos_token_id:
                break
    texts, codes = model.generate(images(1), GREEDY)
    assert texts == [" ".join(model.tokenizer.decode(ids[0], skip_special_tokens=True).split())]
    assert codes.tolist() == [[0] * 14]


def test_drafting_of_several_images_is_drafting_of_each(model: ViTGPT2) -> None:
    beams = DecodingSettings(beams=2, max_new_tokens=8, min_new_tokens=0, repetition_penalty=1.0)
    together, _ = model.generate(images(), beams)
    assert together == [model.generate(images()[i : i + 1], beams)[0][0] for i in range(2)]


def test_the_seed_alone_decides_a_new_model(model: ViTGPT2) -> None:
    same, other = (load_vit_gpt2(None, "fp32", "cpu", SMALL, seed) for seed in (0, 1))
    for name, tensor in model.shared_tensors().items():
        assert torch.equal(tensor, same.shared_tensors()[name])
    assert any(not torch.equal(t, other.shared_tensors()[n]) for n, t in model.shared_tensors().items())
    assert model.fingerprint == other.fingerprint


def test_folders_decide_over_the_settings(folder: Path) -> None:
    model = load_vit_gpt2(folder, "fp32", "cpu", SMALL, 0)
    assert model.settings.encoder.image_size == 48
    assert (model.settings.decoder.positions, model.settings.decoder.width) == (64, 16)
    assert model.pixels(torch.full((1, 1, 1, 1), 0.6)).item() == pytest.approx(1.0)
    words = GPT2LMHeadModel.from_pretrained(folder / "decoder").transformer.wte.weight
    assert torch.equal(model.shared_tensors()["decoder.transformer.wte.weight"], words)
    assert {name: count > 0 for name, count in parameter_counts(model).items()} == {
        "encoder": True,
        "cross_attention": True,
        "decoder": True,
        "projection": True,
    }


def test_what_no_folder_brings_comes_from_the_seed(folder: Path) -> None:
    first, second = (load_vit_gpt2(folder, "fp32", "cpu", SMALL, 4).shared_tensors() for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_a_folder_of_another_kind_is_refused(folder: Path, tiny_backbone: Path, tmp_path: Path) -> None:
    (tmp_path / "encoder").symlink_to(folder / "encoder")
    (tmp_path / "decoder").symlink_to(tiny_backbone)
    with pytest.raises(ConfigError, match="decoder' holds a model of the kind 'llama', expected 'gpt2'"):
        load_vit_gpt2(tmp_path, "fp32", "cpu", SMALL, 0)
    with pytest.raises(ConfigError, match="there is no folder"):
        load_vit_gpt2(tmp_path / "none", "fp32", "cpu", SMALL, 0)


def test_weights_in_four_bits_cannot_learn() -> None:
    with pytest.raises(ConfigError, match="trains all weights"):
        load_vit_gpt2(None, "nf4", "cpu", SMALL, 0)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({"width": 30, "attention_heads": 4}, "multiple of its attention"),
        ({"patch": 7}, "encoder.patch"),
        ({"stem_channels": (8, 8)}, "2 convolutions, which make patches of 4, and encoder.patch is 8"),
    ],
)
def test_sizes_that_do_not_fit_are_told(encoder: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ViTGPT2Settings.model_validate({"encoder": encoder})


def result_of(model: ViTGPT2, folder: Path) -> Path:
    facts = json.loads(json.dumps(export_settings(model, GREEDY)))
    folder.mkdir()
    name = facts.pop("file")
    (folder / f"{name}.json").write_text(json.dumps(facts))
    save_file(
        {n: t.detach().clone() for n, t in model.shared_tensors().items()}, folder / f"{name}.safetensors"
    )
    return folder


STEM = SMALL.model_copy(
    update={"encoder": SMALL.encoder.model_copy(update={"patch": 4, "stem_channels": (8, 12)})}
)


@pytest.fixture
def stem_folder(folder: Path, tmp_path: Path) -> Path:
    """encoder/: a ViT with a convolutional stem; decoder/ as that of `folder`."""
    path = tmp_path / "stem"
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    vit = ViTConfig(hidden_size=32, image_size=48, patch_size=8, stem_channels=[8, 8, 8], **sizes)
    new_vit(vit).save_pretrained(path / "encoder")
    (path / "decoder").symlink_to(folder / "decoder")
    return path


def test_a_folder_with_a_stem_brings_its_convolutions(stem_folder: Path) -> None:
    model = load_vit_gpt2(stem_folder, "fp32", "cpu", SMALL, 0)
    assert model.settings.encoder.stem_channels == (8, 8, 8)
    kept = load_file(stem_folder / "encoder" / "model.safetensors")
    name = "embeddings.patch_embeddings.projection.convolutions.0.weight"
    assert torch.equal(model.shared_tensors()[f"encoder.{name}"], kept[name])
    reports = model.report_loss(images(2, 48), *written(model))
    changed = model.report_loss(1 - images(2, 48), *written(model))
    assert reports.item() != changed.item()


def test_a_model_without_a_stem_has_the_fingerprint_it_had_before_there_were_any() -> None:
    found = load_vit_gpt2(None, "fp32", "cpu", SMALL, 0).fingerprint
    assert found.startswith("5f20ef4506955d38")
    assert load_vit_gpt2(None, "fp32", "cpu", STEM, 0).fingerprint != found


@pytest.mark.parametrize("begin", ["new", "folder", "new, stem", "folder, stem"])
def test_a_result_reopens_as_it_was(begin: str, folder: Path, stem_folder: Path, tmp_path: Path) -> None:
    begun = {"folder": folder, "folder, stem": stem_folder}.get(begin)
    model = load_vit_gpt2(begun, "fp32", "cpu", STEM if begin == "new, stem" else SMALL, 0).eval()
    with torch.no_grad():
        for tensor in model.shared_tensors().values():
            tensor.add_(0.01 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    again, decoding = load_generator(result_of(model, tmp_path / "adapter"), backbone=begun, precision="fp32")
    pixels = images(2, model.settings.encoder.image_size)
    assert decoding == GREEDY
    assert again.settings == model.settings
    assert torch.equal(again.report_loss(pixels, *written(model)), model.report_loss(pixels, *written(model)))
    assert again.generate(pixels, decoding)[0] == model.generate(pixels, decoding)[0]


def test_a_result_of_other_weights_or_without_a_tensor_is_refused(
    model: ViTGPT2, folder: Path, tmp_path: Path
) -> None:
    result = result_of(model, tmp_path / "adapter")
    with pytest.raises(ConfigError, match="was trained from 'medflare-new-vit-gpt2'"):
        load_generator(result, backbone=folder)
    with pytest.raises(ConfigError, match="the same at every site"):
        load_generator(result, personalised=tmp_path)
    tensors = load_file(result / "vit_gpt2.safetensors")
    del tensors[next(name for name in sorted(tensors) if name.startswith("encoder"))]
    save_file(tensors, result / "vit_gpt2.safetensors")
    with pytest.raises(DataError, match="lacks the tensor 'encoder"):
        load_generator(result)


@pytest.mark.parametrize(
    ("part", "size", "found"),
    [
        ("decoder", {"n_layer": 10**9}, "1,000,000,000 layers"),
        ("encoder", {"num_hidden_layers": 10**9}, "1,000,000,000 layers"),
        ("decoder", {"vocab_size": 10**10}, "weights, and vit_gpt2.safetensors"),
        ("encoder", {"hidden_size": 10**6}, "weights, and vit_gpt2.safetensors"),
        ("encoder", {"num_hidden_layers": -1}, "weights, and vit_gpt2.safetensors"),
        ("encoder", {"num_hidden_layers": "many"}, "'network' is no configuration of a ViT and a GPT-2"),
        ("encoder", {"patch_size": 0}, "'network' is no configuration of a ViT and a GPT-2"),
        ("encoder", {"stem_channels": "ab"}, "'network' is no configuration of a ViT and a GPT-2"),
        ("decoder", {"n_embd": 0}, "'network' is no configuration of a ViT and a GPT-2"),
        ("decoder", {"model_type": "none"}, "'network' is no configuration of a ViT and a GPT-2"),
    ],
    ids=str,
)
def test_a_result_asks_for_no_other_network_than_its_weights_are_of(
    model: ViTGPT2, tmp_path: Path, part: str, size: dict[str, object], found: str
) -> None:
    file = result_of(model, tmp_path / "adapter") / "vit_gpt2.json"
    facts = json.loads(file.read_text())
    facts["network"][part] |= size
    file.write_text(json.dumps(facts))
    with pytest.raises(DataError, match=found):
        load_generator(file.parent)
