"""Reads PNG and JPEG pictures, upright: small files, decoded once as a whole."""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import DataError, UnsafeFileError, explain
from outsize.files.plain import is_plain
from outsize.raster.reading.info import SceneInfo
from outsize.raster.reading.safety import refuse_bomb
from outsize.raster.reading.worldfile import find_place, placed

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_PICTURE_PIXELS = 178_956_970
"""Pillow's own limit against decompression bombs; a picture is held in memory as a whole."""

_NUM_KEPT_BLOCKS = 4  # of at most 16 MiB each

_ORIENTATION = 274  # the EXIF tag that says how a camera was held

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_MODE_DTYPES = {"1": "uint8", "L": "uint8", "LA": "uint8", "P": "uint8", "RGB": "uint8", "RGBA": "uint8"}
_MODE_DTYPES |= {"I;16": "uint16", "I;16B": "uint16", "I;16L": "uint16"}


def has_picture_name(path: Path) -> bool:
    """Say whether a file is named as a PNG or JPEG picture."""
    return path.suffix.lower() in (".png", ".jpg", ".jpeg")


def is_picture(path: Path) -> bool:
    """Say whether a file is a PNG or JPEG picture, by its first bytes and not by its name."""
    is_plain(path)  # to open a pipe would wait forever
    with path.open("rb", buffering=0) as file:
        return file.read(8).startswith((_PNG, _JPEG))


class Picture:
    """An open PNG or JPEG; its head is read once, however much is asked of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._image = _open(path)
        self.orientation = _orientation(self._image)

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *_: object) -> None:
        self._image.close()

    def describe(self) -> SceneInfo:
        """Say what the picture is; its size is that of the upright one."""
        image, mode = self._image, self._image.mode
        if mode not in _MODE_DTYPES or _is_deep_colour(image):
            found = "16 bits per channel" if mode in _MODE_DTYPES else f"a picture of mode {mode}"
            raise DataError(
                explain(
                    f"{self.path} cannot be read as a picture",
                    found,
                    "grey (8 or 16 bit), indexed, RGB or RGBA",
                    "convert it to a GeoTIFF (gdal_translate)",
                )
            )
        bands = [band for band in image.getbands() if band != "A"]
        clear = image.info.get("transparency")
        nodata = float(clear) if isinstance(clear, int) and len(bands) == 1 else None
        size = (image.width, image.height) if self.orientation >= 5 else (image.height, image.width)
        refuse_bomb(self.path, *size)
        alpha = len(bands) + 1 if mode in ("LA", "RGBA") else None
        georef = placed(find_place(self.path), self.orientation, *size)
        names = ("",) * len(bands)
        return SceneInfo(
            self.path, *size, len(bands), _MODE_DTYPES[mode], nodata, names, size, georef, alpha_index=alpha
        )

    def load(self) -> None:
        """Decode it, to see whether it is whole."""
        try:
            self._image.load()
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(
                explain(
                    f"{self.path} cannot be decoded", error, "a complete picture", "copy or export it again"
                )
            ) from error

    def decode(self, shrink: int = 1, *, nearest: bool = False) -> NDArray[Any]:
        """Decode all of it to (bands, rows, columns), upright; an alpha channel comes last.

        An indexed picture gives its indexes, not its colours: label pictures store class ids this way. With `shrink`, a
        pixel is the mean of a square of so many a side, or where `nearest` the one in its middle.
        """
        import numpy as np
        from PIL import ImageOps

        self.load()
        image = self._image if self.orientation == 1 else ImageOps.exif_transpose(self._image)
        height, width = image.height // shrink, image.width // shrink
        is_mean = shrink > 1 and not nearest and image.mode in ("L", "RGB", "RGBA")
        pixels = np.asarray(image.reduce(shrink) if is_mean else image)
        if shrink > 1 and not is_mean:
            pixels = pixels[shrink // 2 :: shrink, shrink // 2 :: shrink]
        pixels = pixels[:height, :width]  # what is left of a square at the edge is no pixel
        # in the order of the file, the bands of a pixel side by side: a window is brought to planes, or not, when read
        pixels = np.ascontiguousarray(pixels, dtype=_MODE_DTYPES[self._image.mode])
        return pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)

    def count_values(self) -> NDArray[Any]:
        """Decode an 8-bit picture and count its values: (bands, 256). Quicker than an array of its pixels."""
        import numpy as np

        self.load()
        counts = np.array(self._image.histogram(), np.int64).reshape(-1, 256)
        if self._image.mode == "1":  # Pillow holds 255 where an array of it holds 1
            counts[:, 1], counts[:, 255] = counts[:, 255], 0
        return counts


def upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Turn rows and columns, the last two axes, of a picture that was stored in an EXIF orientation.

    The stored first row is, upright:   1 top   3 bottom   6 right   8 left;   2, 4, 7 and 5 the same, mirrored.
    """
    if orientation >= 5:
        pixels = pixels.swapaxes(-2, -1)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[..., ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[..., ::-1, :]
    return pixels


def _orientation(image: Image) -> int:
    """Return how the file's rows lie, as EXIF counts it: 1 is upright; 5 to 8 have columns for rows."""
    if "exif" not in image.info:  # for a PNG, Pillow would decode it all to look for EXIF at its end
        return 1
    try:
        found = image.getexif().get(_ORIENTATION)
    except (
        SyntaxError,
        ValueError,
        struct.error,
    ):  # EXIF that cannot be read says nothing; the pixels are there
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


@cache
def _keep_memory() -> None:
    """Let Pillow decode into the memory of the picture before: to get it again from the system takes a tenth more time.

    https://pillow.readthedocs.io/en/stable/reference/block_allocator.html
    """
    from PIL import Image

    Image.core.set_blocks_max(_NUM_KEPT_BLOCKS)  # type: ignore[attr-defined] # it is documented all the same


def _open(path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    _keep_memory()
    is_plain(path)
    try:
        return Image.open(path, formats=("PNG", "JPEG"))
    except Image.DecompressionBombError as error:
        raise UnsafeFileError(
            explain(
                f"{path} claims an impossible size",
                str(error).split(",")[0],
                f"at most {MAX_PICTURE_PIXELS:,} pixels in a picture",
                "store large scenes as tiled GeoTIFF",
            )
        ) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise DataError(
            explain(f"{path} is not a readable picture", error, "a PNG or JPEG", "copy or export it again")
        ) from error


def _is_deep_colour(image: Image) -> bool:
    # Pillow halves 16-bit colour to 8 bits without a word; only 16-bit grey survives.
    parts: Any = getattr(image, "tile", [])  # how the file holds its pixels
    return image.mode in ("RGB", "RGBA", "LA") and any(str(part[3]).endswith(";16B") for part in parts)
