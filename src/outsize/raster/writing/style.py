"""Writes the classes of a map as a QGIS style: opened in QGIS, the map shows names and colours by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from outsize.files.ownership import MADE_BY
from outsize.job import ClassSpec
from outsize.runs import write_text

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # what no XML may hold
_HEAD = f"""\
<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<!-- {MADE_BY} -->
<qgis version="3.22" styleCategories="Symbology">
  <pipe>
    <rasterrenderer type="paletted" band="1" alphaBand="-1" opacity="1" nodataColor="">
      <rasterTransparency/>
      <colorPalette>
"""
_TAIL = """\
      </colorPalette>
    </rasterrenderer>
    <brightnesscontrast brightness="0" contrast="0" gamma="1"/>
    <huesaturation saturation="0" grayscaleMode="0"/>
    <rasterresampler maxOversampling="2"/>
  </pipe>
  <blendMode>0</blendMode>
</qgis>
"""


def write_style(path: Path, classes: Sequence[ClassSpec]) -> None:
    """Write a paletted renderer; QGIS applies a .qml of the map's name on its own."""
    entries = [
        f'        <paletteEntry value="{each.value}" color="{_hex(each.colour)}" alpha="255"'
        f" label={quoteattr(_NO_XML.sub(' ', each.name))}/>\n"
        for each in classes
    ]
    write_text(path, _HEAD + "".join(entries) + _TAIL)


def _hex(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
