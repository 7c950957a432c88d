# SPDX-License-Identifier: Apache-2.0
"""The classical report generators: published parameter counts, R2Gen's memory, vocabulary, result folders."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from medflare.core.errors import ConfigError, DataError
from medflare.learners.dcl.settings import METHOD as DCL_METHOD
from medflare.learners.transformer.learner import PAPER
from medflare.learners.transformer.settings import R2GEN, TRANSFORMER
from medflare.learners.wcl.settings import METHOD as WCL
from medflare.models.encoders import VisualEncoder
from medflare.models.generators.dcl import DCL
from medflare.models.generators.folder import export_settings
from medflare.models.generators.relational_memory import ConditionalLayerNorm, RelationalMemory
from medflare.models.generators.settings import TransformerSettings, WordSearchSettings
from medflare.models.generators.transformer import ReportTransformer
from medflare.models.generators.writing import ReportVocabulary, ReportWriter, parameter_counts
from medflare.models.report_result import load_generator

VOCABULARY = 4300
"""Tokens that the published counts stand for: MIMIC-CXR's words that occur ten times or more."""
SMALL = TransformerSettings.model_validate(
    {
        "encoder": {"name": "small", "weights": "none", "image_size": 32},
        **{"width": 16, "layers": 1, "attention_heads": 2, "feed_forward": 32, "memory": "relational"},
    }
)


def counted(shape: TransformerSettings) -> int:
    """Count a model's parameters without values."""
    encoder = shape.encoder.model_copy(update={"weights": "none"})
    with torch.device("meta"):
        image = VisualEncoder(encoder)
        parts: list[nn.Module] = [image, ReportTransformer(shape, image.width, VOCABULARY)]
        if shape.contrast_width is not None:
            parts += [nn.Linear(shape.width, shape.contrast_width) for _ in range(2)]
    return sum(p.numel() for part in parts for p in part.parameters())


def test_the_published_parameter_counts() -> None:
    transformer, r2gen, wcl = (
        method.resolve({"preset": "paper"}).model for method in (TRANSFORMER, R2GEN, WCL)
    )
    bare = transformer.model_copy(update={"memory": "none"})
    counts = [counted(shape) for shape in (bare, transformer, r2gen, wcl)]
    assert [round(count / 1e6, 1) for count in counts] == [60.6, 63.2, 82.1, 82.4]
    assert counts[0] == PAPER["transformer"]["without_memory"]
    assert counts[1:] == [PAPER[name]["total"] for name in ("transformer", "r2gen", "wcl")]


def test_dcl_has_the_published_parameters_beside_its_graph() -> None:
    shape = DCL_METHOD.resolve({"preset": "paper"}).model
    shape = shape.model_copy(update={"encoder": shape.encoder.model_copy(update={"weights": "none"})})
    words = SimpleNamespace(size=VOCABULARY, name="words", digest="")
    with torch.device("meta"):
        counts = parameter_counts(DCL(shape, words, "fp32", 0))  # type: ignore[arg-type]
    assert sum(counts.values()) == PAPER["dcl"]["total"]
    assert sum(counts.values()) - counts["graph"] == PAPER["dcl"]["without_graph"]


def test_a_conditional_norm_begins_as_a_plain_one_and_then_follows_the_memory() -> None:
    norm, x, memory = ConditionalLayerNorm(8, 12), torch.randn(2, 3, 8), torch.randn(2, 3, 12)
    norm.begin_as_plain_norm()
    plain = nn.functional.layer_norm(x, (8,), eps=1e-6)
    assert torch.equal(norm(x, memory), plain)
    nn.init.ones_(norm.shift_change[-1].bias)  # type: ignore[arg-type]
    assert torch.allclose(norm(x, memory), plain + 1)


def test_the_memory_reads_words_in_turn_and_no_word_before_its_time() -> None:
    memory, words = RelationalMemory(8, 3, 2), torch.randn(2, 5, 8)
    states = memory(words)
    assert states.shape == (2, 5, 24)
    changed = words.clone()
    changed[:, 3] = 0
    other = memory(changed)
    assert torch.equal(states[:, :3], other[:, :3])
    assert not torch.allclose(states[:, 3], other[:, 3])
    # equations 4 to 9, written out for the first word
    begin = torch.eye(3, 8).expand(2, -1, -1)
    seen = torch.cat([begin, words[:, :1]], 1)
    candidate = begin + memory.attention(begin, seen, seen)[0]
    candidate = candidate + memory.mlp(candidate)
    taken, kept = (memory.input_gates(words[:, :1]) + memory.memory_gates(begin.tanh())).chunk(2, -1)
    first = taken.sigmoid() * candidate.tanh() + kept.sigmoid() * begin
    assert torch.allclose(states[:, 0], first.flatten(1), atol=1e-6)


@pytest.mark.parametrize("memory", ["none", "relational"])
def test_a_word_is_predicted_from_the_words_before_it_alone(memory: str) -> None:
    model = ReportTransformer(SMALL.model_copy(update={"memory": memory}), 8, 20).eval()
    image, ids = model.encode(torch.randn(1, 4, 8)), torch.tensor([[1, 5, 6, 7]])
    other = ids.clone()
    other[0, 2] = 9
    one, two = model(image, ids), model(image, other)
    assert torch.allclose(one[:, :2], two[:, :2], atol=1e-6)
    assert not torch.allclose(one[:, 2], two[:, 2])


def test_a_folder_without_a_tokenizer_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json.*or leave the folder out for ours"):
        ReportVocabulary(tmp_path)


def test_a_result_folder_drafts_as_the_model_did_and_only_with_its_vocabulary(tmp_path: Path) -> None:
    words, decoding = ReportVocabulary(None), WordSearchSettings(max_new_tokens=5)
    model = ReportWriter(SMALL, words, "fp32", 3).eval()
    images = torch.rand(2, 1, 32, 32)
    save_file(
        {n: t.detach().contiguous() for n, t in model.shared_tensors().items()},
        tmp_path / "r2gen.safetensors",
    )
    facts = export_settings(model, "r2gen", decoding)
    (tmp_path / "r2gen.json").write_text(json.dumps(facts))
    opened, read = load_generator(tmp_path, precision="fp32")
    assert read == decoding
    assert opened.generate(images, read)[0] == model.generate(images, decoding)[0]
    with pytest.raises(ConfigError, match="is the same at every site"):
        load_generator(tmp_path, personalised=tmp_path)
    facts["backbone"]["fingerprint"] = "0" * 64
    (tmp_path / "r2gen.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match="was trained with the vocabulary 'medflare-new-generator'"):
        load_generator(tmp_path, precision="fp32")
    (tmp_path / "r2gen.safetensors").unlink()
    facts["backbone"]["fingerprint"] = model.fingerprint
    (tmp_path / "r2gen.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match=r"r2gen\.safetensors: there is no such file"):
        load_generator(tmp_path, precision="fp32")
