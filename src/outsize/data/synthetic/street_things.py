"""What stands in a drawn street: cars, people and others as faces in metres, and where they stand.

A thing has its own axes: along its length, up, and across. It stands on the ground, turned about the upright axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Colour = tuple[float, float, float]
CAR, VAN, PEDESTRIAN, CYCLIST = "Car", "Van", "Pedestrian", "Cyclist"
ALONG = np.pi / 2  # turn of what heads away from the camera: its length goes into the distance

_PAINTS: tuple[Colour, ...] = (
    (212, 212, 214), (166, 168, 172), (58, 60, 66), (28, 30, 34), (150, 26, 32),
    (32, 62, 128), (70, 104, 74), (196, 176, 132), (226, 224, 214), (98, 58, 44),
)  # fmt: skip
_GLASS, _TYRE, _SKIN = (36.0, 44.0, 54.0), (16.0, 16.0, 18.0), (198.0, 158.0, 128.0)
_BUILT: tuple[Colour, ...] = (
    (156, 136, 116),
    (178, 170, 156),
    (126, 96, 82),
    (112, 116, 120),
    (198, 182, 150),
)
_LIGHT = np.array([0.35, 0.85, -0.4])  # from where the light comes: along, up, across


@dataclass(frozen=True, eq=False)
class Face:
    """A flat part of a thing."""

    points: NDArray[np.float64]  # corner; along, up, across
    colour: Colour
    normal: tuple[float, float, float] = (0.0, 0.0, 0.0)  # all 0: seen from both sides, and lit evenly
    on_top: bool = False  # a detail on another face, drawn after that


@dataclass(frozen=True, eq=False)
class Thing:
    """Something that stands in the street; only what has a label is an object."""

    label: str
    faces: tuple[Face, ...]
    place: tuple[float, float]  # metres to the right of the camera, and before it
    turn: float  # radians, as KITTI's rotation_y
    extents: tuple[float, float, float]  # height, width, length


def furnish(rng: np.random.Generator) -> list[Thing]:
    """Draw all things of one street."""
    things = [*_sides(rng), *_traffic(rng), *_parked(rng, -1), *_parked(rng, 1), *_people(rng)]
    for _ in range(int(rng.integers(2, 6))):
        side = 1 if rng.random() < 0.5 else -1
        place = (side * rng.uniform(7.4, 9.5), rng.uniform(7, 50))
        things.append((_lamp, _tree, _bin, _wall)[int(rng.integers(4))](rng, place))
    return things


def _traffic(rng: np.random.Generator) -> list[Thing]:
    things, last = [], {-1.8: 0.0, 1.8: 0.0, 5.0: 0.0}
    for _ in range(int(rng.integers(2, 7))):
        lane = float(rng.choice(list(last)))
        far = last[lane] + rng.uniform(7, 20)
        last[lane] = far
        heading = -1 if lane < 0 else 1
        turn = heading * ALONG + rng.normal(0, 0.06)
        if rng.random() < 0.08:  # one that crosses or turns
            turn = rng.uniform(-np.pi, np.pi)
        place = (lane + rng.normal(0, 0.25), far + rng.uniform(0, 3))
        things.append(_van(rng, place, turn) if rng.random() < 0.12 else _car(rng, place, turn))
    return things


def _parked(rng: np.random.Generator, side: int) -> list[Thing]:
    if rng.random() < 0.35:
        return []
    things, far = [], rng.uniform(4.5, 12)
    while far < 45:
        if rng.random() < 0.5:
            turn = side * ALONG + rng.normal(0, 0.04)
            things.append(_car(rng, (side * 7.2 - 0.6 + rng.normal(0, 0.15), far), turn))
        far += rng.uniform(6, 9)
    return things


def _people(rng: np.random.Generator) -> list[Thing]:
    things = []
    for _ in range(int(rng.integers(0, 4))):
        side = 1 if rng.random() < 0.5 else -1
        place = (side * rng.uniform(8.4, 10.5), rng.uniform(7, 32))
        maker = _cyclist if rng.random() < 0.35 else _pedestrian
        things.append(maker(rng, place))
    return things


def _sides(rng: np.random.Generator) -> list[Thing]:
    things = []
    for side in (-1, 1):
        far = rng.uniform(0, 8)
        while far < 90:
            long, high = rng.uniform(8, 18), rng.uniform(3.5, 9)
            if rng.random() < 0.75:
                away = side * (12.5 + rng.uniform(0, 4))
                things.append(_house(rng, (away, far + long / 2), long, high))
            far += long + rng.uniform(0, 6)
    return things


def _car(rng: np.random.Generator, place: tuple[float, float], turn: float) -> Thing:
    height, width, length = rng.uniform(1.35, 1.6), rng.uniform(1.6, 1.85), rng.uniform(3.5, 4.7)
    paint, waist, back = _painted(rng), height * 0.56, rng.uniform(-0.12, 0.02) * length
    half, top = length / 2, rng.uniform(0.46, 0.56) * length
    faces = [
        *_block((-half, half), (0.22, waist), width, paint),
        *_block((back - top / 2, back + top / 2), (waist, height), width * 0.9, paint, sides=_GLASS),
        *_wheels(half, width),
        *_lights(half, waist, width),
    ]
    return Thing(CAR, tuple(faces), place, turn, (height, width, length))


def _van(rng: np.random.Generator, place: tuple[float, float], turn: float) -> Thing:
    height, width, length = rng.uniform(1.95, 2.4), rng.uniform(1.8, 2.05), rng.uniform(4.6, 5.6)
    paint, half = _painted(rng), length / 2
    faces = [*_block((-half, half), (0.25, height), width, paint), *_wheels(half, width)]
    faces.append(_pane(half + 0.01, (height * 0.55, height * 0.92), width * 0.9))
    faces.append(_pane(-half - 0.01, (height * 0.55, height * 0.85), width * 0.7))
    return Thing(VAN, tuple(faces), place, turn, (height, width, length))


def _pedestrian(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, width = rng.uniform(1.55, 1.9), rng.uniform(0.5, 0.65)
    stride = rng.uniform(0.1, 0.35)
    legs, coat = _dull(rng), _painted(rng)
    faces = [
        *_block((-stride, -stride + 0.18), (0, height * 0.5), 0.16, legs),
        *_block((stride - 0.18, stride), (0, height * 0.5), 0.16, legs),
        *_block((-0.16, 0.16), (height * 0.45, height * 0.85), width, coat),
        *_block((-0.11, 0.11), (height * 0.86, height), 0.2, _SKIN),
    ]
    return Thing(PEDESTRIAN, tuple(faces), place, rng.uniform(-np.pi, np.pi), (height, width, 2 * stride))


def _cyclist(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, length = rng.uniform(1.6, 1.85), rng.uniform(1.6, 1.8)
    coat = _painted(rng)
    wheels = [Face(_circle(at, 0.34, 0.34, 0.0), _TYRE) for at in (-length / 2 + 0.34, length / 2 - 0.34)]
    faces = [
        *wheels,
        *_block((-0.35, 0.35), (0.5, 0.6), 0.06, _dull(rng)),
        *_block((-0.25, 0.05), (0.55, height * 0.62), 0.3, _dull(rng)),
        *_block((-0.2, 0.18), (height * 0.55, height * 0.86), 0.45, coat),
        *_block((-0.02, 0.2), (height * 0.87, height), 0.2, _SKIN),
    ]
    turn = rng.choice([-ALONG, ALONG]) + rng.normal(0, 0.2)
    return Thing(CYCLIST, tuple(faces), place, float(turn), (height, 0.6, length))


def _lamp(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, grey = rng.uniform(4, 7), (92.0, 94.0, 96.0)
    faces = (
        *_block((-0.07, 0.07), (0, height), 0.14, grey),
        *_block((-0.9, 0.1), (height, height + 0.15), 0.3, grey),
    )
    return Thing("", faces, place, 0.0, (height, 0.3, 1.0))


def _tree(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, wide = rng.uniform(4, 7), rng.uniform(1.2, 2.2)
    green = (rng.uniform(40, 80), rng.uniform(76, 116), rng.uniform(34, 60))
    crown = [
        Face(_circle(rng.normal(0, 0.4), height + rng.normal(0, 0.4), wide, z), green)
        for z in (-0.5, 0.0, 0.5)
    ]
    return Thing(
        "", (*_block((-0.15, 0.15), (0, height), 0.3, (84, 66, 50)), *crown), place, 0.0, (height, wide, wide)
    )


def _bin(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, width = rng.uniform(0.9, 1.7), rng.uniform(0.7, 1.4)
    faces = tuple(_block((-width / 2, width / 2), (0, height), width, _dull(rng)))
    return Thing("", faces, place, rng.uniform(-0.3, 0.3), (height, width, width))


def _wall(rng: np.random.Generator, place: tuple[float, float]) -> Thing:
    height, length = rng.uniform(1.0, 2.0), rng.uniform(3, 9)
    faces = tuple(_block((-length / 2, length / 2), (0, height), 0.3, _built(rng)))
    return Thing("", faces, (place[0] + np.sign(place[0]), place[1]), ALONG, (height, 0.3, length))


def _house(rng: np.random.Generator, place: tuple[float, float], long: float, high: float) -> Thing:
    deep, faces = 4.0, list(_block((-long / 2, long / 2), (0, high), 4.0, _built(rng)))
    across = -np.sign(place[0]) * (deep / 2 + 0.02)  # windows look at the road
    for row in np.arange(1.0, high - 1.6, 2.8):
        for at in np.arange(-long / 2 + 1, long / 2 - 1.4, 2.6):
            corners = [(at, row), (at + 1.2, row), (at + 1.2, row + 1.4), (at, row + 1.4)]
            faces.append(
                Face(
                    np.array([(x, y, across) for x, y in corners]),
                    _GLASS,
                    (0, 0, np.sign(across)),
                    on_top=True,
                )
            )
    return Thing("", tuple(faces), place, -ALONG, (high, deep, long))


def _block(
    along: tuple[float, float],
    up: tuple[float, float],
    width: float,
    colour: Colour,
    sides: Colour | None = None,
) -> list[Face]:
    """Return the five upper faces of a block; the upright ones may be of another colour."""
    (left, right), (low, high), half = along, up, width / 2
    upright = sides or colour
    corners = {
        (1.0, 0.0, 0.0): [(right, low, -half), (right, low, half), (right, high, half), (right, high, -half)],
        (-1.0, 0.0, 0.0): [(left, low, -half), (left, low, half), (left, high, half), (left, high, -half)],
        (0.0, 0.0, 1.0): [(left, low, half), (right, low, half), (right, high, half), (left, high, half)],
        (0.0, 0.0, -1.0): [
            (left, low, -half),
            (right, low, -half),
            (right, high, -half),
            (left, high, -half),
        ],
        (0.0, 1.0, 0.0): [(left, high, -half), (right, high, -half), (right, high, half), (left, high, half)],
    }
    return [
        Face(np.array(points), _lit(colour if normal[1] else upright, normal), normal)
        for normal, points in corners.items()
    ]


def _wheels(half: float, width: float) -> list[Face]:
    places = [(at, side * (width / 2 + 0.01)) for at in (-half * 0.62, half * 0.62) for side in (-1, 1)]
    return [
        Face(_circle(at, 0.31, 0.31, across), _TYRE, (0, 0, np.sign(across)), on_top=True)
        for at, across in places
    ]


def _lights(half: float, waist: float, width: float) -> list[Face]:
    faces = []
    for along, colour in ((half + 0.01, (236.0, 232.0, 206.0)), (-half - 0.01, (178.0, 22.0, 20.0))):
        for side in (-1, 1):
            across = (side * width * 0.46, side * width * 0.3)
            corners = [
                (along, high, at)
                for high, at in zip((0.6, 0.6, 0.8, 0.8), (*across, *across[::-1]), strict=True)
            ]
            faces.append(Face(np.array(corners) * (1, waist, 1), colour, (np.sign(along), 0, 0), on_top=True))
    return faces


def _pane(along: float, up: tuple[float, float], width: float) -> Face:
    low, high, half = *up, width / 2
    corners = [(along, low, -half), (along, low, half), (along, high, half), (along, high, -half)]
    return Face(np.array(corners), _GLASS, (np.sign(along), 0, 0), on_top=True)


def _circle(along: float, up: float, radius: float, across: float) -> NDArray[np.float64]:
    angles = np.linspace(0, 2 * np.pi, 13)[:-1]
    return np.stack((along + radius * np.cos(angles), up + radius * np.sin(angles), np.full(12, across)), 1)


def _lit(colour: Colour, normal: tuple[float, float, float]) -> Colour:
    share = 0.72 + 0.3 * float(np.dot(_LIGHT, normal))
    return (colour[0] * share, colour[1] * share, colour[2] * share)


def _painted(rng: np.random.Generator) -> Colour:
    red, green, blue = _PAINTS[int(rng.integers(len(_PAINTS)))] + rng.normal(0, 9, 3)
    return red, green, blue


def _dull(rng: np.random.Generator) -> Colour:
    red, green, blue = rng.uniform(30, 110) + rng.normal(0, 10, 3)
    return red, green, blue


def _built(rng: np.random.Generator) -> Colour:
    red, green, blue = _BUILT[int(rng.integers(len(_BUILT)))] + rng.normal(0, 12, 3)
    return red, green, blue
