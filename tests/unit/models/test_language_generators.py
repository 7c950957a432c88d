# SPDX-License-Identifier: Apache-2.0
"""R2GenGPT and PromptMRG: counts at the papers' shapes, and result folders that open again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from medflare.core.conditions import CONDITIONS
from medflare.learners.promptmrg.learner import PAPER as PROMPTMRG_PAPER
from medflare.learners.promptmrg.settings import METHOD as PROMPTMRG
from medflare.learners.r2gengpt.learner import PAPER as R2GENGPT_PAPER
from medflare.learners.r2gengpt.settings import METHOD as R2GENGPT
from medflare.models.adapters.base import GENERIC
from medflare.models.backbone import load_backbone
from medflare.models.encoders import VisualEncoder
from medflare.models.generators.promptmrg import PromptMRG, PromptMRGModelSettings
from medflare.models.generators.r2gengpt import R2GenGPT, R2GenGPTModelSettings
from medflare.models.generators.settings import LanguageModelSearchSettings
from medflare.models.report_generator import ADAPTER_PREFIX, ReportGenerator, export_settings
from medflare.models.report_result import load_generator

HIDDEN, LORA = 4096, 8_388_608
"""Of Llama-2-7B; test_parameter_counts.py counts its LoRA."""
ENCODER = {"name": "small", "weights": "none", "image_size": 32, "token_grid": 2}


def numbers(*parts: nn.Module) -> int:
    return sum(p.numel() for part in parts for p in part.parameters())


def test_the_published_parameter_counts() -> None:
    gpt, prompt = (method.resolve({"preset": "paper"}).model for method in (R2GENGPT, PROMPTMRG))
    with torch.device("meta"):
        encoder = VisualEncoder(gpt.encoder.model_copy(update={"weights": "none"}))
        projection, norm = nn.Linear(encoder.width, HIDDEN), nn.LayerNorm(HIDDEN)
        width = prompt.retrieval_width
        retrieval = nn.MultiheadAttention(width, prompt.retrieval_heads), nn.Linear(encoder.width, width)
        head = nn.Linear(encoder.width + width, 4 * len(CONDITIONS))
    assert gpt.projection_norm
    assert numbers(encoder, projection, norm) == R2GENGPT_PAPER["total"]
    assert round(R2GENGPT_PAPER["total"] / 1e6, 1) == 50.9  # type: ignore[operator]
    total = numbers(encoder, projection, head, *retrieval) + 4 * HIDDEN + LORA
    assert total == PROMPTMRG_PAPER["total"]
    without = total - numbers(*retrieval) - width * 4 * len(CONDITIONS)
    assert round(without / 1e6, 1) == 59.4


@pytest.mark.parametrize("method", ["r2gengpt", "promptmrg"])
def test_a_result_folder_drafts_as_the_model_did(method: str, tiny_backbone: Path, tmp_path: Path) -> None:
    decoding = LanguageModelSearchSettings(beams=2, max_new_tokens=5, min_new_tokens=0)
    base = load_backbone(tiny_backbone, "fp32")
    model: ReportGenerator
    if method == "r2gengpt":
        model = R2GenGPT(base, R2GenGPTModelSettings.model_validate({"encoder": ENCODER}), 3)
    else:
        settings = {"encoder": ENCODER, "retrieval_width": 8, "lora": {"rank": 2}}
        model = PromptMRG(base, PromptMRGModelSettings.model_validate(settings), 3)
        adapter = {n: p + 0.1 for n, p in model.adapters.state(GENERIC).items()}
        model.adapters.load(GENERIC, adapter)
        model.adapters.use((GENERIC,))
        save_file(adapter, tmp_path / "adapter_model.safetensors")
        assert not any(name.startswith(ADAPTER_PREFIX) for name in model.shared_tensors())
    (tmp_path / "adapter_config.json").write_text(json.dumps(model.adapters.config_dict()))
    tensors = {n: t.detach().contiguous() for n, t in model.shared_tensors().items()}
    save_file(tensors, tmp_path / f"{method}.safetensors")
    facts = export_settings(model, decoding) | {"file": method}
    (tmp_path / f"{method}.json").write_text(json.dumps(facts))
    images = torch.rand(2, 1, 32, 32)
    expected = model.eval().generate(images, decoding)
    opened, read = load_generator(tmp_path, backbone=tiny_backbone, precision="fp32")
    texts, codes = opened.generate(images, read)
    assert texts == expected[0]
    assert torch.equal(codes, expected[1])
