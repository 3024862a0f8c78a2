"""The QGIS style: well-formed whatever a class is called."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from outsize.job import ClassSpec
from outsize.raster.writing import write_style


def test_every_class_with_value_name_and_colour(tmp_path: Path) -> None:
    names = ("field", 'a "b" & <c>', "Straße")
    classes = [
        ClassSpec(name=name, value=10 * number, colour=(number, 16, 255)) for number, name in enumerate(names)
    ]
    write_style(tmp_path / "new" / "map.qml", classes)
    root = ElementTree.parse(tmp_path / "new" / "map.qml").getroot()
    renderer = root.find("pipe/rasterrenderer")
    assert renderer is not None
    assert (renderer.get("type"), renderer.get("band")) == ("paletted", "1")
    found = [(e.get("value"), e.get("label"), e.get("color")) for e in renderer.iter("paletteEntry")]
    assert found == [
        ("0", names[0], "#0010ff"),
        ("10", names[1], "#0110ff"),
        ("20", names[2], "#0210ff"),
    ]


def test_names_that_no_xml_may_hold_do_not_spoil_it(tmp_path: Path) -> None:
    write_style(tmp_path / "map.qml", [ClassSpec(name="a\x07\x1b\x00b\ufffe", value=0, colour=(0, 0, 0))])
    root = ElementTree.parse(tmp_path / "map.qml").getroot()
    assert [each.get("label") for each in root.iter("paletteEntry")] == ["a   b "]
