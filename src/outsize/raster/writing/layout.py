"""Lays out an uncompressed tiled BigTIFF in advance, so that every block has a known place in the file.

    | header | directory | tables of block offsets and sizes | block 0 | block 1 | ...
                                                             ^ each `block_bytes` long, band after band

Nothing but pixels is written later: no directory to update, no cache to flush. A block that was never written
is a hole in the file, takes no disk space and reads as 0.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from outsize.raster.georef import NO_PLACE, GeoRef

_SHORT, _LONG, _LONG8, _ASCII = 3, 4, 16, 2
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
_SAMPLE_FORMATS = {"u": 1, "i": 2, "f": 3}
_PLACE_TAGS = (33550, 33922, 34264, 34735, 34736, 34737, 42112)  # GeoTIFF keys; GDAL's names of the bands
_PAGE_BYTES = 4096

Tag = tuple[int, int, int, bytes]  # number, type, count, value as it lies in the file


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Where each block of a file lies, and everything that comes before the first."""

    height: int
    width: int
    num_bands: int
    dtype: str
    block_px: int
    header: bytes

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks down and across."""
        return -(-self.height // self.block_px), -(-self.width // self.block_px)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one band."""
        return self.block_px**2 * np.dtype(self.dtype).itemsize

    @property
    def file_bytes(self) -> int:
        """Bytes of the file, holes included."""
        return len(self.header) + self.num_bands * self.grid[0] * self.grid[1] * self.block_bytes

    def offset(self, band: int, block_row: int, block_col: int) -> int:
        """Return where in the file a block begins; bands count from 0."""
        down, across = self.grid
        return len(self.header) + ((band * down + block_row) * across + block_col) * self.block_bytes


def lay_out(
    size: tuple[int, int], num_bands: int, dtype: str, block_px: int, georef: GeoRef, nodata: float | None
) -> BlockLayout:
    """Plan a file of `size` (height, width) whose blocks are `block_px` square, a multiple of 16."""
    empty = BlockLayout(*size, num_bands, dtype, block_px, b"")
    num_blocks = num_bands * empty.grid[0] * empty.grid[1]
    tags = _image_tags(empty) + _place_tags(georef, num_bands)
    if nodata is not None:
        text = (str(int(nodata)) if float(nodata).is_integer() else repr(float(nodata))).encode() + b"\0"
        tags.append((42113, _ASCII, len(text), text))
    sizes = np.full(num_blocks, empty.block_bytes, "<u8").tobytes()
    tags.append((325, _LONG8, num_blocks, sizes))
    # The table of offsets needs the length of a header that holds the table: measure it with a dummy first.
    start = len(_assemble([*tags, (324, _LONG8, num_blocks, sizes)]))
    offsets = (np.arange(num_blocks, dtype="<u8") * empty.block_bytes + start).astype("<u8").tobytes()
    header = _assemble([*tags, (324, _LONG8, num_blocks, offsets)])
    return BlockLayout(*size, num_bands, dtype, block_px, header)


def _image_tags(layout: BlockLayout) -> list[Tag]:
    kind, bands = np.dtype(layout.dtype), layout.num_bands
    tags = [
        _numbers(256, _LONG, layout.width),
        _numbers(257, _LONG, layout.height),
        _numbers(258, _SHORT, *[kind.itemsize * 8] * bands),
        _numbers(259, _SHORT, 1),  # not compressed
        _numbers(262, _SHORT, 1),  # 0 is black
        _numbers(277, _SHORT, bands),
        _numbers(284, _SHORT, 1 if bands == 1 else 2),  # band after band
        _numbers(322, _SHORT, layout.block_px),
        _numbers(323, _SHORT, layout.block_px),
        _numbers(339, _SHORT, *[_SAMPLE_FORMATS[kind.kind]] * bands),
    ]
    if bands > 1:
        tags.append(_numbers(338, _SHORT, *[0] * (bands - 1)))  # further bands are data, not alpha
    return tags


def _numbers(tag: int, kind: int, *values: int) -> Tag:
    return tag, kind, len(values), struct.pack(f"<{len(values)}{'H' if kind == _SHORT else 'I'}", *values)


def _assemble(tags: list[Tag]) -> bytes:
    """Write header, directory and long values, padded to a whole page."""
    tags = sorted(tags)
    directory, values = struct.pack("<2sHHHQQ", b"II", 43, 8, 0, 16, len(tags)), b""
    values_start = 16 + 8 + 20 * len(tags) + 8
    for number, kind, count, value in tags:
        if len(value) <= 8:
            place = value.ljust(8, b"\0")
        else:
            place = struct.pack("<Q", values_start + len(values))
            values += value + b"\0" * (-len(value) % 8)
        directory += struct.pack("<HHQ", number, kind, count) + place
    whole = directory + struct.pack("<Q", 0) + values
    return whole + b"\0" * (-len(whole) % _PAGE_BYTES)


def _place_tags(georef: GeoRef, num_bands: int) -> list[Tag]:
    """Let GDAL write a file of 16 x 16 px at the same place, and take over its words for the place."""
    from affine import Affine
    from rasterio.io import MemoryFile

    if georef == NO_PLACE:
        return []
    options = {"width": 16, "height": 16, "count": num_bands, "dtype": "uint8", "BIGTIFF": "YES"}
    if georef.crs_wkt is not None:
        options["crs"] = georef.crs_wkt
    with MemoryFile() as memory:
        with memory.open(driver="GTiff", transform=Affine(*georef.transform), ENDIANNESS="LITTLE", **options):
            pass
        return [tag for tag in _parse(memory.read()) if tag[0] in _PLACE_TAGS]


def _parse(file: bytes) -> list[Tag]:
    (start,) = struct.unpack_from("<Q", file, 8)
    (num_tags,) = struct.unpack_from("<Q", file, start)
    tags: list[Tag] = []
    for index in range(num_tags):
        entry = start + 8 + 20 * index
        number, kind, count = struct.unpack_from("<HHQ", file, entry)
        num_bytes = _TYPE_BYTES[kind] * count
        place = entry + 12 if num_bytes <= 8 else struct.unpack_from("<Q", file, entry + 12)[0]
        tags.append((number, kind, count, file[place : place + num_bytes]))
    return tags
