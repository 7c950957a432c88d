# SPDX-License-Identifier: Apache-2.0
"""Weights of the image encoder: shipped, random, or a file that the site names and no job can."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from medflare.cohort.settings import load_site_file
from medflare.errors import DataError
from medflare.models.encoders import EncoderSettings, SmallResNet, VisualEncoder

SITE = EncoderSettings(name="small", weights="site", image_size=32)


def test_a_job_cannot_name_a_file_at_a_hospital() -> None:
    with pytest.raises(ValidationError, match="embedded"):
        EncoderSettings(weights="/etc/hostname")  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_sites_own_file_is_read(tmp_path: Path, suffix: str) -> None:
    wanted, file = SmallResNet().state_dict(), tmp_path / f"encoder{suffix}"
    save_file(wanted, file) if suffix == ".safetensors" else torch.save(wanted, file)
    found = VisualEncoder(SITE, file).trunk.state_dict()
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


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
