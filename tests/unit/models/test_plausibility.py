# SPDX-License-Identifier: Apache-2.0
"""Distance of an image to a site's training images: against scipy's, its limits, its file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.covariance import LedoitWolf

from medflare.core.errors import DataError
from medflare.models.plausibility import (
    FILE,
    LARGEST_BASIS,
    Plausibility,
    fit_plausibility,
    probe_image,
    quarter_features,
    read_plausibility,
)


def features(rows: int, width: int, seed: int) -> torch.Tensor:
    generator = np.random.default_rng(seed)
    mixing = np.random.default_rng(9).normal(size=(width, width))
    return torch.from_numpy(generator.normal(size=(rows, width)) @ mixing + 3)


def fitted(rows: int = 60, width: int = 12, others: int = 80) -> Plausibility:
    probe = torch.ones(width)
    reference = fit_plausibility(features(rows, width, 0), features(others, width, 1), probe, "site-1")
    assert reference is not None
    return reference


@pytest.mark.parametrize("rows", [30, 200], ids=["fewer images than directions", "more"])
def test_the_distance_is_that_of_ledoit_and_wolf(rows: int) -> None:
    width = 100
    assert width < LARGEST_BASIS
    train, new = features(rows, width, 0), features(5, width, 2)
    reference = fitted(rows, width)
    expected = np.sqrt(LedoitWolf().fit(train.numpy()).mahalanobis(new.numpy()) / width)
    assert np.allclose(reference.distance(new).numpy(), expected, rtol=1e-6)


def test_of_the_cohorts_own_images_few_are_unlike_it_and_far_ones_are_implausible() -> None:
    reference = fitted()
    own = [reference.verdict(float(d)) for d in reference.distance(features(400, 12, 3))]
    assert own.count("like") / 400 > 0.85
    assert own.count("implausible") / 400 < 0.06
    assert reference.verdict(float(reference.distance(features(1, 12, 3) + 40)[0])) == "implausible"


def test_few_held_out_images_warn_and_do_not_refuse() -> None:
    reference = fitted(others=20)
    assert reference.verdict(1e9) == "unlike"
    assert fit_plausibility(torch.zeros(19, 3), torch.zeros(50, 3), torch.zeros(3), "s") is None
    assert fit_plausibility(torch.zeros(50, 3), torch.zeros(9, 3), torch.zeros(3), "s") is None


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    reference = fitted()
    reference.write(tmp_path)
    again = read_plausibility(tmp_path / FILE)
    new = features(5, 12, 4)
    assert torch.allclose(again.distance(new), reference.distance(new), rtol=1e-4)
    assert (again.images, again.site) == (60, "site-1")
    (tmp_path / FILE).write_bytes(b"no tensors")
    with pytest.raises(DataError, match="is no reference of training images"):
        read_plausibility(tmp_path / FILE)


def test_the_reference_of_another_encoder_is_refused() -> None:
    reference = fitted()
    reference.check_encoder(torch.ones(12) * 1.01)
    for other in (torch.ones(12) * 2, torch.ones(11)):
        with pytest.raises(DataError, match="another image encoder"):
            reference.check_encoder(other)


def test_quarters_tell_places_apart_and_leave_a_class_token_out() -> None:
    grid = torch.zeros(1, 6, 6, 2)
    grid[0, :3, :3] = 1
    expected = torch.tensor([[1.0, 0, 0, 0, 1, 0, 0, 0]])
    tokens = grid.flatten(1, 2)
    assert torch.equal(quarter_features(tokens), expected)
    assert torch.equal(quarter_features(torch.cat([tokens[:, :1] + 9, tokens], 1)), expected)
    assert probe_image(32).shape == (1, 1, 32, 32)
    assert 0 <= float(probe_image(32).min()) < float(probe_image(32).max()) <= 1
