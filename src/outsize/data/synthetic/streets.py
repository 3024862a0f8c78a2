"""Street pictures drawn with labels in KITTI's form: easy, moderate and hard objects, and things that look like some.

furnish: things in metres -> seen by a camera, far ones first -> pixels
                                 '-- what of each is seen -----> truncated, occluded, box -> label file
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from outsize.data.boxes import IGNORED
from outsize.data.synthetic.street_things import Thing, furnish

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

SIZE = (375, 1242)  # height, width, as KITTI has them

_FOCAL, _MIDDLE, _HORIZON = 721.5, 609.6, 172.9  # px, at that width
_CAMERA_M = 1.65  # above the ground
_NEAREST_M, _LEAST_PX = 1.0, 14  # of a corner; of the height of a box that has a label of its own
_SEEN = (0.8, 0.45)  # share seen, from which an object is visible, or partly hidden
_HARDLY = 0.12  # below, nobody could label it
_GRAIN = 5.0


@dataclass(frozen=True, eq=False)
class Street:
    """A drawn picture and the lines of its label file."""

    pixels: NDArray[np.uint8]  # row, column, colour
    lines: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _SeenThing:
    """A thing as the camera has it."""

    thing: Thing
    faces: tuple[
        tuple[NDArray[np.float64], tuple[int, int, int]], ...
    ]  # corners (x, y) in px and colours, far first
    shadow: NDArray[np.float64]

    @property
    def sides(self) -> NDArray[np.float64]:
        """Left, top, right, bottom, wherever they are."""
        points = np.concatenate([each for each, _ in self.faces])
        return np.concatenate((points.min(0), points.max(0)))


def draw_street(seed: int, number: int, size: tuple[int, int] = SIZE) -> Street:
    """Draw picture `number`; the same arguments give the same picture."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng((seed, number))
    height, width = size
    picture, ids = Image.new("RGB", (width, height)), Image.new("L", (width, height))
    brush, marker = ImageDraw.Draw(picture), ImageDraw.Draw(ids)
    _draw_ground(brush, rng, size)
    seen = [each for thing in furnish(rng) if (each := _see(thing, size)) is not None]
    seen.sort(key=lambda each: -each.thing.place[1])
    for index, each in enumerate(seen, start=1):
        brush.polygon(_flat(each.shadow), (44, 44, 46))
        for points, colour in each.faces:
            brush.polygon(_flat(points), colour)
            marker.polygon(_flat(points), index)
    lines = _label_lines(seen, np.asarray(ids), size)
    return Street(_developed(np.asarray(picture), rng), tuple(lines))


def draw_streets(
    folder: Path, num: int, seed: int, *, first: int = 0, size: tuple[int, int] = SIZE, num_processes: int = 1
) -> None:
    """Write `image_2/000000.png` and `label_2/000000.txt` for each of `num` pictures."""
    for name in ("image_2", "label_2"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    save = partial(_save, folder, seed, size)
    numbers = range(first, first + num)
    if num_processes == 1:
        for number in numbers:
            save(number)
        return
    with ProcessPoolExecutor(num_processes) as pool:
        for _ in pool.map(save, numbers, chunksize=8):
            pass


def _save(folder: Path, seed: int, size: tuple[int, int], number: int) -> None:
    from PIL import Image

    street = draw_street(seed, number, size)
    (folder / f"label_2/{number:06d}.txt").write_text("".join(street.lines), encoding="ascii")
    Image.fromarray(street.pixels).save(folder / f"image_2/{number:06d}.png", compress_level=1)


def _see(thing: Thing, size: tuple[int, int]) -> _SeenThing | None:
    """Return the faces of a thing that look at the camera; None where it is behind it or out of the picture."""
    scale = size[1] / SIZE[1]
    corners = [_placed(face.points, thing) for face in thing.faces]
    if min(each[:, 2].min() for each in corners) < _NEAREST_M:
        return None
    faces = []
    for face, points in zip(thing.faces, corners, strict=True):
        outwards = _turned(np.array([face.normal]), thing.turn)[0]
        if any(face.normal) and float(outwards @ points.mean(0)) >= 0:
            continue
        red, green, blue = np.clip(face.colour, 0, 255).astype(int).tolist()
        order = (face.on_top, -float(np.square(points).sum(1).mean()))
        faces.append((order, _projected(points, scale), (red, green, blue)))
    faces.sort(key=lambda each: each[0])
    _, width, length = thing.extents
    long, wide = length / 2 + 0.15, width / 2 + 0.15
    ground = np.array([(long, 0, wide), (long, 0, -wide), (-long, 0, -wide), (-long, 0, wide)])
    seen = _SeenThing(thing, tuple(each[1:] for each in faces), _projected(_placed(ground, thing), scale))
    left, top, right, bottom = seen.sides
    return seen if right > 1 and bottom > 1 and left < size[1] - 1 and top < size[0] - 1 else None


def _turned(points: NDArray[np.float64], turn: float) -> NDArray[np.float64]:
    """Turn (along, up, across) to (right, down, forward) of the camera."""
    along, up, across = points.T
    cosine, sine = np.cos(turn), np.sin(turn)
    return np.stack((cosine * along + sine * across, -up, -sine * along + cosine * across), 1)


def _placed(points: NDArray[np.float64], thing: Thing) -> NDArray[np.float64]:
    right, forward = thing.place
    placed: NDArray[np.float64] = _turned(points, thing.turn) + np.array([right, _CAMERA_M, forward])
    return placed


def _projected(points: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """Return where the camera sees points (right, down, forward): (x, y) in px."""
    middle = np.array([_MIDDLE, _HORIZON])
    seen: NDArray[np.float64] = (points[:, :2] / points[:, 2:] * _FOCAL + middle) * scale
    return seen


def _flat(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.clip(points, -4000, 4000)]


def _draw_ground(brush: ImageDraw, rng: np.random.Generator, size: tuple[int, int]) -> None:
    """Draw sky, ground, road and its lines."""
    height, width = size
    scale = width / SIZE[1]
    horizon = int(_HORIZON * scale)
    top, low = rng.uniform((96, 130, 170), (190, 205, 225)), rng.uniform((190, 200, 205), (236, 238, 240))
    for row in range(horizon + 1):
        red, green, blue = (top + (low - top) * row / max(1, horizon)).astype(int).tolist()
        brush.line([(0, row), (width, row)], (red, green, blue))
    greens = rng.uniform((92, 96, 70), (140, 136, 120)).astype(int).tolist()
    brush.rectangle([0, horizon, width, height], (greens[0], greens[1], greens[2]))
    grey = int(rng.uniform(78, 122))
    strips = [((-11.5, 11.5), 1.35), ((-8.2, 8.2), 1.0)]  # pavements, road
    for (left, right), share in strips:
        ground = [(left, 2.0), (left, 300.0), (right, 300.0), (right, 2.0)]
        shade = min(255, int(grey * share))
        brush.polygon(_flat(_on_ground(ground, scale)), (shade, shade, shade))
    for lane in (0.0, 3.6):
        for far in np.arange(rng.uniform(2, 6), 80, 8):
            line = [(lane - 0.08, far), (lane - 0.08, far + 3), (lane + 0.08, far + 3), (lane + 0.08, far)]
            brush.polygon(_flat(_on_ground(line, scale)), (206, 206, 200))


def _on_ground(places: list[tuple[float, float]], scale: float) -> NDArray[np.float64]:
    return _projected(np.array([(right, _CAMERA_M, forward) for right, forward in places]), scale)


def _developed(pixels: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Light a picture unevenly, and give it grain, as a camera would."""
    from PIL import Image

    height, width = pixels.shape[:2]
    coarse = Image.fromarray(rng.normal(1, 0.09, (5, 12)).astype(np.float32))
    light = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC))[..., None]
    grain = rng.normal(0, _GRAIN, (height, width, 1)) + rng.normal(0, 2, (height, width, 3))
    developed = pixels * light * rng.uniform(0.72, 1.18) + grain
    clipped: NDArray[np.uint8] = np.clip(developed, 0, 255).astype(np.uint8)
    return clipped


def _label_lines(seen: list[_SeenThing], ids: NDArray[np.uint8], size: tuple[int, int]) -> Iterator[str]:
    """Describe the objects, near ones first; what nobody could label is a place that is ignored."""
    height, width = size
    counts = np.bincount(ids.ravel(), minlength=len(seen) + 1)
    least_px = _LEAST_PX * width / SIZE[1]
    for index, each in reversed(list(enumerate(seen, start=1))):
        if not each.thing.label:
            continue
        sides = each.sides
        cut = np.clip(sides, 0, np.array([width, height] * 2) - 1.0)
        extent, left = cut[2:] - cut[:2], sides[2:] - sides[:2]
        if extent.min() < 2:
            continue
        share = counts[index] / max(1, _silhouette_px(each, cut))
        if share < _HARDLY or extent[1] < least_px:
            yield _ignored_line(cut)
            continue
        occluded = next((number for number, least in enumerate(_SEEN) if share >= least), len(_SEEN))
        yield _object_line(each.thing, cut, 1 - extent.prod() / left.prod(), occluded)


def _silhouette_px(seen: _SeenThing, cut: NDArray[np.float64]) -> int:
    """Count the pixels that a thing would have if nothing stood before it."""
    from PIL import Image, ImageDraw

    left, top = np.floor(cut[:2])
    width, height = np.ceil(cut[2:] - (left, top)).astype(int) + 1
    mask = Image.new("L", (int(width), int(height)))
    for points, _ in seen.faces:
        ImageDraw.Draw(mask).polygon(_flat(points - (left, top)), 1)
    return int(np.asarray(mask).sum())


def _object_line(thing: Thing, sides: NDArray[np.float64], truncated: float, occluded: int) -> str:
    (right, forward), (height, width, length) = thing.place, thing.extents
    alpha = (thing.turn - np.arctan2(right, forward) + np.pi) % (2 * np.pi) - np.pi
    place = " ".join(f"{each:.2f}" for each in sides)
    about = (
        f"{height:.2f} {width:.2f} {length:.2f} {right:.2f} {_CAMERA_M:.2f} {forward:.2f} {thing.turn:.2f}"
    )
    return f"{thing.label} {max(0.0, truncated):.2f} {occluded} {alpha:.2f} {place} {about}\n"


def _ignored_line(sides: NDArray[np.float64]) -> str:
    place = " ".join(f"{each:.2f}" for each in sides)
    return f"{IGNORED} -1 -1 -10 {place} -1 -1 -1 -1000 -1000 -1000 -10\n"
