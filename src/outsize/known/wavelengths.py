"""Wavelengths of bands by the names in use, so that kernels go to the bands they were made for."""

from __future__ import annotations

import re

_NAMED_NM = {
    **dict.fromkeys(("coastal", "coastalaerosol", "aerosol", "ultrablue"), 443.0),
    **dict.fromkeys(("blue", "b"), 485.0),
    **dict.fromkeys(("green", "g"), 560.0),
    **dict.fromkeys(("pan", "panchromatic", "grey", "gray"), 590.0),
    "yellow": 605.0,
    **dict.fromkeys(("red", "r"), 665.0),
    **dict.fromkeys(("rededge", "rededge1", "re1"), 705.0),
    **dict.fromkeys(("rededge2", "re2"), 740.0),
    **dict.fromkeys(("rededge3", "re3"), 783.0),
    **dict.fromkeys(("nir", "nir1", "nearinfrared", "infrared", "n"), 842.0),
    **dict.fromkeys(("nir08", "nir8a", "narrownir", "nirnarrow"), 865.0),
    **dict.fromkeys(("nir2", "nir09", "watervapour", "watervapor"), 945.0),
    "cirrus": 1375.0,
    **dict.fromkeys(("swir", "swir1", "swir16"), 1610.0),
    **dict.fromkeys(("swir2", "swir22"), 2190.0),
}
# Landsat's plain B1, B2, ... differ from Sentinel-2's by what stands before: SR_B4, LC08_B4, L8_B4.
_SENTINEL_2 = dict(
    zip(
        ["1", "2", "3", "4", "5", "6", "7", "8", "8a", "9", "10", "11", "12"],
        (443.0, 490.0, 560.0, 665.0, 705.0, 740.0, 783.0, 842.0, 865.0, 945.0, 1375.0, 1610.0, 2190.0),
        strict=True,
    )
)
_LANDSAT_8 = dict(
    zip("123456789", (443.0, 482.0, 561.0, 655.0, 865.0, 1609.0, 2201.0, 590.0, 1373.0), strict=True)
)
_LANDSAT_5 = dict(zip("1234578", (485.0, 560.0, 660.0, 835.0, 1650.0, 2220.0, 710.0), strict=True))
_NUMBERED_NM = {
    "b": _SENTINEL_2,
    **dict.fromkeys(("srb", "lc08b", "lc09b", "l8b", "l9b"), _LANDSAT_8),
    **dict.fromkeys(("lt04b", "lt05b", "le07b", "l4b", "l5b", "l7b"), _LANDSAT_5),
}
_WRITTEN = re.compile(r"(\d+(?:\.\d+)?)\s*(nm|um|µm|μm)(?![a-z])")
_NUMBERED = re.compile(r"([a-z0-9]*b)0?(\d+a?)")


def wavelength_nm(band: str) -> float | None:
    """Return the central wavelength that a band's name stands for, e.g. of "red", "B8A", "SR_B4" or "665 nm"."""
    name = band.lower()
    if written := _WRITTEN.search(name):
        return float(written[1]) * (1.0 if written[2] == "nm" else 1000.0)
    words = re.findall(r"[a-z0-9]+", name)
    joined = "".join(words)
    numbered = _NUMBERED.fullmatch(joined)
    if joined in _NAMED_NM or (numbered and numbered[1] in _NUMBERED_NM):
        return _of_word(joined)
    # "Band 4 - Red" or "S2_B08": one word of it, unless two contradict each other
    found = {known for word in words if (known := _of_word(word)) is not None}
    return found.pop() if len(found) == 1 else None


def _of_word(word: str) -> float | None:
    if word in _NAMED_NM:
        return _NAMED_NM[word]
    numbered = _NUMBERED.fullmatch(word)
    return _NUMBERED_NM.get(numbered[1], {}).get(numbered[2]) if numbered else None
