"""Label files of the KITTI object set, and results in the same form: a line for each box.

type truncated occluded alpha  left top right bottom  height width length  x y z  rotation_y  [score]

Columns are separated by spaces: 15 of them in labels, 16 in results. Pixels count from 0.
"""

from __future__ import annotations

from pathlib import Path

from outsize.data.boxes import Boxes, gather
from outsize.data.formats.boxed.lines import numbers_of, read_lines
from outsize.errors import DataError, explain

LABEL_COLUMNS, RESULT_COLUMNS = 15, 16


def read_kitti(path: Path, num_columns: int = LABEL_COLUMNS) -> Boxes:
    """Read the boxes of one picture; an empty file is a picture without any."""
    labels: list[str] = []
    rows: list[list[float]] = []  # of the columns behind the type
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if not words:
            continue
        place = f"{path}, line {number}"
        if len(words) != num_columns:
            need = f"{num_columns}, as a {'label' if num_columns == LABEL_COLUMNS else 'result'} of KITTI has"
            found = f"{len(words)} columns"
            raise DataError(explain(f"{place}: it is no box", found, need, "export the file again"))
        labels.append(words[0])
        rows.append(numbers_of(words[1:], place))
    return gather(
        [row[3:7] for row in rows],
        labels,
        scores=[row[-1] if num_columns == RESULT_COLUMNS else 1.0 for row in rows],
        truncated=[row[0] for row in rows],
        occluded=[row[1] for row in rows],
        alphas=[row[2] for row in rows],
    )


def kitti_lines(boxes: Boxes) -> str:
    """Return found boxes as a result file; what a detector of boxes does not know has KITTI's value for unknown."""
    unknown = "-1 -1 -1 -1000 -1000 -1000 -10"
    lines = []
    for sides, label, score, alpha in zip(boxes.sides, boxes.labels, boxes.scores, boxes.alphas, strict=True):
        place = " ".join(f"{each:.2f}" for each in sides)
        lines.append(f"{label} -1 -1 {alpha:g} {place} {unknown} {score:.6f}\n")
    return "".join(lines)
