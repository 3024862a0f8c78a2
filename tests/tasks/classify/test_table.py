"""The table of a prediction: what is written is read, and lines of other pictures stay."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from outsize.errors import RunError
from outsize.tasks.classify.table import Row, read_table, write_table


def test_rows_come_back_and_others_stay(tmp_path: Path) -> None:
    path, names = tmp_path / "classes.csv", ("cat", "class")
    write_table(path, names, {"a, b.png": Row("cat", (0.75, 0.25)), "c.png#3": Row("", (math.nan, math.nan))})
    write_table(path, names, {"d.png": Row("class", (0.125, 0.875)), "a, b.png": Row("class", (0.5, 0.5))})
    found = read_table(path, names)
    assert list(found) == ["a, b.png", "c.png#3", "d.png"]
    assert found["a, b.png"] == Row("class", (0.5, 0.5))
    assert found["c.png#3"].found == ""
    assert math.isnan(found["c.png#3"].share)
    assert read_table(path, names[::-1])["d.png"].shares == (0.875, 0.125)


def test_a_table_that_is_not_there_or_of_other_classes(tmp_path: Path) -> None:
    path = tmp_path / "classes.csv"
    with pytest.raises(RunError, match="outsize predict"):
        read_table(path, ("cat",))
    path.write_text("picture,class\n")
    with pytest.raises(RunError, match="cannot be understood"):
        read_table(path, ("cat",))
