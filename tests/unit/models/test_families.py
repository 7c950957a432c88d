# SPDX-License-Identifier: Apache-2.0
"""Any causal language model of transformers from a local folder: same logits as its own forward pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from medflare.models.adapters.base import GENERIC
from medflare.models.adapters.lora import LoraSettings
from medflare.models.backbone import load_backbone
from medflare.models.embedded import decoder_folder
from medflare.models.encoders import EncoderSettings
from medflare.models.report_generator import DecodingSettings, ModelSettings, ReportGenerator

TINY: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": TINY,
    "qwen2": TINY,
    "mistral": TINY,
    "granite": TINY | {"logits_scaling": 8.0},
    "gemma2": TINY | {"head_dim": 16, "final_logit_softcapping": 5.0},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2},
}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_decode_equals_the_familys_own_forward_pass(family: str, tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(decoder_folder())
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=len(tokenizer), **FAMILIES[family])
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    targets = ("c_attn",) if family == "gpt2" else ("q_proj", "v_proj")
    settings = ModelSettings(
        encoder=EncoderSettings(weights="none", image_size=32), lora=LoraSettings(rank=2, targets=targets)
    )
    model = ReportGenerator(load_backbone(tmp_path, "fp32"), settings, (GENERIC,), seed=0).eval()
    codes = torch.zeros(2, 14, dtype=torch.long)
    prefix = model.prefix(model.encode_images(torch.rand(2, 1, 32, 32)), codes)
    reports = torch.randint(5, 60, (2, 6))
    table = model.backbone.model.get_input_embeddings()
    teacher_forced = model.backbone.model(inputs_embeds=torch.cat([prefix, table(reports)], 1)).logits
    logits = model.decode(prefix, reports).logits
    expected = teacher_forced[:, prefix.shape[1] - 1 : -1].flatten(0, 1)
    assert torch.allclose(logits, expected, atol=1e-4)
    texts, _ = model.generate(torch.rand(2, 1, 32, 32), DecodingSettings(max_new_tokens=3, min_new_tokens=0))
    assert len(texts) == 2
