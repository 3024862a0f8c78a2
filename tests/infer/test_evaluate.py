"""Maps against labels, window by window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outsize.data.scenes import LabelledScene, label_table, open_scenes
from outsize.errors import DataError
from outsize.infer import evaluate
from outsize.infer.evaluate import compare_map, num_windows
from outsize.progress import Reporter

WriteRaster = Callable[..., Path]
VALUES = (7, 0, 200)
TABLE = label_table(VALUES, ignore_value=99)


def _values(seed: int, shape: tuple[int, int] = (130, 170)) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.uint8(VALUES), shape)


@pytest.fixture
def scene(write_raster: WriteRaster) -> LabelledScene:
    labels = _values(1)
    labels[:20] = 99  # ignored
    labels[30:40] = 50  # nodata of the labels
    path = write_raster("a.tif", np.ones((1, 130, 170), np.uint8))
    write_raster("a_labels.tif", labels, nodata=50)
    return open_scenes([str(path)], "{stem}_labels.tif")[0]


@pytest.mark.parametrize("side_px", [64, 2048])
def test_counts_equal_numpy(
    write_raster: WriteRaster, scene: LabelledScene, monkeypatch: pytest.MonkeyPatch, side_px: int
) -> None:
    monkeypatch.setattr(evaluate, "_SIDE_PX", side_px)
    predicted = _values(2)
    predicted[:, 100:120] = 255
    map_path = write_raster("map.tif", predicted, nodata=255)
    with Reporter("quiet").bar("evaluate", num_windows(130, 170), "window") as bar:
        counts = compare_map(map_path, scene, TABLE, 3, bar)
    assert bar.done == bar.total == (9 if side_px == 64 else 1)
    truth = _values(1)
    counted = np.ones(truth.shape, bool)
    counted[:20] = counted[30:40] = False
    counted[:, 100:120] = False
    expected = [[np.count_nonzero(counted & (truth == t) & (predicted == p)) for p in VALUES] for t in VALUES]
    np.testing.assert_array_equal(counts, expected)
    assert counts.sum() == counted.sum()


def test_a_map_of_another_size_is_refused(write_raster: WriteRaster, scene: LabelledScene) -> None:
    map_path = write_raster("map.tif", _values(2, (130, 171)))
    with pytest.raises(DataError, match=r"map\.tif.*found 130 x 171 px, needed 130 x 170 px"):
        compare_map(map_path, scene, TABLE, 3)


def test_a_map_that_is_none_is_refused(write_raster: WriteRaster, scene: LabelledScene) -> None:
    map_path = write_raster("map.tif", _values(2).astype(np.float32))
    with pytest.raises(DataError, match=r"map\.tif is no class map: found 1 bands of float32"):
        compare_map(map_path, scene, TABLE, 3)
