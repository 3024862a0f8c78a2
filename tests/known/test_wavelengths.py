"""Wavelengths by the names that bands go by."""

import pytest

from outsize.known.wavelengths import wavelength_nm


@pytest.mark.parametrize(
    ("band", "nm"),
    [
        ("red", 665),
        ("Red", 665),
        ("R", 665),
        ("B04", 665),
        ("B4", 665),
        ("S2_B08", 842),
        ("B8A", 865),
        ("B12", 2190),
        ("SR_B4", 655),
        ("SR_B5", 865),
        ("LC08_B2", 482),
        ("LE07_B3", 660),
        ("Red Edge 1", 705),
        ("red-edge", 705),
        ("Band 4 - Red", 665),
        ("665nm", 665),
        ("reflectance 0.842 um", 842),
        ("thermal 10.9µm", 10900),
        ("nir", 842),
        ("swir2", 2190),
    ],
)
def test_known(band: str, nm: float) -> None:
    assert wavelength_nm(band) == pytest.approx(nm)


@pytest.mark.parametrize("band", ["", "dem", "vv", "band 4", "B13", "SR_B10", "red minus nir", "ndvi", "4"])
def test_unknown(band: str) -> None:
    assert wavelength_nm(band) is None
