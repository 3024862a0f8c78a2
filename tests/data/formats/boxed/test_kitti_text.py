"""KITTI's text is read line by line, and what is wrong is told by file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from outsize.data.boxes import gather
from outsize.data.formats.boxed import kitti_lines, read_kitti
from outsize.errors import DataError

_CAR = "Car 0.20 1 -1.67 657.39 190.13 700.07 223.39 1.41 1.58 4.36 3.18 2.27 34.38 -1.58"


def written(folder: Path, text: str) -> Path:
    path = folder / "000002.txt"
    path.write_text(text)
    return path


def test_a_label_file_is_read(tmp_path: Path) -> None:
    boxes = read_kitti(
        written(tmp_path, f"{_CAR}\n\nDontCare -1 -1 -10 1 2 3 4 -1 -1 -1 -1000 -1000 -1000 -10\n")
    )
    assert boxes.labels.tolist() == ["Car", "DontCare"]
    assert boxes.sides[0].tolist() == [657.39, 190.13, 700.07, 223.39]
    assert (boxes.truncated[0], boxes.occluded[0], boxes.alphas[0]) == (0.2, 1, -1.67)
    assert len(read_kitti(written(tmp_path, ""))) == 0


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = gather([[1.25, 2, 30.5, 40]], ["Cyclist"], scores=[0.75])
    again = read_kitti(written(tmp_path, kitti_lines(found)), 16)
    assert again.labels.tolist() == ["Cyclist"]
    assert (again.sides.tolist(), again.scores.tolist()) == (found.sides.tolist(), [0.75])
    assert not again.have_angles


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("Car 0.2 1 -1.6 657.39 190.13", "line 2: it is no box: found 6 columns, needed 15"),
        (f"{_CAR} 0.5", "line 2: it is no box: found 16 columns"),
        (_CAR.replace("190.13", "nan"), "line 2: a column is no number: found 'nan'"),
        (_CAR.replace("190.13", "190,13"), "line 2: a column is no number: found '190,13'"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(DataError, match=r"000002[.]txt, ") as error:
        read_kitti(written(tmp_path, f"{_CAR}\n{line}\n"))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"a[.]txt cannot be read"):
        read_kitti(tmp_path / "a.txt")
    with pytest.raises(DataError, match=r"b[.]txt cannot be read"):
        read_kitti(tmp_path / "b.txt")
