"""Refuses files that ask for more than their own pixels: remote or outside references, XML tricks, bombs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.parsers import expat

from outsize.errors import DataError, UnsafeFileError, explain
from outsize.units import format_pixels

MAX_PIXELS = 10**11
"""Largest scene that is believed: 316,000 x 316,000 px. A bomb claims 10^12 in a header of 100 bytes."""

# Formats whose files hold their own pixels (VRT is read by `refuse_references` first). Others (WMS, STAC,
# tile indexes, database connections) fetch pixels from elsewhere as soon as they are opened.
SELF_CONTAINED_DRIVERS = (
    *("GTiff", "VRT", "PNG", "JPEG", "JP2OpenJPEG", "JP2ECW", "JP2KAK", "JPEGXL", "WEBP", "BMP", "GIF"),
    *("ENVI", "EHdr", "HFA", "AAIGrid", "NITF", "netCDF", "HDF5", "HDF4", "GRIB", "ERS", "PCIDSK", "SRTMHGT"),
    *(
        "ISIS3",
        "PDS",
        "PDS4",
        "FITS",
        "GPKG",
        "XYZ",
        "RST",
        "SAGA",
        "RRASTER",
        "KEA",
        "LCP",
        "USGSDEM",
        "DTED",
    ),
)

_MAX_VRT_BYTES = 64 * 2**20
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+:/|/vsi|\\\\|//")  # http:/, s3:/, /vsicurl/, \\server\share
_SHARED_REMEDY = (
    "copy the pixels into one GeoTIFF (gdal_translate), or allow references if you trust the file"
)


def is_address(name: str) -> bool:
    """Say whether a name is an address (a web address, a GDAL virtual path) and not a file's path."""
    return _ADDRESS.match(name) is not None


def refuse_address(name: str) -> None:
    """Refuse a scene given by address."""
    if is_address(name):
        raise UnsafeFileError(
            explain(f"{name} is not a local file", "an address", "the path of a file", _SHARED_REMEDY)
        )


def refuse_bomb(path: Path | str, height: int, width: int) -> None:
    """Refuse a header that claims more pixels than any scene has."""
    if height * width > MAX_PIXELS:
        raise UnsafeFileError(
            explain(
                f"{path} claims an impossible size",
                format_pixels(height, width),
                f"at most {MAX_PIXELS:,} pixels",
                "check where the file comes from, or cut it into several scenes",
            )
        )


def refuse_references(path: Path) -> None:
    """Refuse an XML or JSON file, unless it is a VRT made of plain images in or below its own folder."""
    start = _first_bytes(path)
    if start[:1] == b"{":
        raise _unsafe(path, "a JSON document", "an image that holds its own pixels")
    if start[:1] != b"<" and not start.startswith((b"\xfe\xff", b"\xff\xfe")):
        return
    vrt = _parse_vrt(path)
    folder = path.resolve().parent
    for name, is_relative in vrt.sources:
        if not name.strip() or is_address(name):
            raise _unsafe(path, f"a reference to {name!r}", "local files only")
        source = (path.parent / name if is_relative else Path(name)).resolve()
        if not source.is_relative_to(folder):
            raise _unsafe(path, f"a reference to {source}", f"files inside {folder}")
        if not source.is_file():
            raise DataError(
                explain(f"{path} refers to a missing file", source, "an image", "restore the file or the VRT")
            )
        if _first_bytes(source)[:1] in (b"<", b"{", b"\xfe", b"\xff") and not _is_picture(source):
            raise _unsafe(path, f"a reference to {source.name}, itself a reference", "images with own pixels")


@dataclass
class _Vrt:
    sources: list[tuple[str, bool]] = field(default_factory=list)


def _parse_vrt(path: Path) -> _Vrt:
    """Collect the sources of a VRT with a parser that refuses document types, thus entities of any kind."""
    size_bytes = path.stat().st_size
    if size_bytes > _MAX_VRT_BYTES:
        raise _unsafe(path, f"{size_bytes:,} bytes of XML", f"at most {_MAX_VRT_BYTES:,}")
    vrt, open_tags, text, relative = _Vrt(), [""], [""], [False]

    def start(tag: str, attributes: dict[str, str]) -> None:
        if len(open_tags) == 1 and tag != "VRTDataset":
            raise _unsafe(path, f"an XML document <{tag}>", "an image or a VRT")
        if tag == "VRTDataset" and "subClass" in attributes:
            raise _unsafe(path, f"a VRT of kind {attributes['subClass']}", "a plain VRT")
        open_tags.append(tag)
        text[0], relative[0] = "", attributes.get("relativeToVRT", "0").strip() == "1"

    def end(tag: str) -> None:
        open_tags.pop()
        if tag in ("SourceFilename", "SourceDataset"):
            vrt.sources.append((text[0], relative[0]))
        elif tag == "PixelFunctionLanguage" and text[0].strip().lower() != "c":
            raise _unsafe(path, f"a pixel function in {text[0].strip()}", "no program code")
        elif tag in ("PixelFunctionCode", "OpenOptions", "GDALWarpOptions"):
            raise _unsafe(path, f"<{tag}>", "sources alone")

    def data(more: str) -> None:
        text[0] += more

    def doctype(*_: object) -> None:
        raise _unsafe(path, "a document type declaration", "plain XML")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = data, doctype
    try:
        parser.Parse(path.read_bytes(), True)
    except expat.ExpatError as error:
        raise DataError(
            explain(f"{path} is not readable XML", error, "a VRT or an image", "write the file again")
        ) from error
    return vrt


def _first_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()


def _is_picture(path: Path) -> bool:
    return _first_bytes(path).startswith(b"\xff\xd8\xff")


def _unsafe(path: Path, found: str, needed: str) -> UnsafeFileError:
    return UnsafeFileError(explain(f"{path} is refused", found, needed, _SHARED_REMEDY))
