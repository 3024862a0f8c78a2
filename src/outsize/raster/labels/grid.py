"""Says whether labels lie on the grid of their scene, and refuses those that nearly do."""

from __future__ import annotations

import math
from pathlib import Path

from outsize.errors import DataError, explain
from outsize.raster.georef import same_crs
from outsize.raster.reading import SceneInfo

MAX_SHIFT_PX = 0.1  # by which corners of labels may miss those of their scene: rounding, no more


def lie_on_grid(labels: SceneInfo, scene: SceneInfo) -> bool:
    """Say whether labels lie on their scene's grid; refuse those of its coordinate system that do not.

    False means: another coordinate system. Where one of the two has none, only the size can be compared.
    """
    has_places = labels.georef.crs_wkt is not None and scene.georef.crs_wkt is not None
    if has_places and not same_crs(labels.georef.crs_wkt, scene.georef.crs_wkt):
        return False
    if has_places:
        refuse_resolution(labels, scene, _ratio(labels.georef.resolution, scene.georef.resolution), 1.001)
    if (labels.height, labels.width) != (scene.height, scene.width):
        raise DataError(
            explain(
                f"labels {labels.path} do not fit their image {scene.path}",
                f"{labels.height} x {labels.width} px",
                f"{scene.height} x {scene.width} px",
                "label each pixel of the image, or cut both to one extent (gdalwarp -te)",
            )
        )
    shift_px = labels.largest_shift_px(scene) if has_places else 0.0
    if shift_px >= max(scene.height, scene.width):
        raise not_on_scene(labels.path, scene.path, f"labels {shift_px:,.0f} px away")
    if shift_px > MAX_SHIFT_PX:
        raise DataError(
            explain(
                f"labels {labels.path} do not lie on the grid of {scene.path}",
                f"corners {shift_px:.2f} px away",
                f"at most {MAX_SHIFT_PX} px",
                "bring them onto it (gdalwarp -r near -te ... -ts ...)",
            )
        )
    return True


def not_on_scene(labels: Path, scene: Path, found: str) -> DataError:
    """Say that labels lie elsewhere than their scene."""
    remedy = "check that they belong together and that both state the right coordinate system"
    return DataError(explain(f"labels {labels} miss the scene {scene}", found, "labels on the scene", remedy))


def refuse_resolution(labels: SceneInfo, scene: SceneInfo, ratio: float, limit: float) -> None:
    """Refuse labels whose pixels are `ratio` times as large as those of the scene, where that is too much."""
    if not 1 / limit <= ratio <= limit:
        raise DataError(
            explain(
                f"labels {labels.path} have another resolution than {scene.path}",
                f"pixels {ratio:.3g} times as large",
                "one label for each pixel",
                "bring them onto the scene's grid (gdalwarp -r near -tr ... -te ...) and look at the result",
            )
        )


def _ratio(one: tuple[float, float], other: tuple[float, float]) -> float:
    rows, cols = one[0] / other[0], one[1] / other[1]
    return rows if abs(math.log(rows)) > abs(math.log(cols)) else cols
