# SPDX-License-Identifier: Apache-2.0
"""Facts about the pictures: a finding changes the chest where it should and nowhere else."""

import numpy as np
import pytest

from medflare.synthetic import ChestFinding, Scanner
from medflare.synthetic.anatomy import Anatomy, compose, expose
from medflare.synthetic.findings import DEVICES, deform, draw
from medflare.synthetic.scanner import acquire

SIZE = 96


def film(*findings: ChestFinding) -> np.ndarray:
    anatomy = Anatomy(seed=3)
    chest = compose(deform(anatomy, findings), SIZE)
    draw(chest, findings)
    return expose(chest)


def box(picture: np.ndarray, left: float, top: float, right: float, bottom: float) -> np.ndarray:
    """Pixels of a rectangle given in image units (-1..1)."""
    x0, y0, x1, y1 = (round((v + 1) / 2 * SIZE) for v in (left, top, right, bottom))
    return picture[y0:y1, x0:x1]


# condition, side, zone, rectangle on the patient's right (image left), brighter or darker inside
REGIONS = [
    ("enlarged cardiomediastinum", "", "", (-0.26, -0.55, -0.12, -0.2), "brighter"),
    ("cardiomegaly", "", "", (0.45, 0.15, 0.62, 0.4), "brighter"),
    ("lung opacity", "right", "mid", (-0.6, -0.25, -0.3, 0.1), "brighter"),
    ("lung lesion", "right", "mid", (-0.5, -0.15, -0.38, -0.02), "brighter"),
    ("edema", "", "", (-0.4, -0.15, -0.15, 0.25), "brighter"),
    ("consolidation", "right", "mid", (-0.55, -0.2, -0.35, 0.05), "brighter"),
    ("pneumonia", "right", "mid", (-0.6, -0.25, -0.3, 0.1), "brighter"),
    ("atelectasis", "right", "lower", (-0.6, 0.3, -0.25, 0.45), "brighter"),
    ("pneumothorax", "right", "", (-0.6, -0.6, -0.5, -0.45), "darker"),
    ("pleural effusion", "right", "", (-0.7, 0.35, -0.45, 0.6), "brighter"),
    ("pleural other", "right", "lower", (-0.74, 0.0, -0.68, 0.4), "brighter"),
    ("fracture", "right", "mid", (-0.56, -0.15, -0.44, 0.0), "brighter"),
]


@pytest.mark.parametrize(("condition", "side", "zone", "where", "how"), REGIONS, ids=[r[0] for r in REGIONS])
def test_a_finding_changes_its_region(condition, side, zone, where, how):
    healthy = film()
    sick = film(ChestFinding(condition=condition, extent=0.8, side=side, zone=zone))
    change = float(np.mean(box(sick, *where) - box(healthy, *where)))
    assert change > 0.02 if how == "brighter" else change < -0.02


@pytest.mark.parametrize("row", [r for r in REGIONS if r[1] and r[0] != "atelectasis"], ids=lambda r: r[0])
def test_a_right_sided_finding_leaves_the_left_lung_alone(row):
    sick = film(ChestFinding(condition=row[0], extent=0.8, side="right", zone=row[2]))
    assert np.array_equal(sick[:, SIZE // 2 :], film()[:, SIZE // 2 :])


@pytest.mark.parametrize("kind", DEVICES)
def test_devices_are_bright(kind):
    change = film(ChestFinding(condition="support devices", extent=0.5, kind=kind)) - film()
    assert change.max() > 0.1
    assert change.min() > -0.01


@pytest.mark.parametrize("condition", [r[0] for r in REGIONS])
def test_a_worse_finding_changes_more(condition):
    side, zone = next((r[1], r[2]) for r in REGIONS if r[0] == condition)
    change = [
        np.abs(film(ChestFinding(condition=condition, extent=e, side=side, zone=zone)) - film()).sum()
        for e in (0.1, 0.9)
    ]
    assert change[1] > 1.3 * change[0]


def test_right_diaphragm_is_higher_and_the_heart_lies_to_the_left():
    healthy = film()
    assert box(healthy, 0.25, 0.1, 0.4, 0.35).mean() > box(healthy, -0.4, 0.1, -0.25, 0.35).mean() + 0.1
    assert box(healthy, -0.4, 0.49, -0.3, 0.53).mean() > box(healthy, 0.36, 0.47, 0.46, 0.52).mean()


def test_extent_decides_the_words():
    assert ChestFinding(condition="edema", extent=0.1).uncertain
    severities = [ChestFinding(condition="edema", extent=e).severity for e in (0.3, 0.6, 0.9)]
    assert severities == ["mild", "moderate", "severe"]


@pytest.mark.parametrize("wrong", [{"bits": 12}, {"marker": "X"}])
def test_an_impossible_scanner_is_refused(wrong):
    with pytest.raises(ValueError, match="choose"):
        Scanner(**wrong)


def test_scanner_character_shows():
    exposures = [
        acquire(film(), s, np.random.default_rng(0))
        for s in (
            Scanner(),
            Scanner(blur=1.5),
            Scanner(brightness=0.1),
            Scanner(marker="L"),
            Scanner(collimation=0.05),
        )
    ]
    for other in exposures[1:]:
        assert np.abs(other - exposures[0]).mean() > 0.001
