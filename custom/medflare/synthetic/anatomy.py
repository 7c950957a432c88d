# SPDX-License-Identifier: Apache-2.0
"""The body of a synthetic patient: a frontal chest as layers of X-ray attenuation.

Coordinates: x to the right and y downwards, both in [-1, 1] over the square image. The patient's right is on
the image's left (sign -1), as on a PA film. Every layer is a float32 array (size, size) of attenuation in
arbitrary units; `expose` sums them and turns the sum into film density, bright = dense (MONOCHROME2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

Plane = NDArray[np.float32]
SIGN = {"right": -1, "left": 1}
EDGE = 0.016  # half-width of a soft anatomical edge, in image units


@dataclass(frozen=True, slots=True, kw_only=True)
class Fracture:
    """A rib fracture at (x, y): the lateral fragment is displaced by `step` rib spacings."""

    x: float
    y: float
    step: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """Measures of one chest in image units (the image is 2 wide); `seed` grows the vessel tree."""

    width: float = 0.74  # half-width of the inner rib cage
    apex: float = -0.80  # y of the lung apices
    base: tuple[float, float] = (0.48, 0.55)  # y of the diaphragm domes (right, left)
    heart: float = 0.45  # cardiothoracic ratio
    heart_tilt: float = 0.55  # radians below the horizontal of the heart's long axis
    mediastinum: float = 0.115  # half-width of the upper mediastinum
    knob: float = 0.05  # radius of the aortic knob beyond the mediastinum
    rib_spacing: float = 0.165
    rib_phase: float = 0.0
    rib_slope: float = 0.20
    bone: float = 1.0  # mineral density, falls with age
    fat: float = 0.3  # body habitus, 0 thin to 1 obese
    breast: float = 0.0  # 0 none to 1 large
    clavicle: float = -0.56  # y of the medial clavicle ends
    hilum: float = 1.0  # strength of hila and vessels
    fractures: tuple[Fracture, ...] = ()
    seed: int = 0


@dataclass(slots=True, kw_only=True)
class Chest:
    """Layers of one rendered chest, each (size, size) float32; findings draw into them."""

    anatomy: Anatomy
    x: Plane
    y: Plane
    lung: dict[str, Plane]  # soft mask of each lung field, 0..1
    depth: Plane  # 0 at the lung's outer (apical and lateral) border, growing inwards, image units
    floor: dict[str, Plane]  # y of each diaphragm as a function of x
    body: Plane
    air: Plane  # thickness of air in the lungs, subtracted
    heart: Plane
    bone: Plane
    vessels: Plane
    extra: Plane  # what findings add; negative is lucent
    metal: Plane  # devices, on top of the exposure

    @property
    def texture(self) -> Plane:
        """Smooth zero-mean noise with unit variance, (size, size): the unevenness of diseased lung."""
        return smooth_noise(np.random.Generator(np.random.PCG64(self.anatomy.seed)), self.x.shape[1], 20)


@lru_cache(maxsize=8)
def grid(size: int) -> tuple[Plane, Plane]:
    """Return coordinates x (1, size) and y (size, 1) of the pixel centres."""
    line = ((np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)
    return line[None, :], line[:, None]


def ramp(distance: NDArray[Any], width: float = EDGE) -> Plane:
    """Return smoothstep from 0 (distance <= -width) to 1 (distance >= width)."""
    t: Plane = np.clip(distance * np.float32(0.5 / width) + np.float32(0.5), 0, 1)
    return t * t * (3 - 2 * t)


def dome(
    chest_x: Plane, chest_y: Plane, x: float, y: float, rx: float, ry: float, turn: float = 0.0
) -> Plane:
    """Return thickness (0..1) of an ellipsoid seen from the front, its long axis turned by `turn` radians."""
    dx, dy = chest_x - np.float32(x), chest_y - np.float32(y)
    if turn:
        c, s = np.float32(np.cos(turn)), np.float32(np.sin(turn))
        dx, dy = dx * c + dy * s, dy * c - dx * s
    return np.sqrt(np.clip(1 - (dx / np.float32(rx)) ** 2 - (dy / np.float32(ry)) ** 2, 0, None))


def blob(chest_x: Plane, chest_y: Plane, x: float, y: float, rx: float, ry: float) -> Plane:
    """Return a Gaussian hill of height 1."""
    dx, dy = (chest_x - np.float32(x)) / np.float32(rx), (chest_y - np.float32(y)) / np.float32(ry)
    return np.exp(-np.float32(0.5) * (dx * dx + dy * dy))


def smooth_noise(rng: np.random.Generator, size: int, cells: int) -> Plane:
    """Return noise of mean 0, variance about 1, `cells` independent values across: (size, size) float32."""
    coarse = Image.fromarray(rng.standard_normal((cells, cells), dtype=np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC)) * np.float32(1.3)


def compose(a: Anatomy, size: int) -> Chest:
    """Build all layers of a healthy chest at `size` x `size` pixels."""
    x, y = grid(size)
    ax = np.abs(x)
    rho = _cage(a, ax, y)
    depth = (1 - rho) * np.float32(a.width * 0.5)
    inside = ramp(depth)
    lung, floor = {}, {}
    for side, base in zip(("right", "left"), a.base, strict=True):
        bend = (ax - np.float32(0.36)) / np.float32(a.width - 0.36)
        floor[side] = np.float32(base) + np.where(bend > 0, 0.20, 0.10).astype(np.float32) * bend * bend
    crossing = ramp(x, 0.12)  # one diaphragm: the domes meet behind the heart
    ground = floor["right"] * (1 - crossing) + floor["left"] * crossing
    for side in floor:
        lung[side] = inside * ramp(ground - y) * (x * SIGN[side] > 0)
    both = lung["right"] + lung["left"]
    heart = _heart(a, x, y)
    bulge = np.sqrt(np.clip(depth * np.float32(1 / (0.5 * a.width)), 0, 1))
    return Chest(
        anatomy=a,
        x=x,
        y=y,
        lung=lung,
        depth=depth,
        floor=floor,
        body=_body(a, x, y),
        air=both * (np.float32(0.62) + np.float32(0.48) * bulge),
        heart=heart,
        bone=_bones(a, x, y, rho),
        vessels=_vessels(a, size) * both * (1 - np.float32(0.6) * np.clip(heart, 0, 1)),
        extra=_abdomen(a, x, y, ground),
        metal=np.zeros((size, size), np.float32),
    )


def expose(chest: Chest) -> Plane:
    """Return film density (size, size) in [0, 1]: saturating sum of all attenuation, then metal on top."""
    a = chest.anatomy
    soft = chest.body * np.float32(1.25 + 0.35 * a.fat)
    soft -= chest.air * np.float32(1.17)
    soft += chest.heart
    soft += chest.vessels * np.float32(0.34 * a.hilum)
    soft += chest.bone * np.float32(0.30 * a.bone)
    soft += chest.extra
    film = 1 - np.exp(-np.clip(soft, 0, None) * np.float32(0.98))
    film += (np.float32(0.98) - film) * np.clip(chest.metal, 0, 1)
    return film.astype(np.float32)


def _cage(a: Anatomy, ax: Plane, y: Plane) -> Plane:
    """Return the normalised radius of the inner rib cage: 1 at its border, 0 in the middle of a lung."""
    centre, middle = 0.50 * a.width, 0.12
    u = ax - np.float32(centre)
    s = np.where(u > 0, u * np.float32(1 / (a.width - centre)), u * np.float32(-1 / (centre + 0.06)))
    v = np.clip((np.float32(middle) - y) * np.float32(1 / (middle - a.apex)), 0, None)
    low = np.clip(y - np.float32(middle), 0, None)
    s = np.where((u < 0) & (y > middle), np.float32(0), s * (1 - np.float32(0.03) * low))
    return (np.abs(s) ** np.float32(2.4) + v ** np.float32(2.4)) ** np.float32(1 / 2.4)


def _body(a: Anatomy, x: Plane, y: Plane) -> Plane:
    """Return soft tissue of neck, shoulders and trunk, with breast shadows."""
    wall = a.width + 0.09 + 0.10 * a.fat
    rows = [-1.0, -0.86, -0.74, -0.60, -0.30, 0.05, 0.5, 1.0]
    halves = [0.26, 0.34, 0.72, 1.12, 1.12, wall + 0.06, wall, wall + 0.03]
    half = np.interp(y[:, 0], rows, halves).astype(np.float32)
    t = np.clip(1 - (x / half[:, None]) ** 2, 0, None)
    body = np.float32(1.22) * t ** np.float32(0.30)
    if a.breast > 0.05:
        for sign in (-1, 1):
            low, wide, high = 0.30 + 0.10 * a.breast, 0.27 + 0.06 * a.breast, 0.22 + 0.12 * a.breast
            cup = dome(x, y, sign * 0.44, low, wide, high)
            body = body + np.float32(0.26 * a.breast) * cup
    return body


def _heart(a: Anatomy, x: Plane, y: Plane) -> Plane:
    """Return heart, great vessels and mediastinum with the trachea's air column."""
    width = 2 * a.width * a.heart
    left, right = 0.66 * width, 0.34 * width
    ground = 0.5 * (a.base[0] + a.base[1])
    ventricle = dome(x, y, left * 0.42, ground - 0.19, left * 0.68, 0.15 + 0.25 * a.heart, a.heart_tilt)
    atrium = dome(x, y, -0.02, ground - 0.24, right - 0.02, 0.30)
    m = a.mediastinum
    widths = [0.8 * m, m, 1.1 * m, 1.1 * m, 0.9 * m]
    edge = np.interp(y[:, 0], [-1, -0.6, -0.2, 0.3, 1], widths).astype(np.float32)
    central = ramp(edge[:, None] - np.abs(x - np.float32(0.01)), 0.03)
    knob = dome(x, y, m, -0.27, a.knob + 0.03, a.knob + 0.05)
    artery = dome(x, y, m - 0.01, -0.10, 0.085, 0.10)
    heart = np.maximum(np.maximum(ventricle, atrium) * np.float32(0.95), central * np.float32(0.62))
    heart = np.maximum(heart, np.maximum(knob, artery) * np.float32(0.66))
    carina = -0.20
    tube = ramp(0.038 - np.abs(x + np.float32(0.012)), 0.014) * ramp(carina - y, 0.05)
    fork = np.float32(carina) + np.abs(x + np.float32(0.012)) * np.float32(0.9)
    bronchi = ramp(np.float32(0.028) - np.abs(y - fork), 0.018) * ramp(0.15 - np.abs(x), 0.04)
    return heart - np.float32(0.30) * np.maximum(tube, np.float32(0.6) * bronchi)


_RIB = np.array([0, 0, 0, 0.0, 0.25, 0.95, 0.72, 0.55, 0.50, 0.58, 1.0, 0.30, 0.0, 0, 0, 0, 0], np.float32)


def _bones(a: Anatomy, x: Plane, y: Plane, rho: Plane) -> Plane:
    """Return posterior and anterior ribs, spine, clavicles, scapulae and humeral heads."""
    ax = np.abs(x)
    reach = ax / np.float32(a.width)
    post = y - np.float32(a.rib_slope) * reach**3 * reach + np.float32(0.10) * reach
    post = post / np.float32(a.rib_spacing) + np.float32(a.rib_phase)
    front = y + np.float32(0.62) * reach - np.float32(0.20) * reach**3
    front = front / np.float32(1.25 * a.rib_spacing) + np.float32(0.4 + a.rib_phase)
    gap, callus = np.zeros_like(rho), np.zeros_like(rho)
    for f in a.fractures:
        near = blob(x, y, f.x, f.y, 0.16, 0.55 * a.rib_spacing)
        beyond = (ax > abs(f.x)) & (x * np.float32(f.x) > 0)
        post = post + np.float32(f.step) * near * beyond
        gap = gap + blob(x, y, f.x, f.y, 0.018, 0.5 * a.rib_spacing)
        callus = callus + np.float32(5.0 * f.step) * blob(x, y, f.x, f.y, 0.055, 0.045)
    cage = ramp(np.float32(1.06) - rho, 0.03) * ramp(np.float32(0.74) - y, 0.2)
    tangent = np.float32(0.75) + np.float32(0.75) * np.clip(rho, 0, 1) ** 4
    ticks = np.linspace(0, 1, len(_RIB), dtype=np.float32)
    back = np.interp(post - np.floor(post), ticks, _RIB).astype(np.float32) * (1 - np.clip(gap, 0, 0.9))
    fore = np.interp(front - np.floor(front), ticks, _RIB).astype(np.float32) * ramp(ax - 0.34, 0.08)
    fore = fore * ramp(np.float32(0.42) - y, 0.1)
    bones = cage * tangent * (np.float32(0.78) * back + np.float32(0.42) * fore)
    bones += _spine(a, x, y) + callus * (1 - np.clip(gap, 0, 0.6)) * cage
    return bones + _shoulders(a, ax, y)


def _spine(a: Anatomy, x: Plane, y: Plane) -> Plane:
    level = y / np.float32(0.92 * a.rib_spacing) + np.float32(a.rib_phase)
    disc = np.float32(0.75) + np.float32(0.25) * np.cos(level * np.float32(2 * np.pi))
    return ramp(np.float32(0.085) - np.abs(x), 0.02) * disc * (np.float32(0.75) + np.float32(0.25) * y)


def _shoulders(a: Anatomy, ax: Plane, y: Plane) -> Plane:
    along = ax - np.float32(0.10)
    bow = np.float32(0.07) * np.sin(along * np.float32(6.0))
    line = np.float32(a.clavicle) - np.float32(0.10) * along - bow
    off = np.abs(y - line)
    clavicle = ramp(np.float32(0.036) - off, 0.018) * (np.float32(0.6) + np.float32(9) * off)
    clavicle = clavicle * ramp(ax - 0.09, 0.02) * ramp(np.float32(0.86) - ax, 0.05)
    plate = dome(ax, y, 0.92, -0.34, 0.26, 0.44, 0.25)
    rim = np.clip(plate * 4, 0, 1) - np.clip(plate * np.float32(1.6) - np.float32(0.35), 0, 1)
    humerus = dome(ax, y, 1.02, -0.62, 0.17, 0.18)
    return np.float32(1.25) * clavicle + np.float32(0.40) * rim + np.float32(0.8) * humerus


def _abdomen(a: Anatomy, x: Plane, y: Plane, ground: Plane) -> Plane:
    """Return liver and spleen below the diaphragm, and the stomach's gas bubble on the left."""
    below = ramp(y - ground, 0.02)
    gas = dome(x, y, 0.36, a.base[1] + 0.17, 0.15, 0.085)
    return below * np.float32(0.30) - np.float32(0.75) * gas


_BRANCHES = ((0.13, 3.6, 215), (0.13, 2.4, 165), (0.12, 1.5, 120), (0.11, 1.0, 75), (0.09, 0.7, 45))
"""Per generation of the vascular tree: length in image units, width in pixels of 128, density of 255."""


def _vessels(a: Anatomy, size: int) -> Plane:
    """Return hila and a vascular tree, strong at the hilum and fading outwards: (size, size) in 0..1."""
    rng = np.random.Generator(np.random.PCG64(a.seed))
    image = Image.new("L", (2 * size, 2 * size))
    pen = ImageDraw.Draw(image)
    n = 6
    fan = np.linspace(-1.15, 1.30, n)
    heading = np.concatenate([np.pi - fan, fan]) + rng.normal(0, 0.08, 2 * n)
    root = np.stack([0.15 + 0.02 * np.cos(fan), 0.10 * np.sin(fan)], 1)
    start = np.concatenate([root * (-1, 1), root + np.array((0.02, -0.03))])
    segments = []
    for length, width, shade in _BRANCHES:
        reach = length * rng.uniform(0.7, 1.3, len(heading))
        bent = heading + rng.normal(0, 0.16, len(heading))
        middle = start + 0.5 * reach[:, None] * np.stack([np.cos(heading), np.sin(heading)], 1)
        end = middle + 0.5 * reach[:, None] * np.stack([np.cos(bent), np.sin(bent)], 1)
        segments.append((np.concatenate([start, middle, end], 1), width, shade))
        spread = rng.uniform(0.18, 0.48, len(heading))
        heading = np.concatenate([bent - spread, bent + 0.8 * spread])
        start = np.concatenate([end, end])
    for rows, width, shade in reversed(segments):
        thick = max(1, round(width * size / 128))
        for row in ((rows + 1) * size).tolist():
            pen.line(row, fill=shade, width=thick)
    tree = np.asarray(image.resize((size, size), Image.Resampling.BOX), dtype=np.float32) / np.float32(255)
    x, y = grid(size)
    hila = blob(x, y, -0.17, 0.0, 0.055, 0.11) + blob(x, y, 0.18, -0.04, 0.055, 0.10)
    return np.maximum(tree, np.float32(0.75) * hila)
