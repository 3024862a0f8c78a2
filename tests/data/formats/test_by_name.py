"""Every format that a kind of labels may come in can be found by its name."""

from __future__ import annotations

from outsize.data.formats.by_name import FORMATS
from outsize.data.formats.layout import FORMATS_OF


def test_each_kind_of_labels_has_formats_that_are_there() -> None:
    named = {name for names in FORMATS_OF.values() for name in names}
    assert named == FORMATS.keys()
