"""Reads PNG and JPEG pictures: small files, decoded once as a whole, without a place on Earth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outsize.errors import DataError, UnsafeFileError, explain

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

MAX_PICTURE_PIXELS = 178_956_970
"""Pillow's own limit against decompression bombs; a picture is held in memory as a whole."""

_NUM_KEPT_BLOCKS = 4  # of at most 16 MiB each

_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff"
_MODE_DTYPES = {"1": "uint8", "L": "uint8", "LA": "uint8", "P": "uint8", "RGB": "uint8", "RGBA": "uint8"}
_MODE_DTYPES |= {"I;16": "uint16", "I;16B": "uint16", "I;16L": "uint16"}


def has_picture_name(path: Path) -> bool:
    """Say whether a file is named as a PNG or JPEG picture."""
    return path.suffix.lower() in (".png", ".jpg", ".jpeg")


def is_picture(path: Path) -> bool:
    """Say whether a file is a PNG or JPEG picture, by its first bytes and not by its name."""
    with path.open("rb", buffering=0) as file:
        return file.read(8).startswith((_PNG, _JPEG))


class Picture:
    """An open PNG or JPEG; its head is read once, however much is asked of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._image = _open(path)

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *_: object) -> None:
        self._image.close()

    def describe(self) -> tuple[int, int, int, str, bool, float | None]:
        """Return height, width, number of bands without alpha, dtype, whether there is alpha, and nodata."""
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
        return image.height, image.width, len(bands), _MODE_DTYPES[mode], mode in ("LA", "RGBA"), nodata

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

    def decode(self) -> NDArray[Any]:
        """Decode all of it to (bands, rows, columns); an alpha channel comes last.

        An indexed picture gives its indexes, not its colours: label pictures store class ids this way.
        """
        import numpy as np

        self.load()
        pixels = np.asarray(self._image)
        pixels = pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, 2, 0)
        return np.ascontiguousarray(pixels, dtype=_MODE_DTYPES[self._image.mode])

    def count_values(self) -> NDArray[Any]:
        """Decode an 8-bit picture and count its values: (bands, 256). Quicker than an array of its pixels."""
        import numpy as np

        self.load()
        counts = np.array(self._image.histogram(), np.int64).reshape(-1, 256)
        if self._image.mode == "1":  # Pillow holds 255 where an array of it holds 1
            counts[:, 1], counts[:, 255] = counts[:, 255], 0
        return counts


@cache
def _keep_memory() -> None:
    """Let Pillow decode into the memory of the picture before: to get it anew from the system takes a tenth more time.

    https://pillow.readthedocs.io/en/stable/reference/block_allocator.html
    """
    from PIL import Image

    Image.core.set_blocks_max(_NUM_KEPT_BLOCKS)  # type: ignore[attr-defined] # it is documented all the same


def _open(path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    _keep_memory()
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
