# SPDX-License-Identifier: Apache-2.0
"""The 13 abnormal conditions as things with a place and a size, and how each changes the picture.

A `ChestFinding` is what the picture shows and what the report says; nothing else connects the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medflare.synthetic.anatomy import EDGE, SIGN, Anatomy, Chest, Fracture, Plane, blob, dome, ramp

SUBTLE, MILD, MODERATE = 0.18, 0.45, 0.75  # extents at which words change
SEVERITIES = ("mild", "moderate", "severe")
DEVICES = ("endotracheal tube", "central venous catheter", "pacemaker", "nasogastric tube")
ZONES = {"upper": 0.30, "mid": 0.56, "lower": 0.84}  # fraction of the way from apex to diaphragm


@dataclass(frozen=True, slots=True, kw_only=True)
class ChestFinding:
    """One abnormality of one study.

    Attributes:
        condition: one of CONDITIONS except "no finding".
        extent: size or strength, 0..1; below SUBTLE a reader would only call it possible.
        side: "right", "left", "bilateral" or "" where it has none; zone: "upper", "mid", "lower" or "".
        kind: which device, for support devices; else "".
        spot: place inside the zone, two numbers in [-1, 1], stable over the patient's visits.
        change: "", "new", "increased", "decreased", "unchanged" or "resolved" against the previous visit.
    """

    condition: str
    extent: float
    side: str = ""
    zone: str = ""
    kind: str = ""
    spot: tuple[float, float] = (0.0, 0.0)
    change: str = ""

    @property
    def uncertain(self) -> bool:
        return self.extent < SUBTLE and self.condition != "support devices"

    @property
    def severity(self) -> str:
        return SEVERITIES[(self.extent >= MILD) + (self.extent >= MODERATE)]

    @property
    def sides(self) -> tuple[str, ...]:
        """The sides it lies on: both for bilateral and for findings without a side."""
        return (self.side,) if self.side in SIGN else ("right", "left")


def deform(anatomy: Anatomy, findings: Sequence[ChestFinding]) -> Anatomy:
    """Apply the findings that change the shape of the chest, before it is composed."""
    for f in findings:
        if f.condition == "cardiomegaly":
            anatomy = replace(anatomy, heart=0.505 + 0.19 * f.extent)
        elif f.condition == "enlarged cardiomediastinum":
            anatomy = replace(anatomy, mediastinum=anatomy.mediastinum + 0.035 + 0.14 * f.extent)
        elif f.condition == "atelectasis":
            lift = 0.03 + 0.17 * f.extent
            right, left = anatomy.base
            raised = (right - lift * ("right" in f.sides), left - lift * ("left" in f.sides))
            anatomy = replace(anatomy, base=raised)
        elif f.condition == "edema":
            anatomy = replace(anatomy, hilum=anatomy.hilum * (1.15 + 0.5 * f.extent))
        elif f.condition == "fracture":
            x, y = fracture_place(anatomy, f)
            ribs = 1 + (f.extent >= MILD) + (f.extent >= MODERATE)
            step = 0.20 + 0.40 * f.extent
            below = 0.9 * anatomy.rib_spacing
            broken = [Fracture(x=x * (1 + 0.05 * k), y=y + k * below, step=step) for k in range(ribs)]
            anatomy = replace(anatomy, fractures=(*anatomy.fractures, *broken))
    return anatomy


def fracture_place(a: Anatomy, f: ChestFinding) -> tuple[float, float]:
    """Return the centre of the first fracture, lateral on a rib's arc; worse ones break ribs below too."""
    y = {"upper": -0.38, "mid": -0.08, "lower": 0.22}[f.zone or "mid"] + 0.05 * f.spot[1]
    return SIGN[f.sides[0]] * a.width * (0.72 + 0.05 * f.spot[0]), y


def place(a: Anatomy, f: ChestFinding, side: str) -> tuple[float, float]:
    """Return centre (x, y) of a lung finding on one side, in image units."""
    base = a.base[0 if side == "right" else 1]
    y = a.apex + (base - a.apex) * ZONES[f.zone or "mid"] + 0.06 * f.spot[1]
    middle = 0.42 if f.zone == "upper" else 0.44 if side == "right" else 0.50
    return SIGN[side] * (a.width / 0.74) * (middle + 0.07 * f.spot[0]), y


def draw(chest: Chest, findings: Sequence[ChestFinding]) -> None:
    """Draw every finding into the chest's layers (in place)."""
    for f in findings:
        painter = _PAINTERS.get(f.condition)
        if painter is not None:
            painter(chest, f)


def _add(chest: Chest, side: str, amount: NDArray[Any]) -> None:
    chest.extra += amount * chest.lung[side]


def _opacity(chest: Chest, f: ChestFinding) -> None:
    """Ill-defined ground-glass haze: large, faint, vessels still visible."""
    for side in f.sides:
        x, y = place(chest.anatomy, f, side)
        haze = blob(chest.x, chest.y, x, y, 0.13 + 0.07 * f.extent, 0.14 + 0.06 * f.extent)
        _add(chest, side, haze * (0.16 + 0.46 * f.extent) * (1 + np.float32(0.15) * chest.texture))


def _consolidation(chest: Chest, f: ChestFinding) -> None:
    """Dense, well-bounded patch that hides the vessels and shows dark air bronchograms."""
    for side in f.sides:
        x, y = place(chest.anatomy, f, side)
        r = 0.11 + 0.13 * f.extent
        wobble = chest.texture * np.float32(0.12)
        distance = np.hypot(chest.x - np.float32(x), (chest.y - np.float32(y)) * np.float32(1.15))
        patch = ramp(np.float32(r) * (1 + wobble) - distance, 0.045)
        stripe = np.sin((chest.x * SIGN[side] + chest.y * np.float32(0.6)) * np.float32(52))
        bronchi = ramp(stripe - np.float32(0.86), 0.1) * ramp(np.float32(0.7 * r) - distance, 0.03)
        chest.vessels *= 1 - patch
        _add(chest, side, patch * (0.36 + 0.58 * f.extent) * (1 - np.float32(0.40) * bronchi))


def _pneumonia(chest: Chest, f: ChestFinding) -> None:
    """Several small fluffy patches of different size in one zone."""
    rng = np.random.Generator(np.random.PCG64(abs(hash_spot(f.spot))))
    for side in f.sides:
        x, y = place(chest.anatomy, f, side)
        patches = np.zeros_like(chest.extra)
        for _ in range(9):
            dx, dy = rng.uniform(-1, 1, 2) * (0.12 + 0.08 * f.extent)
            r = rng.uniform(0.024, 0.046) * (0.8 + 0.6 * f.extent)
            patches += blob(chest.x, chest.y, x + dx, y + dy, r, r)
        fluffy = np.clip(patches, 0, 1.3) * (1 + np.float32(0.25) * chest.texture)
        _add(chest, side, fluffy * (0.30 + 0.60 * f.extent))


def _lesion(chest: Chest, f: ChestFinding) -> None:
    """Solitary round nodule to mass with a sharp border."""
    for side in f.sides[:1]:
        x, y = place(chest.anatomy, f, side)
        r = 0.045 + 0.100 * f.extent
        ball = dome(chest.x, chest.y, x, y, r, r)
        chest.extra += np.sqrt(ball) * (0.50 + 0.50 * f.extent)


def _edema(chest: Chest, f: ChestFinding) -> None:
    """Bilateral perihilar haze (bat wing), blurred fluffy texture, septal lines when severe."""
    for side in ("right", "left"):
        sign = SIGN[side]
        wing = blob(chest.x, chest.y, sign * 0.27, 0.04, 0.15 + 0.06 * f.extent, 0.22 + 0.12 * f.extent)
        grain = 1 + np.float32(0.35) * chest.texture
        _add(chest, side, wing * grain * (0.16 + 0.58 * f.extent))
        if f.extent > MILD:
            lines = ramp(np.cos(chest.y * np.float32(2 * np.pi / 0.075)) - np.float32(0.7), 0.25)
            rim = ramp(chest.depth - 0.01, 0.01) * ramp(np.float32(0.085) - chest.depth, 0.01)
            _add(chest, side, lines * rim * ramp(chest.y - 0.12, 0.05) * np.float32(0.30 * f.extent))


def _atelectasis(chest: Chest, f: ChestFinding) -> None:
    """Linear bands above a raised diaphragm (the raise itself is in `deform`)."""
    for side in f.sides:
        sign = SIGN[side]
        lift = np.float32(0.55 if f.zone == "mid" else 0.10)
        for k, strength in enumerate((1.0, 0.8)):
            tilt = (0.22 - 0.5 * k * 0.4) * sign
            line = chest.floor[side] * np.float32(0.25) + np.float32(
                0.75 * chest.anatomy.base[side == "left"]
            )
            line = (
                line - lift - np.float32(0.085 * k) - np.float32(tilt) * (chest.x - np.float32(sign * 0.42))
            )
            band = ramp(np.float32(0.014 + 0.024 * f.extent) - np.abs(chest.y - line), 0.014)
            span = ramp(np.float32(0.17 + 0.08 * f.extent) - np.abs(np.abs(chest.x) - 0.44), 0.03)
            _add(chest, side, band * span * np.float32(strength * (0.30 + 0.40 * f.extent)))
        if f.zone != "mid":
            crowd = ramp(chest.y - (chest.floor[side] - np.float32(0.05 + 0.09 * f.extent)), 0.05)
            _add(chest, side, crowd * np.float32(0.10 + 0.28 * f.extent))


def _pneumothorax(chest: Chest, f: ChestFinding) -> None:
    """Lucent rim without vessels, widest at the apex, inside a thin visceral pleural line."""
    a = chest.anatomy
    for side in f.sides[:1]:
        down = np.clip((chest.y - np.float32(a.apex)) * np.float32(1 / 1.3), 0, 1)
        thick = np.float32(0.035 + 0.20 * f.extent) * (1 - np.float32(0.75) * down)
        rim = ramp(thick - chest.depth, 0.010) * chest.lung[side]
        line = ramp(np.float32(0.011) - np.abs(chest.depth - thick), 0.009) * chest.lung[side]
        collapsed = ramp(chest.depth - thick, 0.02) * chest.lung[side]
        chest.vessels *= 1 - rim
        chest.extra += np.float32(0.34) * line - np.float32(0.30) * rim
        chest.extra += collapsed * np.float32(0.04 + 0.16 * f.extent)


def _effusion(chest: Chest, f: ChestFinding) -> None:
    """Fluid from the costophrenic angle up, with a concave meniscus rising along the chest wall."""
    a = chest.anatomy
    for side in f.sides:
        base = a.base[0 if side == "right" else 1]
        level = np.float32(base + 0.15 - 0.62 * f.extent)
        outward = np.clip((np.abs(chest.x) - np.float32(0.36)) * np.float32(1 / (a.width - 0.36)), -0.5, 1)
        surface = level - np.float32(0.10 + 0.13 * f.extent) * outward * np.abs(outward)
        fluid = ramp(chest.y - surface, 0.022) * chest.lung[side] * ramp(np.abs(chest.x) - 0.13, 0.09)
        chest.vessels *= 1 - fluid
        chest.extra += fluid * np.float32(0.92) * (1 - np.float32(0.75) * np.clip(chest.heart, 0, 1))


def _pleural_other(chest: Chest, f: ChestFinding) -> None:
    """Pleural thickening: a dense irregular rind along the apex or the lower lateral wall."""
    for side in f.sides[:1]:
        thick = np.float32(0.022 + 0.060 * f.extent) * (1 + np.float32(0.18) * chest.texture)
        rind = ramp(thick - chest.depth, 0.008) * chest.lung[side]
        where = ramp(np.float32(-0.42) - chest.y, 0.06) if f.zone == "upper" else ramp(chest.y + 0.10, 0.10)
        where = where * ramp(np.abs(chest.x) - 0.17, 0.05)
        chest.extra += rind * where * np.float32(0.62 + 0.40 * f.extent)


def _device(chest: Chest, f: ChestFinding) -> None:
    """Tubes, lines and pacemakers: nearly opaque metal or plastic."""
    x, y = chest.x, chest.y
    if f.kind == "endotracheal tube":
        wall = ramp(np.float32(0.030) - np.abs(x + 0.012), 0.008)
        lumen = ramp(np.float32(0.010) - np.abs(x + 0.012), 0.008)
        chest.metal += np.float32(0.95) * (wall - lumen) * ramp(-0.30 - y, 0.01)
    elif f.kind == "nasogastric tube":
        centre = np.float32(0.03) + np.float32(0.30) * np.clip(y - 0.35, 0, None) ** 2 * 4
        line = ramp(np.float32(0.018) - np.abs(x - centre), 0.010) * ramp(0.74 - y, 0.02)
        chest.metal += np.float32(0.80) * line
    elif f.kind == "central venous catheter":
        path = [(-0.30, -0.98), (-0.24, -0.72), (-0.15, -0.55), (-0.11, -0.30), (-0.11, 0.02)]
        chest.metal += np.float32(0.82) * _polyline(chest, path, 0.017)
    else:
        box = dome(x, y, 0.53, -0.50, 0.12, 0.095)
        chest.metal += np.float32(0.96) * np.clip(box * 4, 0, 1)
        path = [(0.50, -0.56), (0.30, -0.62), (0.05, -0.50), (-0.09, -0.22), (-0.06, 0.12), (0.20, 0.36)]
        chest.metal += np.float32(0.90) * _polyline(chest, path, 0.015)


def _polyline(chest: Chest, points: Sequence[tuple[float, float]], width: float) -> Plane:
    """Return a soft line through `points`, (size, size) in 0..1."""
    nearest = np.full_like(chest.extra, 9.0)
    for (x0, y0), (x1, y1) in pairwise(points):
        dx, dy = x1 - x0, y1 - y0
        t = np.clip(((chest.x - x0) * dx + (chest.y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
        nearest = np.minimum(nearest, (chest.x - x0 - t * dx) ** 2 + (chest.y - y0 - t * dy) ** 2)
    return ramp(np.float32(width) - np.sqrt(nearest), 0.6 * EDGE)


def hash_spot(spot: tuple[float, float]) -> int:
    """Return a stable integer from a finding's place, to seed its texture."""
    return int((spot[0] + 1) * 50_000) * 100_003 + int((spot[1] + 1) * 50_000)


_PAINTERS: dict[str, Callable[[Chest, ChestFinding], None]] = {
    "lung opacity": _opacity,
    "lung lesion": _lesion,
    "edema": _edema,
    "consolidation": _consolidation,
    "pneumonia": _pneumonia,
    "atelectasis": _atelectasis,
    "pneumothorax": _pneumothorax,
    "pleural effusion": _effusion,
    "pleural other": _pleural_other,
    "support devices": _device,
}
