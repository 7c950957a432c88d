# SPDX-License-Identifier: Apache-2.0
"""Which precision `auto` is on a machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from medflare.models import backbone
from medflare.models.backbone import resolve_precision


@pytest.mark.parametrize(
    ("tiles", "instructions", "maker", "expected"),
    [
        (True, True, "GenuineIntel", "bf16"),
        (False, True, "GenuineIntel", "fp32"),
        (False, True, "AuthenticAMD", "bf16"),
        (False, False, "AuthenticAMD", "fp32"),
    ],
)
def test_auto_is_bf16_where_the_processor_multiplies_faster_in_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    tiles: bool,
    instructions: bool,
    maker: str,
    expected: str,
) -> None:
    """Intel's avx512_bf16 without AMX took twice as long for a product as fp32 did."""
    processors = tmp_path / "cpuinfo"
    processors.write_text(f"processor\t: 0\nvendor_id\t: {maker}\n\nprocessor\t: 1\n", encoding="utf-8")
    monkeypatch.setattr(backbone, "PROCESSORS", processors)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: tiles)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions)
    assert resolve_precision("auto", "cpu") == expected
    assert resolve_precision("bf16", "cpu") == "bf16"


def test_auto_is_fp32_where_torch_does_not_say_what_the_processor_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"):
        monkeypatch.delattr(torch.cpu, name)
    assert resolve_precision("auto", "cpu") == "fp32"


@pytest.mark.parametrize(("major", "expected"), [(7, "fp32"), (8, "bf16"), (9, "bf16")])
def test_auto_is_fp32_on_a_gpu_that_only_emulates_bf16(
    monkeypatch: pytest.MonkeyPatch, major: int, expected: str
) -> None:
    """A T4 or a V100, as hospitals have them: torch says that bf16 is supported, and computes it in fp32."""
    properties = SimpleNamespace(major=major)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert resolve_precision("auto", "cuda") == expected
    assert resolve_precision("bf16", "cuda") == "bf16"
