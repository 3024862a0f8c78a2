"""Refuses files that ask for more than their own pixels: remote or outside references, bombs."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from outsize.errors import DataError, UnsafeFileError, explain
from outsize.files.plain import first_bytes, is_address, is_plain, read_plain
from outsize.units import format_bytes, format_pixels

MAX_PIXELS = 10**11
"""Largest scene that is believed: 316,000 x 316,000 px. A bomb claims 10^12 in a header of 100 bytes."""

MAX_BLOCK_BYTES = 2**30
"""Largest part that a scene may hold its pixels in: to read one pixel, GDAL takes memory for all of its block."""

MAX_XML_BYTES = 64 * 2**20
SHARED_REMEDY = (
    "copy the pixels into one GeoTIFF (gdal_translate), or set data.allow_references if you trust the file"
)
_ERDAS = b"EHFA_HEADER_TAG"


def refuse_address(name: str) -> None:
    """Refuse a scene given by address."""
    if is_address(name):
        raise UnsafeFileError(
            explain(f"{name} is not a local file", "an address", "the path of a file", SHARED_REMEDY)
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


def refuse_large_blocks(path: Path | str, block: tuple[int, int], pixel_bytes: int) -> None:
    """Refuse a scene of which no pixel can be read without gigabytes; `pixel_bytes` of all bands in a block."""
    block_bytes = block[0] * block[1] * pixel_bytes
    if block_bytes > MAX_BLOCK_BYTES:
        raise UnsafeFileError(
            explain(
                f"{path} holds its pixels in too large parts",
                f"blocks of {format_pixels(*block)}, {format_bytes(block_bytes)} each",
                f"at most {format_bytes(MAX_BLOCK_BYTES)} a block",
                "write it in tiles (gdal_translate -co TILED=YES)",
            )
        )


def files_beside(path: Path) -> list[Path]:
    """Return the files beside an image that GDAL would open as images, too: overviews and masks; refuse worse ones.

    It opens them as whatever they are: as a VRT, which may name any file, or an address.
    """
    for name in (f"{path.name}.aux.xml", f"{path.name}.AUX.XML"):
        if is_plain(path.with_name(name)):
            _refuse_overview_elsewhere(path.with_name(name))
    for each in (path.with_suffix(""), path):
        for suffix in (".aux", ".AUX"):
            beside = each.with_name(each.name + suffix)
            if is_plain(beside) and first_bytes(beside, len(_ERDAS)) == _ERDAS:
                raise unsafe(beside, "an auxiliary file of Erdas", "none, for it may name other files")
    names = [path.name + suffix for suffix in (".ovr", ".OVR", ".msk", ".MSK")]
    return [beside for beside in map(path.with_name, names) if is_plain(beside)]


def parse_xml(path: Path, parser: expat.XMLParserType, what: str) -> None:
    """Feed a file to a parser that refuses document types, thus entities of any kind."""

    def doctype(*_: object) -> None:
        raise unsafe(path, "a document type declaration", "plain XML")

    parser.StartDoctypeDeclHandler = doctype
    try:
        parser.Parse(read_plain(path, MAX_XML_BYTES), True)
    except (expat.ExpatError, OSError, LookupError, ValueError) as error:  # the latter two: odd encodings
        found = getattr(error, "strerror", None) or error
        raise DataError(
            explain(f"{path} is not readable XML", found, what, "write it again, or remove it")
        ) from error


def unsafe(path: Path, found: str, needed: str) -> UnsafeFileError:
    """Say that a file is refused."""
    return UnsafeFileError(explain(f"{path} is refused", found, needed, SHARED_REMEDY))


def begins_as_xml(path: Path) -> bool:
    """Say whether a file seems to be XML: errors about it are clearer, and nothing more depends on it."""
    return first_bytes(path, 64).removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"<"


def _refuse_overview_elsewhere(pam: Path) -> None:
    def start(tag: str, attributes: dict[str, str]) -> None:
        if tag.lower() == "mdi" and attributes.get("key", "").lower() == "overview_file":
            raise unsafe(pam, "overviews in another file", "an image that holds its own pixels")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parse_xml(pam, parser, "a PAM file")
