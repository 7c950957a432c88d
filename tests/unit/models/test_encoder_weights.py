# SPDX-License-Identifier: Apache-2.0
"""Weights of the image encoder: shipped, random, or a file that the site names and no job can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from medflare.core.errors import DataError
from medflare.data.settings.site import load_site_file
from medflare.models import encoders
from medflare.models.encoders import EncoderSettings, SmallResNet, VisualEncoder

SITE = EncoderSettings(name="small", weights="site", image_size=32)


def test_a_job_cannot_name_a_file_at_a_hospital() -> None:
    with pytest.raises(ValidationError, match="embedded"):
        EncoderSettings(weights="/etc/hostname")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_sites_own_file_is_read(tmp_path: Path, suffix: str) -> None:
    wanted, file = SmallResNet().state_dict(), tmp_path / f"encoder{suffix}"
    save_file(wanted, file) if suffix == ".safetensors" else torch.save(wanted, file)
    tensors = VisualEncoder(SITE, file).trunk.state_dict()
    assert all(torch.equal(tensors[name], value) for name, value in wanted.items())


def test_what_is_wrong_with_the_file_is_an_error_of_the_data_whose_text_stays_at_the_site(
    tmp_path: Path,
) -> None:
    save_file({"stem.weight": torch.zeros(1)}, tmp_path / "half.safetensors")
    for file, words in ((None, "encoder_weights"), (tmp_path / "none.pth", "encoder_weights")):
        with pytest.raises(DataError, match=words):
            VisualEncoder(SITE, file)
    with pytest.raises(DataError, match=r"lacks .* tensors of the encoder"):
        VisualEncoder(SITE, tmp_path / "half.safetensors")


def test_site_yaml_names_the_file_from_its_own_folder(tmp_path: Path) -> None:
    text = "cohort: {format: manifest, root: data}\nencoder_weights: weights/resnet.pth\n"
    (tmp_path / "site.yaml").write_text(text)
    assert load_site_file(tmp_path / "site.yaml")[""].encoder_weights == tmp_path / "weights" / "resnet.pth"


# ---- CvT-21 ------------------------------------------------------------------------------------------------

TINY = {"depth": [1, 2, 3], "embed_dim": [8, 16, 24], "num_heads": [1, 2, 3]}


def test_cvt_21_gives_a_grid_of_576_tokens_of_384_numbers() -> None:
    """FedTAR's encoder at 384 pixels; 32 M parameters less the classifier's."""
    encoder = VisualEncoder(EncoderSettings(name="cvt_21", weights="none", image_size=384))
    assert (encoder.tokens, encoder.width) == (576, 384)
    assert sum(p.numel() for p in encoder.parameters()) == pytest.approx(31.2e6, rel=0.01)
    with torch.no_grad():
        tokens, pooled = encoder.eval()(torch.rand(1, 1, 384, 384))
    assert tokens.shape == (1, 576, 384)
    assert torch.allclose(tokens.mean(1), pooled, atol=1e-5)


@pytest.mark.parametrize("whole", [False, True], ids=["encoder", "classifier"])
def test_cvts_folder_at_the_site_is_read_without_its_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    from transformers import CvtConfig, CvtForImageClassification, CvtModel

    monkeypatch.setattr(encoders, "CVT_21", TINY)
    network = (CvtForImageClassification if whole else CvtModel)(CvtConfig(**TINY))
    network.save_pretrained(tmp_path / "cvt")
    settings = EncoderSettings(name="cvt_21", weights="site", image_size=64)
    encoder = VisualEncoder(settings, tmp_path / "cvt")
    image = torch.rand(2, 1, 64, 64)
    inner = network.cvt if whole else network
    with torch.no_grad():
        x = (image.expand(-1, 3, -1, -1) - encoder.mean) / encoder.std
        grid = inner.eval()(x).last_hidden_state
        tokens, _ = encoder.eval()(image)
    assert grid.shape == (2, 24, 4, 4)
    assert torch.equal(tokens, grid.flatten(2).transpose(1, 2))
    assert encoder.tokens == 16
    with pytest.raises(DataError, match="folder that transformers wrote"):
        VisualEncoder(settings, tmp_path)
