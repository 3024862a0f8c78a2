"""Makes a VRT of our own out of a user's: the same images in the same places, each of them looked at before.

GDAL opens the text that is made here, and never the user's file: what is not known here does not get through.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from outsize.errors import DataError, explain
from outsize.files.plain import is_address
from outsize.raster.reading.safety import parse_xml, unsafe

_MAX_DEPTH = 16
_SOURCES = ("SimpleSource", "ComplexSource", "AveragedSource", "KernelFilteredSource", "NoDataFromMaskSource")
_KNOWN = {
    *("VRTDataset", "SRS", "GeoTransform", "GCPList", "GCP", "Metadata", "MDI", "VRTRasterBand", "MaskBand"),
    *("Description", "NoDataValue", "HideNoDataValue", "UnitType", "Offset", "Scale", "ColorInterp"),
    *("ColorTable", "Entry", "CategoryNames", "Category", *_SOURCES, "SourceFilename", "SourceBand"),
    *("SourceProperties", "SrcRect", "DstRect", "NODATA", "UseMaskBand", "ScaleOffset", "ScaleRatio", "LUT"),
    *("SrcMin", "SrcMax", "DstMin", "DstMax", "Exponent", "ColorTableComponent", "Kernel", "Size", "Coefs"),
}
_LEFT_OUT = {"Histograms", "GDALRasterAttributeTable", "OverviewList", "Overview"}


def remade_vrt(path: Path, check: Callable[[Path], object]) -> str:
    """Return the text of a VRT like that at `path`, made of plain images in or below its folder.

    `check` opens an image by itself, and raises where it is none.
    """
    root = _parsed(path)
    if root.tag != "VRTDataset":
        raise unsafe(path, f"an XML document <{root.tag}>", "an image or a VRT")
    _keep_known(path, root)
    folder = path.resolve().parent
    for holder in root.iter():
        for each in holder.findall("SourceFilename"):
            if holder.tag not in _SOURCES:
                raise unsafe(path, f"a file named by <{holder.tag}>", "sources alone")
            source = _resolved(path, folder, each)
            check(source)
            each.text = str(source)
            each.attrib = {"relativeToVRT": "0", "shared": "0"}
    return ElementTree.tostring(root, encoding="unicode")


def _parsed(path: Path) -> ElementTree.Element:
    builder, depth = ElementTree.TreeBuilder(), [0]

    def start(tag: str, attributes: dict[str, str]) -> None:
        depth[0] += 1
        if depth[0] > _MAX_DEPTH:
            raise unsafe(path, f"XML of more than {_MAX_DEPTH} levels", "a VRT")
        builder.start(tag, attributes)

    def end(tag: str) -> None:
        depth[0] -= 1
        builder.end(tag)

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = builder.data
    parse_xml(path, parser, "a VRT of plain images")
    return builder.close()


def _keep_known(path: Path, element: ElementTree.Element) -> None:
    if "subClass" in element.attrib:
        raise unsafe(path, f"a VRT of kind {element.attrib['subClass']}", "a plain VRT")
    if element.attrib.get("key", "").lower() == "overview_file":
        raise unsafe(path, "overviews in another file", "sources alone")
    for each in list(element):
        if each.tag in _LEFT_OUT:
            element.remove(each)
        elif each.tag not in _KNOWN:
            shown = f"<{each.tag}> {(each.text or '').strip()[:40]}".strip()
            raise unsafe(path, shown, "sources alone, and no program code")
        else:
            _keep_known(path, each)


def _resolved(path: Path, folder: Path, element: ElementTree.Element) -> Path:
    name, is_relative = element.text or "", element.attrib.get("relativeToVRT", "0").strip() == "1"
    if not name.strip() or is_address(name) or "\0" in name:
        raise unsafe(path, f"a reference to {name!r}", "local files only")
    source = (path.parent / name if is_relative else Path(name)).resolve()
    if not source.is_relative_to(folder):
        raise unsafe(path, f"a reference to {source}", f"files inside {folder}")
    if not source.is_file():
        raise DataError(
            explain(f"{path} refers to a missing file", source, "an image", "restore the file or the VRT")
        )
    if source.suffix.lower() == ".vrt":
        raise unsafe(path, f"a reference to {source.name}, itself a reference", "images with own pixels")
    return source
