"""Lays out the synthetic landscape: which shapes of which material touch a block of it.

The world is an endless plane of pixels. Each kind of thing lives on a lattice of its own, and all that is
random about it comes from `chance(seed, kind, cell)`: any block can be drawn alone, and fits its neighbours.

    parcels   a mesh of jittered nodes joined by wavy edges; a deck of eight kinds is dealt to each 2 x 4 of
              them, so that every class is met in every part of the world
    water     one pond in each 512 px cell, and a river down every 1700 px
    roads     curves from left to right, straight pieces from top to bottom
    buildings rows of houses in village parcels, now and then a barn on a field; none on water or road
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_PARCEL_PX = 176
_EDGE_STEPS = 8  # pieces of one wavy parcel edge
_EDGE_T = np.linspace(0, 1, _EDGE_STEPS + 1)
_WAVES = np.sin(np.pi * _EDGE_T[:, None] * np.arange(1, 4))
_POND_CELL_PX = 512
_RIVER_PX = 1700
_ROAD_ROW_PX, _ROAD_COL_PX, _ROAD_BEND_PX = 400, 480, 700
_STEP_PX = 16  # between two points of a road or river
_REACH_PX = 160  # how far outside a block a thing may stand and still matter inside it
_CLEAR_PX = 26  # from the middle of a building to the edge of water or road
_DECK = ("field", "field", "forest", "forest", "soil", "village", "village", "any")
_ANY = ("field", "forest", "soil", "village")
_CROPS = ("cereal", "rape", "meadow", "wheat", "stubble")
_GROUNDS = {
    "forest": ("conifers", "broadleaves"),
    "soil": ("dry_soil", "wet_soil"),
    "village": ("meadow", "meadow"),
}
_SPOTS = {"village": [(a, b) for a in (0.2, 0.5, 0.8) for b in (0.2, 0.5, 0.8)], "field": [(0.5, 0.5)]}
_ROADS = ("asphalt", "concrete", "gravel")
_ROOFS = ("tile_roof", "tile_roof", "metal_roof", "slate_roof")
_SHADOW_ROW, _SHADOW_COL = -0.8, -0.6  # the sun stands in the south-east


@dataclass(frozen=True)
class Shape:
    """A ring of (row, col) points filled with one material; `furrow` is a wave vector in radians per px."""

    ring: Floats
    material: str
    tone: float = 1.0
    furrow: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Line:
    """A road or river: points on its middle, (row, col), and half of its width."""

    points: Floats
    half_px: float
    material: str


@dataclass(frozen=True)
class BlockContents:
    """What touches a block: shapes from the lowest to the highest, and the shadows that fall on them."""

    shapes: list[Shape]
    shadows: list[Floats]


def chance(seed: int, kind: int, row: object, col: object, num: int) -> Floats:
    """Give `num` uniform numbers in [0, 1) for each cell (row, col), the same for the same arguments."""
    rows = np.atleast_1d(np.asarray(row, dtype=np.int64)).astype(np.uint64)
    cols = np.atleast_1d(np.asarray(col, dtype=np.int64)).astype(np.uint64)
    start = np.array([(seed * 0x9E3779B97F4A7C15 + kind * 0xD1342543DE82EF95) % 2**64], dtype=np.uint64)
    key = _mix(_mix(_mix(start) ^ rows) + cols * np.uint64(0xA24BAED4963EE407))
    counter = np.arange(1, num + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((_mix(key[..., None] + counter) >> np.uint64(11)) * 2.0**-53)


def lay_out(seed: int, top: int, left: int, size_px: int) -> BlockContents:
    """Find every shape that touches the square block of `size_px` at (top, left)."""
    reach = (top - _REACH_PX, left - _REACH_PX, top + size_px + _REACH_PX, left + size_px + _REACH_PX)
    ponds, rivers, roads = _ponds(seed, reach), _rivers(seed, reach), _roads(seed, reach)
    rows, cols = _cells(top, top + size_px, _PARCEL_PX), _cells(left, left + size_px, _PARCEL_PX)
    parcels = [_parcel(seed, int(i), int(j)) for i in rows for j in cols]
    houses = _clear([house for parcel in parcels for house in parcel.houses], [*rivers, *roads], ponds)
    ground = [shape for parcel in parcels for shape in parcel.grounds]
    forest = [shape for parcel in parcels for shape in parcel.forests]
    water = [Shape(ring, "pond") for ring in ponds] + [_strip(line) for line in rivers]
    roofs = [shape for house in houses for shape in house.roof]
    return BlockContents(
        [*ground, *forest, *water, *map(_strip, roads), *roofs], [house.shadow for house in houses]
    )


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The finaliser of splitmix64: every input bit flips each output bit with a chance of one half.
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


Reach = tuple[int, int, int, int]  # top, left, bottom, right
Sides = tuple[Floats, Floats, Floats, Floats]  # of a parcel: top, right, bottom, left, each walked clockwise


def _cells(start: int, stop: int, pitch_px: int) -> NDArray[np.int64]:
    return np.arange(start // pitch_px - 1, stop // pitch_px + 2)


# --- water and roads ------------------------------------------------------------------------------


def _ponds(seed: int, reach: Reach) -> list[Floats]:
    rows, cols = _cells(reach[0], reach[2], _POND_CELL_PX), _cells(reach[1], reach[3], _POND_CELL_PX)
    return [_pond(seed, int(i), int(j)) for i in rows for j in cols]


@lru_cache(maxsize=1024)
def _pond(seed: int, i: int, j: int) -> Floats:
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    u = chance(seed, 1, i, j, 9)[0]
    radius = np.full_like(angle, 62 + 26 * u[0])
    for k in (2, 3, 5):
        radius += radius[0] * (0.36 / k) * u[k - 1] * np.cos(k * angle + 6.3 * u[k + 3])
    middle = (np.array([i, j]) + 0.3 + 0.4 * u[[7, 3]]) * _POND_CELL_PX
    return np.asarray(middle + radius[:, None] * np.stack([np.sin(angle), np.cos(angle)], axis=1))


def _along(start: int, stop: int) -> Floats:
    return np.arange(start // _STEP_PX - 2, stop // _STEP_PX + 3, dtype=np.float64) * _STEP_PX


def _meander(at: Floats, u: Floats, wide_px: float) -> Floats:
    slow = np.sin(at * (2 * np.pi / (900 + 500 * u[0])) + 6.3 * u[1])
    quick = np.sin(at * (2 * np.pi / (310 + 150 * u[2])) + 6.3 * u[3])
    return np.asarray(wide_px * (0.75 * slow + 0.25 * quick))


def _rivers(seed: int, reach: Reach) -> list[Line]:
    rows, lines = _along(reach[0], reach[2]), []
    for k in _cells(reach[1], reach[3], _RIVER_PX):
        u = chance(seed, 2, k, 0, 6)[0]
        cols = _RIVER_PX * (k + 0.25 + 0.15 * u[4]) + _meander(rows, u, 110)
        lines.append(Line(np.stack([rows, cols], axis=1), 17 + 6 * u[5], "river"))
    return lines


def _roads(seed: int, reach: Reach) -> list[Line]:
    lines = []
    cols = _along(reach[1], reach[3])
    for k in _cells(reach[0], reach[2], _ROAD_ROW_PX):
        u = chance(seed, 3, k, 0, 7)[0]
        rows = _ROAD_ROW_PX * (k + 0.35 + 0.3 * u[4]) + _meander(cols, u, 60)
        lines.append(Line(np.stack([rows, cols], axis=1), 6 + 2.5 * u[5], _ROADS[int(u[6] * 2)]))
    rows = _along(reach[0], reach[2])
    bends = _cells(int(rows[0]), int(rows[-1]), _ROAD_BEND_PX)
    for k in _cells(reach[1], reach[3], _ROAD_COL_PX):
        at = _ROAD_COL_PX * (k + 0.25 + 0.5 * chance(seed, 4, bends, k, 1)[:, 0])
        cols = np.interp(rows, bends * float(_ROAD_BEND_PX), at)
        u = chance(seed, 5, k, 0, 2)[0]
        lines.append(Line(np.stack([rows, cols], axis=1), 5.5 + 2 * u[0], _ROADS[int(u[1] * 3)]))
    return lines


def _strip(line: Line) -> Shape:
    ahead = np.gradient(line.points, axis=0)
    across = np.stack([ahead[:, 1], -ahead[:, 0]], axis=1) / np.linalg.norm(ahead, axis=1, keepdims=True)
    sides = line.points + line.half_px * across, line.points - line.half_px * across
    return Shape(np.concatenate([sides[0], sides[1][::-1]]), line.material)


# --- parcels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MeshParcel:
    """One piece of the mesh: its ground, its forest, and the houses on it where nothing is in the way."""

    grounds: list[Shape]
    forests: list[Shape]
    houses: list[House]


@lru_cache(maxsize=4096)  # a parcel touches up to nine blocks
def _parcel(seed: int, i: int, j: int) -> MeshParcel:
    sides, kind, u = _sides(seed, i, j), _kind(seed, i, j), chance(seed, 6, i, j, 8)[0]
    houses = list(_houses(seed, i, j, kind, sides))
    if kind == "field":
        return MeshParcel(list(_field(sides, u)), [], houses)
    ring, tone = np.concatenate([side[:-1] for side in sides]), 0.9 + 0.2 * u[1]
    ground = Shape(ring, _GROUNDS[kind][int(u[0] * 2)], tone)
    if kind != "forest":
        return MeshParcel([ground], [], houses)
    # The wood grows over its neighbours here and there; the ground below closes the gaps between two woods.
    wobble = 11 * (chance(seed, 7, i, j, ring.size).reshape(ring.shape) - 0.5)
    return MeshParcel([ground], [Shape(ring + wobble, ground.material, tone)], houses)


def _kind(seed: int, i: int, j: int) -> str:
    u = chance(seed, 8, i // 2, j // 4, 9)[0]
    kind = _DECK[int(np.argsort(u[:8])[(i % 2) * 4 + j % 4])]
    return _ANY[int(u[8] * 4)] if kind == "any" else kind


def _sides(seed: int, i: int, j: int) -> Sides:
    # Top, right, bottom and left, walked clockwise; a side shared by two parcels is the same curve for both.
    rows, cols = np.array([i, i, i + 1, i + 1]), np.array([j, j + 1, j + 1, j])
    node = (np.stack([rows, cols], axis=1) + 0.4 * (chance(seed, 9, rows, cols, 2) - 0.5)) * _PARCEL_PX
    # Even rows of the hash for sides that run right, odd ones for sides that run down.
    u = chance(seed, 10, [2 * i, 2 * i + 1, 2 * i + 2, 2 * i + 1], [j, j + 1, j, j], 3) - 0.5
    top, right = _edge(node[0], node[1], u[0]), _edge(node[1], node[2], u[1])
    bottom, left = _edge(node[3], node[2], u[2]), _edge(node[0], node[3], u[3])
    return top, right, bottom[::-1], left[::-1]


def _edge(start: Floats, stop: Floats, u: Floats) -> Floats:
    bulge = _WAVES @ (u * (0.16, 0.09, 0.05))
    across = np.array([stop[1] - start[1], start[0] - stop[0]])
    return np.asarray(start + (stop - start) * _EDGE_T[:, None] + bulge[:, None] * across)


def _field(sides: Sides, u: Floats) -> Iterator[Shape]:
    """Cut a parcel into one, two or three strips of different crops, sown along the cut."""
    top, right, bottom, left = sides
    cuts = [0, _EDGE_STEPS] if u[0] < 0.3 else [0, 4, _EDGE_STEPS] if u[0] < 0.7 else [0, 3, 6, _EDGE_STEPS]
    back = bottom[::-1]
    along = back[4] - top[4]
    across = np.array([along[1], -along[0]]) / np.hypot(*along)
    for k, (begin, end) in enumerate(pairwise(cuts)):
        near = left[::-1] if begin == 0 else np.stack([top[begin], back[begin]])
        far = right if end == _EDGE_STEPS else np.stack([top[end], back[end]])
        ring = np.concatenate([top[begin : end + 1], far, back[begin : end + 1][::-1], near[::-1]])
        wave = 2 * np.pi / (7 + 4 * u[k + 4])
        crop = _CROPS[(int(u[1] * 5) + k * (1 + int(u[2] * 4))) % 5]
        yield Shape(ring, crop, 0.88 + 0.24 * u[k + 4], (float(wave * across[0]), float(wave * across[1])))


# --- buildings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class House:
    """A building: its middle, its roof of one or two sides, and its shadow."""

    middle: Floats
    roof: list[Shape]
    shadow: Floats


def _houses(
    seed: int, i: int, j: int, kind: str, sides: tuple[Floats, Floats, Floats, Floats]
) -> Iterator[House]:
    corners = np.array([side[0] for side in sides])  # clockwise from the top left
    chances = chance(seed, 11, i, j, 90)[0].reshape(9, 10)
    for spot, (a, b) in enumerate(_SPOTS.get(kind, ())):
        u = chances[spot]
        if u[0] > (0.95 if kind == "village" else 0.45):
            continue
        upper, lower = corners[0] * (1 - b) + corners[1] * b, corners[3] * (1 - b) + corners[2] * b
        middle = upper * (1 - a) + lower * a + 6 * (u[1:3] - 0.5)
        ahead = corners[1] - corners[0]
        angle = np.arctan2(ahead[0], ahead[1]) + 0.3 * (u[3] - 0.5)
        along, across = np.array([np.sin(angle), np.cos(angle)]), np.array([np.cos(angle), -np.sin(angle)])
        long_px, wide_px = (
            (34 + 12 * u[4], 27 + 9 * u[5]) if kind == "village" else (46 + 24 * u[4], 30 + 8 * u[5])
        )
        ends = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]]) / 2
        walls = middle + ends[:, :1] * long_px * along + ends[:, 1:] * wide_px * across
        yield House(middle, list(_roof(walls, u[7:10])), _shadow(walls, 11 + 7 * u[6]))


def _clear(houses: list[House], lines: list[Line], ponds: list[Floats]) -> list[House]:
    """Keep the houses that stand neither on water nor on a road."""
    if not houses:
        return []
    points = np.concatenate([*(line.points for line in lines), *ponds, [ring.mean(axis=0) for ring in ponds]])
    widths = [np.full(len(line.points), line.half_px) for line in lines]
    keep_px = _CLEAR_PX + np.concatenate([*widths, np.zeros(sum(map(len, ponds))), np.full(len(ponds), 36.0)])
    middles = np.array([house.middle for house in houses])
    away = np.hypot(middles[:, :1] - points[:, 0], middles[:, 1:] - points[:, 1]) > keep_px
    return [house for house, is_free in zip(houses, away.all(axis=1), strict=True) if is_free]


def _roof(corners: Floats, u: Floats) -> Iterator[Shape]:
    material, tone = _ROOFS[int(u[0] * 4)], 0.85 + 0.3 * u[1]
    if u[2] < 0.3:  # flat
        yield Shape(corners, material, tone)
        return
    ridge = (corners[0] + corners[1]) / 2, (corners[3] + corners[2]) / 2
    sunny = np.dot(corners[1] - corners[0], [_SHADOW_ROW, _SHADOW_COL]) / np.hypot(*(corners[1] - corners[0]))
    yield Shape(np.array([corners[0], ridge[0], ridge[1], corners[3]]), material, tone * (1 + 0.18 * sunny))
    yield Shape(np.array([ridge[0], corners[1], corners[2], ridge[1]]), material, tone * (1 - 0.18 * sunny))


def _shadow(corners: Floats, length_px: float) -> Floats:
    # A box that is swept along the light: the hull of the box and of its moved copy.
    points = np.concatenate([corners, corners + length_px * np.array([_SHADOW_ROW, _SHADOW_COL])])
    return _hull(points)


def _hull(points: Floats) -> Floats:
    # Andrew's monotone chain.
    order = points[np.lexsort((points[:, 1], points[:, 0]))]
    halves = []
    for walk in (order, order[::-1]):
        chain: list[Floats] = []
        for p in walk:
            while len(chain) > 1 and _turn(chain[-2], chain[-1], p) <= 0:
                chain.pop()
            chain.append(p)
        halves.append(chain[:-1])
    return np.array(halves[0] + halves[1])


def _turn(a: Floats, b: Floats, c: Floats) -> float:
    return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))
