"""Brings the bands of a scene into the order that a model was trained with, or says why it cannot."""

from __future__ import annotations

from collections.abc import Sequence

from outsize.errors import DataError, explain
from outsize.raster.read import SceneInfo


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
                "give a scene with the bands the model was trained on",
            )
        )
    theirs, ours = list(info.band_names), list(expected)
    if not all(theirs) or not all(ours) or theirs == ours:
        return None
    if sorted(theirs) != sorted(ours):
        raise DataError(
            explain(
                f"bands of {info.path} do not match the model",
                _listed(theirs),
                _listed(ours),
                "name the bands as in training (gdal_edit.py, band descriptions) or take another scene",
            )
        )
    return tuple(theirs.index(name) for name in ours)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "unnamed" for name in names)
