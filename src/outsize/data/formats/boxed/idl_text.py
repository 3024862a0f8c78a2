"""Lists of pictures with their boxes in one file, a line for each picture.

"images/000004.png": (505, 167, 529, 196), (609, 174, 653, 209);
"images/000005.png";

A box is left, top, right, bottom in pixels; a colon and a number behind it is its score.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from outsize.data.boxes import Boxes, gather
from outsize.data.formats.boxed.lines import numbers_of, read_lines
from outsize.errors import DataError, explain

_LINE = re.compile(r'\s*"([^"]+)"\s*(?::(.*))?$')
_BOX = re.compile(r"\(([^()]*)\)\s*(?::\s*([^,\s]+))?\s*(?:,|$)\s*")
_END = ";."


def read_idl(path: Path, label: str) -> Mapping[str, Boxes]:
    """Return the boxes of each picture by its name in the list; the list does not tell classes."""
    found: dict[str, Boxes] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        match = _LINE.match(line.strip().rstrip(_END))
        if match is None or not line.strip().endswith(tuple(_END)):
            raise _wrong(place, line)
        name, rest = match[1], (match[2] or "").strip()
        if name in found:
            need, remedy = "each picture once", "join the two lines"
            raise DataError(explain(f"{place}: a picture is listed twice", repr(name), need, remedy))
        found[name] = _boxes(rest, place, label)
    return found


def _boxes(text: str, place: str, label: str) -> Boxes:
    sides, scores, at = [], [], 0
    for match in _BOX.finditer(text):
        words = match[1].split(",")
        if match.start() != at or len(words) != 4:
            raise _wrong(place, text[at:])
        sides.append(numbers_of([each.strip() for each in words], place))
        scores.append(numbers_of([match[2]], place)[0] if match[2] else 1.0)
        at = match.end()
    if at != len(text):
        raise _wrong(place, text[at:])
    return gather(sides, [label] * len(sides), scores=scores)


def _wrong(place: str, text: str) -> DataError:
    need = '"picture": (left, top, right, bottom), ...;'
    return DataError(
        explain(f"{place}: it is no line of a list", repr(text[:60]), need, "export the list again")
    )
