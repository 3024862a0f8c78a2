"""Reads a COCO file: pictures, categories, and what is outlined in each picture; burns nothing."""

from __future__ import annotations

import errno
import gzip
import io
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from outsize.errors import DataError, explain
from outsize.files.plain import read_plain
from outsize.files.trees import json_tree
from outsize.units import format_bytes

MOST_TEXT_BYTES = 2**31  # LVIS has 1.1 GB
_MOST_SHRUNK = 50  # times: digits and the same few keys
_PART_BYTES = 64  # of memory for a number, a list or an entry of a table

Ring = tuple[float, ...]  # x and y of each corner in turn
Box = tuple[float, float, float, float]  # x, y, width, height


@dataclass(frozen=True)
class Rle:
    """A mask as runs of pixels outside and inside in turn, column by column."""

    size: tuple[int, int]  # height, width
    counts: tuple[int, ...] | str  # the text is the same numbers, packed


@dataclass(frozen=True)
class Annotation:
    """One object: its outline is the union of rings, or runs; where it has neither, only its box is known."""

    category: str
    rings: tuple[Ring, ...] = ()
    rle: Rle | None = None
    box: Box | None = None
    is_crowd: bool = False


@dataclass(frozen=True)
class CocoPicture:
    """A picture and all that is annotated in it."""

    file_name: str
    height: int
    width: int
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True)
class CocoFile:
    """What a COCO file holds; `has_addresses` where it says where to get the pictures."""

    path: Path
    categories: tuple[str, ...]
    pictures: tuple[CocoPicture, ...]
    has_addresses: bool = False


def read_coco(path: Path) -> CocoFile:
    """Read a COCO file, also gzipped.

    Numbers of annotations may occur twice, as in TACO: both count, unless they are the same in all. A picture that is
    listed twice is one picture with the annotations of both.
    """
    tree = _load(path)
    categories = _by_id(path, _rows(path, tree, "categories"), "category", "name")
    pictures = _rows(path, tree, "images")
    of_file = _by_id(path, pictures, "image", "file_name")
    found: dict[str, list[Annotation]] = {name: [] for name in of_file.values()}
    seen = set()
    for row in _rows(path, tree, "annotations"):
        number, image, category = (
            _key(path, row, key, "annotation") for key in ("id", "image_id", "category_id")
        )
        if image not in of_file:
            raise _wrong(
                path, f"annotation {number} is of no picture", f"image_id {image}", "the id of a picture"
            )
        if category not in categories:
            what = f"category_id {category}"
            raise _wrong(path, f"annotation {number} is of no category", what, "the id of a category")
        annotation = _annotation(path, row, categories[category])
        if (number, image, annotation) not in seen:
            seen.add((number, image, annotation))
            found[of_file[image]].append(annotation)
    sizes = {str(row["file_name"]): _size(path, row) for row in pictures}
    return CocoFile(
        path,
        tuple(categories.values()),
        tuple(CocoPicture(name, *sizes[name], tuple(each)) for name, each in found.items()),
        all(row.get("flickr_url") or row.get("coco_url") for row in pictures),
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        raw = read_plain(path, MOST_TEXT_BYTES)
        if path.suffix == ".gz":
            raw = _unpacked(raw)
        _refuse_bomb(raw)
        tree = json_tree(raw)
    except (OSError, EOFError, zlib.error) as error:
        what = getattr(error, "strerror", None) or error
        need, remedy = "a COCO file", "check data.root and data.labels"
        raise DataError(explain(f"labels {path} cannot be read", what, need, remedy)) from error
    except ValueError as error:
        raise _wrong(path, "it is no JSON", str(error), "a complete COCO file") from error
    if not isinstance(tree, dict):
        raise _wrong(
            path, "it is no COCO file", f"a JSON {type(tree).__name__}", "images, annotations, categories"
        )
    return tree


def _unpacked(packed: bytes) -> bytes:
    """Unpack no more than a COCO file has: real ones shrink to a fifth, or a tenth."""
    most_bytes = min(MOST_TEXT_BYTES, _MOST_SHRUNK * len(packed) + 2**20)
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        raw = file.read(most_bytes + 1)
    if len(raw) > most_bytes:
        raise OSError(
            errno.EFBIG, f"a bomb: more than {format_bytes(most_bytes)} in {format_bytes(len(packed))}"
        )
    return raw


def _refuse_bomb(raw: bytes) -> None:
    """Refuse text whose parts, a few bytes each, would take all memory."""
    need_bytes = _PART_BYTES * sum(map(raw.count, (b",", b"[", b"{")))
    free_bytes = psutil.virtual_memory().available
    if need_bytes > free_bytes:
        found = f"parts that take {format_bytes(need_bytes)}, and {format_bytes(free_bytes)} of memory free"
        raise OSError(errno.ENOMEM, found)


def _rows(path: Path, tree: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    rows = tree.get(key)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        found = f"keys {', '.join(list(tree)[:6])}" if rows is None else f"{key} that are no list of tables"
        raise _wrong(path, "it is no COCO file", found, f"a list of {key}")
    return rows


def _by_id(path: Path, rows: Iterable[Mapping[str, Any]], kind: str, key: str) -> dict[Any, str]:
    """Return what each id of a kind is called; an id of two says nothing."""
    found: dict[Any, str] = {}
    for row in rows:
        number, name = _key(path, row, "id", kind), str(_key(path, row, key, kind))
        if found.setdefault(number, name) != name:
            both = f"{found[number]} and {name}"
            raise _wrong(path, f"{kind} id {number} is there twice", both, f"one {key} for each id")
    return found


def _size(path: Path, row: Mapping[str, Any]) -> tuple[int, int]:
    size = tuple(_key(path, row, key, "image") for key in ("height", "width"))
    if not all(type(side) is int and 0 < side < 2**31 for side in size):
        found = " x ".join(map(str, size))
        raise _wrong(path, f"the size of {row['file_name']} is no size", found, "height and width in pixels")
    return size[0], size[1]


def _annotation(path: Path, row: Mapping[str, Any], category: str) -> Annotation:
    outline, box = row.get("segmentation"), row.get("bbox")
    place = f"annotation {row['id']}"
    rings, rle = [], None
    if isinstance(outline, dict):
        rle = _rle(path, outline, place)
    elif isinstance(outline, list):
        for ring in outline:
            if not isinstance(ring, list) or len(ring) % 2 or not _are_numbers(ring):
                raise _wrong(path, f"the outline of {place} is no polygon", str(ring)[:60], "x, y, x, y, ...")
            if len(ring) >= 6:  # two corners enclose nothing
                rings.append(tuple(float(number) for number in ring))
    elif outline is not None:
        raise _wrong(path, f"the outline of {place} is none", str(outline)[:60], "polygons or runs")
    if box is not None and (not isinstance(box, list) or len(box) != 4 or not _are_numbers(box)):
        raise _wrong(path, f"the box of {place} is none", str(box)[:60], "x, y, width, height")
    sides = None if box is None else (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
    return Annotation(category, tuple(rings), rle, sides, bool(row.get("iscrowd", 0)))


def _rle(path: Path, outline: Mapping[str, Any], place: str) -> Rle:
    size, counts = outline.get("size"), outline.get("counts")
    packed: tuple[int, ...] | str | None = counts if isinstance(counts, str) else None
    if isinstance(counts, list) and all(isinstance(count, int) and count >= 0 for count in counts):
        packed = tuple(counts)
    is_size = isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) for side in size)
    if not is_size or packed is None:
        raise _wrong(path, f"the runs of {place} cannot be read", str(outline)[:60], "size and counts")
    assert isinstance(size, list)
    return Rle((size[0], size[1]), packed)


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and abs(value) < 1e9 for value in values)


def _key(path: Path, row: Mapping[str, Any], key: str, what: str) -> Any:
    value = row.get(key)
    if value is None:
        raise _wrong(
            path, f"a key of {what} {row.get('id', '?')} is missing", f"no {key}", f"{key} for each {what}"
        )
    if not isinstance(value, int | str):
        raise _wrong(
            path, f"{key} of {what} {row.get('id', '?')} is none", repr(value)[:60], "a number or a text"
        )
    return value


def _wrong(path: Path, problem: str, found: str, need: str) -> DataError:
    remedy = "export the file again, or get it as it was published"
    return DataError(explain(f"{path}: {problem}", found, need, remedy))
