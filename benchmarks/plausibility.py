# SPDX-License-Identifier: Apache-2.0
"""Which images are warned of, and which are refused, when reports are drafted by a model of other images.

Cohorts are split by patient, several times: 70 % give mean and covariance of the embedded encoder's features,
the others the limits, as `medflare run` makes them at a site. Then images that are none of the cohort are
compared: radiographs of other hospitals, of other views and upside down, noise, drawn heads, photographs.

    python benchmarks/plausibility.py --radiographs shared/data/cxr_multisite/records.jsonl --splits 5

`--radiographs` is a file of JSON lines with `image` (path from the file's folder), `site`, `patient` and
`view`; without it only synthetic hospitals are cohorts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor

from medflare.data.images import fit_square, read_image
from medflare.data.records import RecordError
from medflare.models.encoders import EncoderSettings, VisualEncoder
from medflare.models.plausibility import Plausibility, fit_plausibility, probe_image, quarter_features
from medflare.synthetic.hospitals import generate
from medflare.synthetic.profiles import DEMO_HOSPITALS, UNSEEN_HOSPITAL

SIZE, TRAINED = 96, 0.7
FRONTAL, LATERAL = frozenset({"PA", "AP", "AP Supine"}), frozenset({"L"})
OF_EACH = 20
"""Pictures of each kind that is drawn."""


@dataclass(frozen=True)
class Pictures:
    """Images (B, 1, s, s) of one kind, and the patient of each."""

    images: Tensor
    patients: Sequence[str]

    def joined(self, *others: Pictures) -> Pictures:
        """Return these and others as one."""
        parts = (self, *others)
        return Pictures(
            torch.cat([part.images for part in parts]), [name for part in parts for name in part.patients]
        )


class Features:
    """Features of images by the embedded encoder, each image's once."""

    def __init__(self) -> None:
        self.encoder = VisualEncoder(EncoderSettings()).eval()

    @torch.no_grad()
    def of(self, images: Tensor) -> Tensor:
        """Return the features (B, D) of images (B, 1, s, s)."""
        return torch.cat([quarter_features(self.encoder(part)[0]) for part in images.split(32)])


# ---- pictures ----------------------------------------------------------------------------------------------


def synthetic(count: int) -> tuple[Pictures, Pictures]:
    """Return radiographs of the demo's three hospitals, and of one that took no part."""
    profiles = [*DEMO_HOSPITALS, UNSEEN_HOSPITAL]
    drawn = [list(generate(profile, count, size=SIZE)) for profile in profiles]
    each = [
        Pictures(
            torch.stack([torch.from_numpy(np.asarray(study.image)) for study in studies])[:, None],
            [f"{profile.name}/{study.patient_id}" for study in studies],
        )
        for profile, studies in zip(profiles, drawn, strict=True)
    ]
    return each[0].joined(*each[1:-1]), each[-1]


def radiographs(file: Path) -> dict[str, Pictures]:
    """Return real radiographs by site and view: "radiopaedia, frontal"."""
    kinds: dict[str, list[tuple[Tensor, str]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        view = "frontal" if row["view"] in FRONTAL else "lateral" if row["view"] in LATERAL else ""
        if not view:
            continue
        try:
            image = fit_square(read_image(file.parent / row["image"]), SIZE)
        except RecordError:
            continue
        kinds.setdefault(f"{row['site']}, {view}", []).append((image.reshape(1, SIZE, SIZE), row["patient"]))
    return {
        kind: Pictures(torch.stack([image for image, _ in rows]), [patient for _, patient in rows])
        for kind, rows in kinds.items()
    }


def uniform_noise(rng: np.random.Generator) -> np.ndarray:
    """Return grey values that are all equally likely."""
    return rng.random((SIZE, SIZE))


def pink_noise(rng: np.random.Generator) -> np.ndarray:
    """Return noise whose amplitude falls as 1/f, as that of natural pictures does."""
    frequency = np.hypot(*np.meshgrid(np.fft.fftfreq(SIZE), np.fft.fftfreq(SIZE)))
    frequency[0, 0] = 1 / SIZE
    values = np.fft.ifft2(np.fft.fft2(rng.standard_normal((SIZE, SIZE))) / frequency).real
    return (values - values.min()) / np.ptp(values)


def head(rng: np.random.Generator) -> np.ndarray:
    """Return an axial CT of a head as it is drawn with ellipses (Shepp and Logan 1974), bent a little."""
    y, x = np.mgrid[-1 : 1 : SIZE * 1j, -1 : 1 : SIZE * 1j]
    picture = np.zeros((SIZE, SIZE))
    wide, high, turn = rng.uniform(0.6, 0.75), rng.uniform(0.8, 0.95), rng.uniform(-0.2, 0.2)
    x, y = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)

    def ellipse(cx: float, cy: float, rx: float, ry: float, value: float) -> None:
        picture[((x - cx) / rx) ** 2 + ((y - cy) / ry) ** 2 < 1] = value

    ellipse(0, 0, wide, high, 1.0)
    ellipse(0, 0, wide * 0.92, high * 0.93, 0.35)
    for side in (-1, 1):
        ellipse(side * wide * 0.25, 0, wide * rng.uniform(0.1, 0.2), high * rng.uniform(0.2, 0.35), 0.15)
    for _ in range(3):
        (cx, cy), (rx, ry) = rng.uniform(-0.4, 0.4, 2), rng.uniform(0.04, 0.1, 2)
        ellipse(cx, cy, rx, ry, rng.uniform(0.4, 0.6))
    return np.clip(picture + rng.normal(0, 0.02, picture.shape), 0, 1)


def photograph(rng: np.random.Generator) -> np.ndarray:
    """Return a part of one of scikit-learn's two photographs in grey."""
    whole = load_sample_images().images[int(rng.integers(2))].mean(2) / 255
    side = int(rng.integers(150, min(whole.shape)))
    top, left = (int(rng.integers(0, length - side + 1)) for length in whole.shape)
    part = torch.from_numpy(whole[top : top + side, left : left + side]).float()[None, None]
    scaled = torch.nn.functional.interpolate(part, (SIZE, SIZE), mode="area")
    return scaled[0, 0].numpy()


def drawn(kind: Callable[[np.random.Generator], np.ndarray], seed: int) -> Pictures:
    """Return pictures of a kind, each a patient of its own."""
    rng = np.random.default_rng(seed)
    images = torch.stack([torch.from_numpy(kind(rng)).float()[None] for _ in range(OF_EACH)])
    return Pictures(images, [str(number) for number in range(OF_EACH)])


# ---- measurement -------------------------------------------------------------------------------------------


def fitted(
    features: Tensor, patients: Sequence[str], probe: Tensor, rng: np.random.Generator
) -> Plausibility:
    """Return the reference of a cohort, of whose patients 70 % trained."""
    names = sorted(set(patients))
    trained = set(rng.permutation(names)[: int(len(names) * TRAINED)])
    chosen = torch.tensor([patient in trained for patient in patients])
    reference = fit_plausibility(features[chosen], features[~chosen], probe, "cohort")
    assert reference is not None
    return reference


def share(reference: Plausibility, features: Tensor) -> tuple[float, float]:
    """Return the percentages that are warned of (or refused), and that are refused."""
    verdicts = [reference.verdict(float(one)) for one in reference.distance(features)]
    return (
        100 * fmean(verdict != "like" for verdict in verdicts),
        100 * fmean(verdict == "implausible" for verdict in verdicts),
    )


def shown(values: Sequence[float]) -> str:
    """Return the mean over splits and its range."""
    low, high = min(values), max(values)
    return f"{fmean(values):.0f} ({low:.0f} to {high:.0f})" if round(low) != round(high) else f"{low:.0f}"


def main() -> None:
    """Print a table: kinds of images by cohorts, percentages warned of and refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--radiographs", type=Path)
    parser.add_argument("--synthetic", type=int, default=150, help="patients of each synthetic hospital")
    parser.add_argument("--splits", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    encode = Features()
    trained, unseen = synthetic(given.synthetic)
    real = radiographs(given.radiographs) if given.radiographs else {}
    cohorts = {"synthetic": trained}
    if real:
        cohorts["radiopaedia"] = real["radiopaedia, frontal"]
        cohorts["three sites"] = real["radiopaedia, frontal"].joined(
            real["eurorad, frontal"], real["journals, frontal"]
        )
    groups = {"synthetic, took no part": unseen} | real
    if real:
        frontal = real["radiopaedia, frontal"]
        groups["radiopaedia, upside down"] = Pictures(frontal.images.flip(2), frontal.patients)
    groups |= {
        "uniform noise": drawn(uniform_noise, 1),
        "1/f noise": drawn(pink_noise, 2),
        "drawn CT of a head": drawn(head, 3),
        "photographs": drawn(photograph, 4),
    }
    features = {name: encode.of(pictures.images) for name, pictures in groups.items()}
    probe = encode.of(probe_image(SIZE))[0]
    columns: dict[str, list[Plausibility]] = {}
    for name, pictures in cohorts.items():
        own = encode.of(pictures.images)
        columns[name] = [
            fitted(own, pictures.patients, probe, np.random.default_rng(split))
            for split in range(given.splits)
        ]
    print(f"| images | n | {' | '.join(f'{name}, {len(cohorts[name].patients)}' for name in columns)} |")
    print("|---|---:|" + "---:|" * len(columns))
    held = [shown([len(reference.held_out) for reference in each]) for each in columns.values()]
    print(f"| held out | | {' | '.join(held)} |")
    for name, values in features.items():
        cells = []
        for references in columns.values():
            warned, refused = zip(*(share(reference, values) for reference in references), strict=True)
            cells.append(f"{shown(warned)}; {shown(refused)}")
        print(f"| {name} | {len(values)} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
