"""Label files of YOLO, one for each picture: a line for each box, in shares of the picture's width and height.

class  middle-x middle-y  width height
"""

from __future__ import annotations

from pathlib import Path

from outsize.data.boxes import Boxes, gather
from outsize.data.formats.boxed.lines import numbers_of, read_lines
from outsize.errors import DataError, explain


def read_yolo(path: Path, size: tuple[int, int]) -> Boxes:
    """Read the boxes of a picture of (height, width); labels are the numbers of classes."""
    height, width = size
    labels, sides = [], []
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if not words:
            continue
        place = f"{path}, line {number}"
        if len(words) != 5:
            need = "5: class, middle, width and height"
            raise DataError(
                explain(f"{place}: it is no box", f"{len(words)} columns", need, "export the file again")
            )
        label, x, y, across, down = numbers_of(words, place)
        if label != int(label) or label < 0:
            raise DataError(
                explain(f"{place}: the class is no number of one", words[0], "0, 1, 2, ...", "correct it")
            )
        if max(x, y, across, down) > 1.5:
            need, remedy = "shares of its width and height, 0 to 1", "divide by the size of the picture"
            raise DataError(explain(f"{place}: a box is not in shares of its picture", line, need, remedy))
        labels.append(str(int(label)))
        sides.append(
            [
                (x - across / 2) * width,
                (y - down / 2) * height,
                (x + across / 2) * width,
                (y + down / 2) * height,
            ]
        )
    return gather(sides, labels)
