# SPDX-License-Identifier: Apache-2.0
"""Which precision `auto` is on a machine."""

from __future__ import annotations

from pathlib import Path

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
