# SPDX-License-Identifier: Apache-2.0
"""Distance of an image from a site's training images, in the features of the run's image encoder.

The distance is Mahalanobis' with a covariance shrunk as Ledoit and Wolf (2004) do, of patch features averaged
over the four quarters of an image: quarters, because an average over the whole image does not see where
things are. Its limits are the distances of the site's own images that no training saw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from medflare.core.errors import DataError

FILE = "plausibility.safetensors"
FORMAT = "medflare.plausibility.1"
QUARTERS = 2
"""Rows and columns of the grid over which patch features are averaged."""
LEAST_TRAINED, LEAST_HELD_OUT = 20, 10
"""Images from fewer of which no reference is made."""
LARGEST_BASIS = 256
"""Directions of the training features that are kept; the others share one variance."""
WARNED = 0.95
"""An image farther than this share of the held-out ones is called unlike them."""
LEAST_TO_REFUSE = 49
"""Held-out images that a refusal needs: an image of the cohort is refused in at most 1 of 50 cases."""
SAME_ENCODER = 0.1
"""Relative difference of the probe's features up to which two encoders count as one."""
ImageVerdict = Literal["like", "unlike", "implausible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plausibility:
    """Statistics of a site's images in the features of a run's encoder. It stays at the site.

    Attributes:
        mean: (D,) of the training images' features.
        basis: (k, D) directions; variances: (k,) along them; rest: variance along all others.
        held_out: (m,) distances of images that no training saw, ascending.
        probe: (D,) features of `probe_image`, by which another encoder is noticed.
        images: training images.
        site: whose images.
    """

    mean: Tensor
    basis: Tensor
    variances: Tensor
    rest: float
    held_out: Tensor
    probe: Tensor
    images: int
    site: str

    def distance(self, features: Tensor) -> Tensor:
        """Return the distance (B,) of features (B, D): the root of the mean square over the D directions."""
        centred = features.double() - self.mean  # (B, D)
        along = centred @ self.basis.T  # (B, k)
        outside = (centred.square().sum(1) - along.square().sum(1)).clamp(min=0)  # (B,)
        squared = (along.square() / self.variances).sum(1) + outside / self.rest
        return (squared / features.shape[1]).sqrt()

    def limits(self) -> tuple[float, float]:
        """Return the distance from which an image is unlike the site's, and from which it is implausible."""
        warned = float(torch.quantile(self.held_out, WARNED))
        return warned, float(self.held_out[-1]) if len(self.held_out) >= LEAST_TO_REFUSE else math.inf

    def verdict(self, distance: float) -> ImageVerdict:
        """Return what a distance says of an image."""
        warned, refused = self.limits()
        return "implausible" if distance > refused else "unlike" if distance > warned else "like"

    def check_encoder(self, probe: Tensor) -> None:
        """Compare features (D,) of `probe_image` with those of the reference's encoder.

        Raises:
            DataError: they are too far apart, so the reference says nothing about this model.
        """
        known = self.probe.shape == probe.shape
        if not known or float((self.probe - probe).norm() / self.probe.norm()) > SAME_ENCODER:
            raise DataError(
                f"the reference of site '{self.site}' belongs to another image encoder. Name the folder that "
                "the site kept of this very run."
            )

    def write(self, folder: Path) -> None:
        """Write the reference into a folder of the site."""
        tensors = {
            "mean": self.mean,
            "basis": self.basis,
            "variances": self.variances,
            "held_out": self.held_out,
            "probe": self.probe,
        }
        facts = {"format": FORMAT, "rest": repr(self.rest), "images": str(self.images), "site": self.site}
        folder.mkdir(parents=True, exist_ok=True)
        save_file({n: t.float().contiguous() for n, t in tensors.items()}, folder / FILE, facts)


def read_plausibility(file: Path) -> Plausibility:
    """Return the reference in a file.

    Raises:
        DataError: it is none of this version.
    """
    try:
        with safe_open(file, "pt") as opened:
            facts = opened.metadata() or {}
            if facts.get("format") != FORMAT:
                raise ValueError(f"its format is {facts.get('format')!r}, expected {FORMAT!r}")
            names = opened.offset_keys()
            tensors: dict[str, Any] = {name: opened.get_tensor(name).double() for name in names}
        return Plausibility(
            **tensors, rest=float(facts["rest"]), images=int(facts["images"]), site=facts["site"]
        )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise DataError(f"{file}: is no reference of training images: {error}.") from None


def fit_plausibility(train: Tensor, held_out: Tensor, probe: Tensor, site: str) -> Plausibility | None:
    """Return the reference of a site's images; None where it has too few of them.

    Args:
        train: (n, D) features of training images.
        held_out: (m, D) of images that no training saw.
        probe: (D,) of `probe_image`.
    """
    from sklearn.covariance import ledoit_wolf_shrinkage

    if len(train) < LEAST_TRAINED or len(held_out) < LEAST_HELD_OUT:
        return None
    features = train.double()
    centred = features - features.mean(0)
    width = features.shape[1]
    shrinkage = float(ledoit_wolf_shrinkage(centred.numpy(), assume_centered=True))
    _, singular, directions = np.linalg.svd(centred.numpy(), full_matrices=False)
    variances = singular**2 / len(features)  # eigenvalues of the covariance, descending
    kept = int(min(LARGEST_BASIS, (variances > variances[0] * 1e-10).sum()))
    isotropic = shrinkage * variances.sum() / width
    others = variances[kept:].sum() / max(width - kept, 1)
    reference = Plausibility(
        mean=features.mean(0),
        basis=torch.from_numpy(directions[:kept].copy()),
        variances=torch.from_numpy((1 - shrinkage) * variances[:kept] + isotropic),
        rest=float((1 - shrinkage) * others + isotropic),
        held_out=torch.zeros(1, dtype=torch.float64),
        probe=probe.double(),
        images=len(train),
        site=site,
    )
    return replace(reference, held_out=reference.distance(held_out).sort().values)


def quarter_features(tokens: Tensor) -> Tensor:
    """Average patch tokens (B, S, C) over the four quarters of the image: (B, 4 C), fp32.

    Tokens stand row by row; a class token before a square grid is left out.
    """
    side = math.isqrt(tokens.shape[1])
    grid = tokens[:, -side * side :].float().transpose(1, 2).unflatten(2, (side, side))  # (B, C, h, w)
    return F.adaptive_avg_pool2d(grid, min(QUARTERS, side)).flatten(1)


def probe_image(size: int) -> Tensor:
    """Return a fixed picture (1, 1, size, size), a bright ring on a slope, whose features name an encoder."""
    line = torch.linspace(-1, 1, size)
    radius = (line[:, None].square() + line.square()).sqrt()
    return ((line[:, None] + 1) / 4 + torch.exp(-((radius - 0.6) * 8).square()) / 2)[None, None]
