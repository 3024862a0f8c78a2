"""Brings the bands of a scene into the order that a model sees them in, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outsize.errors import DataError, JobError, explain
from outsize.raster.reading import SceneInfo


def band_order(expected: Sequence[str], info: SceneInfo) -> tuple[int, ...] | None:
    """Return which of the scene's bands the model sees first, second, ...; None where all stay in place.

    Bands go by name where both sides name them all, and by number only where one side names none.
    """
    if info.num_bands != len(expected):
        raise DataError(
            explain(
                f"bands of {info.path} do not match the model",
                f"{info.num_bands} ({_listed(info.band_names)})",
                f"{len(expected)} ({_listed(expected)})",
                "give a scene with these bands, or where nothing is trained yet correct data.bands",
            )
        )
    theirs, ours = list(info.band_names), list(expected)
    if not all(theirs) or not all(ours) or theirs == ours:
        return None
    # a name that is there twice does not say which of the two is meant
    if sorted(theirs) != sorted(ours) or len(set(ours)) < len(ours):
        raise DataError(
            explain(
                f"bands of {info.path} do not match the model",
                _listed(theirs),
                _listed(ours),
                "name the bands as in training (gdal_edit.py, band descriptions) or take another scene",
            )
        )
    return tuple(theirs.index(name) for name in ours)


def in_order(bands: Sequence[str], info: SceneInfo) -> SceneInfo:
    """Return a scene that is read in the order of `bands`; one whose names are others stays as it is."""
    are_the_same = sorted(info.band_names) == sorted(bands) and len(set(bands)) == len(bands)
    if not are_the_same or not info.band_indexes:
        return info
    order = band_order(bands, info)
    if order is None:
        return info
    indexes = tuple(info.band_indexes[band] for band in order)
    return replace(info, band_indexes=indexes, band_names=tuple(bands))


def misnamed(bands: Sequence[str], images: Sequence[SceneInfo]) -> list[JobError]:
    """Return what is wrong with data.bands where they are those of no image at all.

    Where they are those of some, it is the others that differ.
    """
    if not bands or not images or any(_has(bands, image) for image in images):
        return []
    first = images[0]
    names = own_bands(first)
    named = f": {_listed(names)}" if any(names) else ""
    need = f"the {first.num_bands} of {first.path.name}{named}"
    remedy = "name the bands of the files in data.bands, or leave it out"
    found = f"{len(bands)}: {_listed(bands)}"
    return [JobError(explain("data.bands are not those of the images", found, need, remedy))]


def own_bands(info: SceneInfo) -> tuple[str, ...]:
    """Return the names in the file; a colour picture (PNG, JPEG) has none, but its format says what they are."""
    is_colour_picture = not info.driver and info.num_bands == 3
    return ("red", "green", "blue") if is_colour_picture else info.band_names


def _has(bands: Sequence[str], info: SceneInfo) -> bool:
    try:
        band_order(bands, info)
    except DataError:
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "unnamed" for name in names)
