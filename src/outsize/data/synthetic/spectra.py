"""Colours the synthetic landscape by blocks: materials, furrows, tree crowns, shadow, light and noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from outsize.data.synthetic.layout import BlockContents, chance, lay_out

FIELD, FOREST, WATER, ROAD, BUILDING, BARE_SOIL = range(6)

BLOCK_PX = 512  # side of the squares in which a scene is drawn; light and noise hang on it

# rasterio.features silences a warning of its own through `warnings.catch_warnings`, which is not for threads.
FEATURES_LOCK = Lock()

_NOISE = (170.0, 190.0, 220.0, 360.0)
_SHADE = 0.42  # share of the light that is left in a shadow
_LIGHT = 0.16  # largest change of the light over a scene
_CROWN_PX = 11
_CROWN_TILE_PX = _CROWN_PX * 48
_SUN = (0.8, 0.6)  # direction of the sun, (row, col)


@dataclass(frozen=True)
class Material:
    """How one kind of surface looks: class, mean of each band, strength of furrows and of tree crowns."""

    value: int
    bands: tuple[int, int, int, int]
    furrows: float = 0.0
    crowns: float = 0.0


MATERIALS = {
    "cereal": Material(FIELD, (440, 780, 500, 3300), furrows=0.22),
    "rape": Material(FIELD, (520, 1180, 900, 3300), furrows=0.20),
    "meadow": Material(FIELD, (470, 780, 600, 2800), furrows=0.10),
    "wheat": Material(FIELD, (800, 1200, 1430, 2600), furrows=0.22),
    "stubble": Material(FIELD, (920, 1270, 1620, 2350), furrows=0.25),
    "conifers": Material(FOREST, (350, 600, 430, 2450), crowns=0.30),
    "broadleaves": Material(FOREST, (420, 760, 490, 3100), crowns=0.30),
    "pond": Material(WATER, (480, 560, 430, 330)),
    "river": Material(WATER, (640, 760, 620, 480)),
    "asphalt": Material(ROAD, (800, 840, 860, 950)),
    "concrete": Material(ROAD, (1050, 1080, 1100, 1200)),
    "gravel": Material(ROAD, (1000, 1090, 1170, 1350)),
    "tile_roof": Material(BUILDING, (1000, 1150, 2600, 2800)),
    "slate_roof": Material(BUILDING, (1500, 1470, 1400, 1600)),
    "metal_roof": Material(BUILDING, (2900, 2950, 3000, 3100)),
    "dry_soil": Material(BARE_SOIL, (980, 1300, 1780, 2300)),
    "wet_soil": Material(BARE_SOIL, (720, 920, 1290, 1700)),
}


def draw_block(seed: int, block_row: int, block_col: int) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Draw the pixels (4, side, side) and the labels (side, side) of one block of the endless scene."""
    top, left = block_row * BLOCK_PX, block_col * BLOCK_PX
    layout = lay_out(seed, top, left, BLOCK_PX)
    ids, shadow = _burn(layout, top, left)
    kinds = [MATERIALS[shape.material] for shape in layout.shapes]
    labels = np.array([kind.value for kind in kinds], dtype=np.uint8)[ids]

    light = _texture(layout, kinds, ids, top, left)
    light *= _light(seed, block_row, block_col)
    light[shadow & (labels != BUILDING)] *= _SHADE
    noise = _noise(seed, block_row, block_col)
    grain = np.empty_like(light)
    pixels = np.empty((4, BLOCK_PX, BLOCK_PX), dtype=np.uint16)
    for band in range(4):
        means = [kind.bands[band] * shape.tone for kind, shape in zip(kinds, layout.shapes, strict=True)]
        value = np.take(np.array(means, dtype=np.float32), ids)
        value *= light
        np.take(_normal_levels() * np.float32(_NOISE[band]), noise[band], out=grain, mode="clip")
        value += grain
        np.clip(value, 1, 65535, out=value)
        pixels[band] = value
    return pixels, labels


def _burn(layout: BlockContents, top: int, left: int) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    from rasterio.features import rasterize
    from rasterio.transform import Affine

    place, size = Affine.translation(left, top), (BLOCK_PX, BLOCK_PX)
    rings = [_polygon(shape.ring) for shape in layout.shapes]
    numbered = [(ring, number) for number, ring in enumerate(rings)]
    shadows = [(_polygon(ring), 1) for ring in layout.shadows]
    shadow = np.zeros(size, dtype=np.uint8)
    with FEATURES_LOCK:
        ids = rasterize(numbered, out_shape=size, transform=place, fill=0, dtype=np.int32)
        if shadows:
            rasterize(shadows, out=shadow, transform=place)
    return ids.astype(np.intp), shadow.astype(bool)  # intp is what numpy looks tables up with


def _polygon(ring: NDArray[np.float64]) -> dict[str, object]:
    points = ring[:, ::-1].tolist()
    return {"type": "Polygon", "coordinates": [[*points, points[0]]]}


def _texture(
    layout: BlockContents, kinds: list[Material], ids: NDArray[np.intp], top: int, left: int
) -> NDArray[np.float32]:
    """Give the brightness of each pixel around 1: furrows on fields, crowns in forests."""
    furrow = np.array([shape.furrow for shape in layout.shapes], dtype=np.float32)
    depth = np.array([kind.furrows for kind in kinds], dtype=np.float32)
    rows = np.arange(BLOCK_PX, dtype=np.float32)[:, None]
    cols = np.arange(BLOCK_PX, dtype=np.float32)[None, :]
    # The phase at the block's corner is taken in double precision: far out, float32 has no digits left.
    start = np.array([s.furrow[0] * top + s.furrow[1] * left for s in layout.shapes]) % (2 * np.pi)
    phase = furrow[:, 0][ids] * rows
    phase += furrow[:, 1][ids] * cols
    phase += start.astype(np.float32)[ids]
    light: NDArray[np.float32] = np.sin(phase, out=phase)
    light *= depth[ids]
    crowns = np.array([kind.crowns for kind in kinds], dtype=np.float32)[ids]
    row, col = top % _CROWN_TILE_PX, left % _CROWN_TILE_PX
    crowns *= _crown_tile()[row : row + BLOCK_PX, col : col + BLOCK_PX]
    light += crowns
    light += 1
    return light


@cache
def _crown_tile() -> NDArray[np.float32]:
    """Draw tree crowns once, lit from the sun's side, on a square that repeats without a seam."""
    num = _CROWN_TILE_PX // _CROWN_PX
    spot = np.arange(_CROWN_TILE_PX)
    cell = spot // _CROWN_PX
    nearest = np.full((_CROWN_TILE_PX, _CROWN_TILE_PX), np.inf)
    sunny = np.zeros_like(nearest)
    jitter = chance(0, 40, np.arange(num)[:, None], np.arange(num)[None, :], 2)
    for down in (-1, 0, 1):
        for right in (-1, 0, 1):
            at = jitter[np.ix_((cell + down) % num, (cell + right) % num)]
            rows = (cell + down)[:, None] + at[..., 0] - spot[:, None] / _CROWN_PX
            cols = (cell + right)[None, :] + at[..., 1] - spot[None, :] / _CROWN_PX
            distance = rows**2 + cols**2
            closer = distance < nearest
            nearest[closer] = distance[closer]
            sunny[closer] = -(rows * _SUN[0] + cols * _SUN[1])[closer]
    crown = 1 - 2.2 * nearest + 0.9 * sunny
    crown = (crown - crown.mean()) / crown.std()
    return np.pad(crown, ((0, BLOCK_PX), (0, BLOCK_PX)), mode="wrap").astype(np.float32)


def _light(seed: int, block_row: int, block_col: int) -> NDArray[np.float32]:
    # Values at the corners of the block, blended smoothly; neighbours share corners, so no seam shows.
    rows, cols = np.array([[block_row], [block_row + 1]]), np.array([[block_col, block_col + 1]])
    corner = (1 + _LIGHT * (2 * chance(seed, 41, rows, cols, 1)[..., 0] - 1)).astype(np.float32)
    t = (np.arange(BLOCK_PX, dtype=np.float32) + 0.5) / BLOCK_PX
    t = t * t * (3 - 2 * t)
    left, right = (corner[0, k] + (corner[1, k] - corner[0, k]) * t[:, None] for k in (0, 1))
    return np.asarray(left + (right - left) * t[None, :])


def _noise(seed: int, block_row: int, block_col: int) -> NDArray[np.uint8]:
    stream = np.random.SFC64(np.random.SeedSequence([seed, block_row, block_col]))
    num_bytes = 4 * BLOCK_PX * BLOCK_PX
    return stream.random_raw(num_bytes // 8).view(np.uint8).reshape(4, BLOCK_PX, BLOCK_PX)


@cache
def _normal_levels() -> NDArray[np.float32]:
    # 256 equally likely levels of a normal distribution: far quicker to look up than to draw.
    from statistics import NormalDist

    return np.array([NormalDist().inv_cdf((level + 0.5) / 256) for level in range(256)], dtype=np.float32)
