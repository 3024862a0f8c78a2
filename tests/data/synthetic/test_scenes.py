"""Synthetic scenes: the same for the same seed, honest labels, too hard for single pixels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rasterio
import torch
from numpy.typing import NDArray
from rasterio.features import rasterize
from rasterio.windows import Window

from outsize.data.synthetic.layout import chance, lay_out
from outsize.data.synthetic.scenes import BANDS, CLASSES, LABEL_NODATA, draw_scene
from outsize.data.synthetic.spectra import BLOCK_PX, MATERIALS, draw_block
from outsize.errors import DataError, OutputError

SIDE_PX = 1024
SEEDS = (1, 2)


def read(path: Path) -> NDArray[np.generic]:
    with rasterio.open(path) as file:
        return file.read()


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("scenes")
    return [draw_scene(folder, f"s{seed}", SIDE_PX, SIDE_PX, seed) for seed in SEEDS]


def labels_of(scene: Path) -> Path:
    return scene.with_name(f"{scene.stem}_labels.tif")


def test_files_say_what_they_hold(scenes: list[Path]) -> None:
    with rasterio.open(scenes[0]) as image, rasterio.open(labels_of(scenes[0])) as labels:
        assert (image.height, image.width, image.count) == (SIDE_PX, SIDE_PX, 4)
        assert image.dtypes == ("uint16",) * 4
        assert image.descriptions == BANDS
        assert image.crs.to_epsg() == labels.crs.to_epsg() == 32633
        assert image.res == labels.res == (0.5, 0.5)
        assert (image.bounds.left, image.bounds.top) == (500000.0, 5500000.0)
        assert image.nodata == 0
        assert labels.nodata == LABEL_NODATA
        assert image.block_shapes == [(256, 256)] * 4
        assert labels.colormap(1)[4][:3] == CLASSES[4].colour


def test_nodata_is_one_wedge_in_pixels_and_labels_alike(scenes: list[Path]) -> None:
    pixels, labels = read(scenes[0]), read(labels_of(scenes[0]))[0]
    unseen = labels == LABEL_NODATA
    assert 0.02 < unseen.mean() < 0.05
    assert (pixels[:, unseen] == 0).all()
    assert (pixels[:, ~unseen] > 0).all()
    assert unseen[0, -1]
    assert not unseen[:, : SIDE_PX // 2].any()


@pytest.mark.parametrize("seed", range(10, 18))
def test_every_class_is_frequent(seed: int) -> None:
    rows = [[draw_block(seed, i, j)[1] for j in range(2)] for i in range(2)]
    shares = np.bincount(np.block(rows).ravel(), minlength=6) / SIDE_PX**2
    assert shares.min() > 0.03, shares
    assert shares.max() < 0.6, shares


def test_same_seed_same_scene_and_other_seed_other_scene(scenes: list[Path], tmp_path: Path) -> None:
    again = draw_scene(tmp_path, "again", SIDE_PX, SIDE_PX, SEEDS[0], num_workers=3, vectors=False)
    assert np.array_equal(read(again), read(scenes[0]))
    assert np.array_equal(read(labels_of(again)), read(labels_of(scenes[0])))
    assert (read(labels_of(scenes[1])) != read(labels_of(scenes[0]))).mean() > 0.3


def test_smaller_scene_is_the_corner_of_a_larger_one(scenes: list[Path], tmp_path: Path) -> None:
    small = draw_scene(tmp_path, "small", 600, 333, SEEDS[0], vectors=False, compress=None)
    seen = read(labels_of(small))[0] != LABEL_NODATA
    large = read(scenes[0])[:, :600, :333]
    assert seen.mean() > 0.9
    assert np.array_equal(read(small)[:, seen], large[:, seen])


def test_neighbouring_blocks_agree_on_what_lies_between_them() -> None:
    # A square across the corner of four blocks, laid out by itself, has the classes that they have there.
    half = BLOCK_PX // 2
    whole = np.block([[draw_block(3, i, j)[1] for j in range(2)] for i in range(2)])
    layout = lay_out(3, half, half, BLOCK_PX)
    polygons = [
        ({"type": "Polygon", "coordinates": [shape.ring[:, ::-1].tolist()]}, MATERIALS[shape.material].value)
        for shape in layout.shapes
    ]
    place = rasterio.Affine.translation(half, half)
    across = rasterize(polygons, out_shape=(BLOCK_PX, BLOCK_PX), transform=place, fill=99, dtype="uint8")
    assert (across == whole[half : half + BLOCK_PX, half : half + BLOCK_PX]).mean() > 0.9999


def test_light_has_no_step_between_blocks() -> None:
    left, right = (draw_block(4, 0, j)[0].astype(float) for j in range(2))
    row = np.concatenate([left, right], axis=2).mean(axis=(0, 1))
    steps = np.abs(np.diff(row))
    assert steps[BLOCK_PX - 1] < 4 * np.median(steps)


def test_polygons_agree_with_raster(scenes: list[Path]) -> None:
    import pyogrio.raw
    import shapely

    path = scenes[0].with_name(f"{scenes[0].stem}_labels.gpkg")
    meta, _, geometry, fields = pyogrio.raw.read(path, layer="labels")
    assert list(meta["fields"]) == ["class", "value"]
    assert meta["crs"] == "EPSG:32633"
    assert {(name, value) for name, value in zip(*fields, strict=True)} == {
        (c.name, c.value) for c in CLASSES
    }
    window = Window(256, 300, 700, 500)
    with rasterio.open(labels_of(scenes[0])) as labels:
        truth, place = labels.read(1, window=window), labels.window_transform(window)
    shapes = zip(shapely.from_wkb(geometry), fields[1], strict=True)
    burnt = rasterize(shapes, out_shape=truth.shape, transform=place, fill=LABEL_NODATA, dtype="uint8")
    assert (burnt == truth).mean() > 0.999


def test_single_pixels_do_not_tell_the_class(scenes: list[Path]) -> None:
    """A logistic regression on pixels, fitted to the end on one scene, stays below 0.6 on another."""
    (train_x, train_y), (test_x, test_y) = (_pixels(scene) for scene in scenes)
    some = np.random.default_rng(0).permutation(len(train_y))[:60_000]
    mean, spread = train_x.mean(0), train_x.std(0)
    model = torch.nn.Linear(4, 6)
    x, y = torch.from_numpy((train_x - mean) / spread)[some], torch.from_numpy(train_y)[some]
    solver = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    solver.step(closure)
    with torch.no_grad():
        guess = model(torch.from_numpy((test_x - mean) / spread)).argmax(1).numpy()
    table = np.bincount(test_y * 6 + guess, minlength=36).reshape(6, 6).astype(float)
    iou = np.diag(table) / (table.sum(0) + table.sum(1) - np.diag(table))
    assert 0.35 < iou.mean() < 0.6, iou


def _pixels(scene: Path) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    labels = read(labels_of(scene)).ravel()
    pixels = read(scene).reshape(4, -1).T.astype(np.float32)
    return pixels[labels != LABEL_NODATA], labels[labels != LABEL_NODATA].astype(np.int64)


def test_shadows_keep_the_label_of_the_ground_and_look_like_water() -> None:
    pixels, labels = draw_block(2, 0, 0)
    layout = lay_out(2, 0, 0, BLOCK_PX)
    rings = [{"type": "Polygon", "coordinates": [ring[:, ::-1].tolist()]} for ring in layout.shadows]
    place = rasterio.Affine.translation(0, 1e-9)  # rasterio warns of the identity
    shadow = rasterize(rings, out_shape=labels.shape, transform=place).astype(bool)
    field = shadow & (labels == 0)
    assert field.sum() > 500
    assert pixels[3][field].mean() < 0.6 * pixels[3][(labels == 0) & ~shadow].mean()


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_scene(tmp_path: Path) -> None:
    code = (
        "import re, sys; from pathlib import Path; from outsize.data.synthetic.scenes import draw_scene\n"
        "draw_scene(Path(sys.argv[1]), 'tall', int(sys.argv[2]), 512, 1, compress=None)\n"
        "print(int(re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]) // 1024)"
    )
    # Not ru_maxrss: a child inherits that from whoever started it.
    peaks = [
        int(subprocess.check_output([sys.executable, "-c", code, str(tmp_path), str(height)]))
        for height in (1024, 20_000)
    ]
    # Held whole, the taller one would take 74 MiB more for its pixels alone; GDAL's cache of 64 MiB may fill.
    assert peaks[1] < 400
    assert peaks[1] - peaks[0] < 70


def test_torch_is_not_needed_to_draw() -> None:
    code = "import sys, outsize.data.synthetic.scenes; sys.exit('torch' in sys.modules)"
    assert subprocess.call([sys.executable, "-c", code]) == 0


def test_progress_counts_every_row(tmp_path: Path) -> None:
    class Counter:
        rows = 0

        def advance(self, amount: int = 1) -> None:
            self.rows += amount

    counter = Counter()
    draw_scene(tmp_path, "counted", 1100, 64, 1, vectors=False, bar=counter)
    assert counter.rows == 1100


def test_place_on_earth_can_be_chosen(tmp_path: Path) -> None:
    scene = draw_scene(tmp_path, "s", 40, 50, 1, resolution_m=2.0, crs="EPSG:32719", origin=(3e5, 7e6))
    with rasterio.open(scene) as file:
        assert file.crs.to_epsg() == 32719
        assert tuple(file.bounds) == (3e5, 7e6 - 80, 3e5 + 100, 7e6)


@pytest.mark.parametrize(("height", "seed"), [(0, 1), (10, -1)])
def test_impossible_scene_is_refused(tmp_path: Path, height: int, seed: int) -> None:
    with pytest.raises(DataError, match="needed"):
        draw_scene(tmp_path, "s", height, 10, seed)
    assert not list(tmp_path.iterdir())


def test_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="choose another folder"):
        draw_scene(tmp_path / "file" / "sub", "s", 10, 10, 1)


def test_interrupted_scene_leaves_nothing(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    class Stopper:
        def advance(self, amount: int = 1) -> None:
            raise Stopped

    with pytest.raises(Stopped):
        draw_scene(tmp_path, "s", 600, 600, 1, bar=Stopper())
    assert not list(tmp_path.iterdir())


def test_chance_is_uniform_and_keyed_by_every_argument() -> None:
    cells = np.arange(-50, 50)
    numbers = chance(5, 1, cells[:, None], cells[None, :], 3)
    assert numbers.shape == (100, 100, 3)
    assert abs(numbers.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(numbers[1:, :, 0].ravel(), numbers[:-1, :, 0].ravel())[0, 1]) < 0.03
    assert (
        len({chance(*key, 1).item() for key in [(5, 1, 2, 3), (6, 1, 2, 3), (5, 2, 2, 3), (5, 1, 3, 2)]}) == 4
    )
    assert np.array_equal(chance(5, 1, 7, -9, 3)[0], numbers[57, 41])
