"""Annotation files of Pascal VOC, one for each picture.

Pixels count from 1 and the last one belongs to the box: xmin 1 is the left border of the picture, xmax its width the
right one. What is `difficult` is neither learnt nor scored, as in the challenge.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as Xml

from outsize.data.boxes import IGNORED, Boxes, gather
from outsize.data.formats.boxed.lines import numbers_of, read_lines
from outsize.errors import DataError, UnsafeFileError, explain

_SIDES = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class VocPicture:
    """The boxes of a picture, and its size where the file tells it."""

    boxes: Boxes
    size: tuple[int, int] | None  # height, width


def read_voc(path: Path) -> VocPicture:
    """Read the boxes of one picture."""
    text = "\n".join(read_lines(path, "an XML file of boxes"))
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        need, remedy = "elements alone", "export it again without them"
        raise UnsafeFileError(explain(f"labels {path} are refused", "definitions of entities", need, remedy))
    try:
        root = Xml.fromstring(text)
    except (Xml.ParseError, RecursionError) as error:
        raise DataError(
            explain(
                f"labels {path} are no XML", error, "an annotation of Pascal VOC", "export the file again"
            )
        ) from error
    rows, labels, truncated, occluded = [], [], [], []
    for number, each in enumerate(root.findall("object"), start=1):
        place = f"{path}, object {number}"
        name, box = (each.findtext("name") or "").strip(), each.find("bndbox")
        if box is None or not name:
            missing = "bndbox" if box is None else "name"
            raise _wrong(place, f"no {missing}", "a name and a bndbox")
        left, top, right, bottom = numbers_of([(box.findtext(side) or "").strip() for side in _SIDES], place)
        rows.append((left - 1, top - 1, right, bottom))
        labels.append(IGNORED if _is_set(each, "difficult") else name)
        truncated.append(0.5 if _is_set(each, "truncated") else 0.0)  # how much of it is not given
        occluded.append(1 if _is_set(each, "occluded") else 0)
    return VocPicture(gather(rows, labels, truncated=truncated, occluded=occluded), _size(root, path))


def _is_set(each: Xml.Element, key: str) -> bool:
    return (each.findtext(key) or "0").strip() == "1"


def _size(root: Xml.Element, path: Path) -> tuple[int, int] | None:
    size = root.find("size")
    if size is None:
        return None
    height, width = numbers_of(
        [(size.findtext(key) or "").strip() for key in ("height", "width")], f"{path}, size"
    )
    return (int(height), int(width)) if height > 0 and width > 0 else None  # 0: not filled in


def _wrong(place: str, found: str, need: str) -> DataError:
    return DataError(explain(f"{place}: it is no box", found, need, "export the file again"))
