"""What the section on data says of its classes."""

from __future__ import annotations

import pytest

from outsize.errors import JobError
from outsize.job import DataSection


def test_a_class_that_is_none_is_named() -> None:
    classes = [{"name": "tree", "value": 1}, {"name": "ground", "value": 0}]
    data = DataSection.model_validate({"classes": classes, "outside": "grund", "all_polygons": "tree"})
    assert data.class_value("all_polygons") == 1
    with pytest.raises(
        JobError, match=r"data\.outside names no class: found 'grund', needed one of ground, tree"
    ):
        data.class_value("outside")
