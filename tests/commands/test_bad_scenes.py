"""A scene that is wrong in one way is refused in one line by every verb, and nothing is left behind."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio


def rewritten(
    good: Path, path: Path, change: Callable[[Any], Any] = lambda pixels: pixels, **profile: Any
) -> Path:
    """Write a scene again with other pixels or another profile; names of bands are kept."""
    with rasterio.open(good) as file:
        pixels, names = change(file.read()), file.descriptions
        kept = {key: file.profile[key] for key in ("crs", "transform", "nodata")}
    shape = {"count": pixels.shape[0], "height": pixels.shape[1], "width": pixels.shape[2]}
    with rasterio.open(
        path, "w", **{"driver": "GTiff", "dtype": pixels.dtype, **kept, **shape, **profile}
    ) as file:
        file.write(pixels)
        file.descriptions = names[: shape["count"]]
    return path


def missing(good: Path, path: Path) -> None:
    path.unlink(missing_ok=True)


def truncated(good: Path, path: Path) -> None:
    path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])


def damaged(good: Path, path: Path) -> None:
    # whole to its end, but the compressed blocks in its middle are not
    rewritten(good, path, compress="deflate", tiled=True, blockxsize=64, blockysize=64)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 4096] = bytes(4096)
    path.write_bytes(data)


def zero_bytes(good: Path, path: Path) -> None:
    path.write_bytes(b"")


def no_image(good: Path, path: Path) -> None:
    path.write_bytes(b"these are no pixels, but words" * 20)


def all_nodata(good: Path, path: Path) -> None:
    rewritten(good, path, np.zeros_like, nodata=0)


def with_nan(good: Path, path: Path) -> None:
    def change(pixels: Any) -> Any:
        pixels = np.maximum(pixels, 1).astype(np.float32)
        pixels[1, 70, 90] = np.nan
        return pixels

    rewritten(good, path, change, nodata=None)


def three_bands(good: Path, path: Path) -> None:
    rewritten(good, path, lambda pixels: pixels[:3])


def tiff_bomb(good: Path, path: Path) -> None:
    side = 10**6
    size = {"height": side, "width": side, "blockxsize": 2**15, "blockysize": 2**15, "tiled": True}
    options = {"count": 4, "dtype": "uint8", "sparse_ok": True, "bigtiff": "yes", **size}
    with rasterio.open(path, "w", driver="GTiff", **options):
        pass


def picture_bomb(good: Path, path: Path) -> None:
    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = piece(b"IHDR", struct.pack(">IIBBBBB", 10**6, 10**6, 8, 2, 0, 0, 0))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + header + piece(b"IDAT", b"") + piece(b"IEND", b""))


def outside_vrt(good: Path, path: Path) -> None:
    path.write_text(vrt(str(good), good))


def remote_vrt(good: Path, path: Path) -> None:
    path.write_text(vrt("/vsicurl/https://example.com/scene.tif", good))


def vrt(source: str, like: Path) -> str:
    """Return a VRT over all bands of `source`, with the size of `like`."""
    with rasterio.open(like) as file:
        height, width, count = file.height, file.width, file.count
        names = file.descriptions
    bands = "".join(
        f'<VRTRasterBand dataType="UInt16" band="{band}"><Description>{names[band - 1]}</Description>'
        f'<SimpleSource><SourceFilename relativeToVRT="0">{source}</SourceFilename>'
        f"<SourceBand>{band}</SourceBand></SimpleSource></VRTRasterBand>"
        for band in range(1, count + 1)
    )
    return f'<VRTDataset rasterXSize="{width}" rasterYSize="{height}">{bands}</VRTDataset>'


# what is done to a scene, and what the refusal names besides the file
BAD_SCENES: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "missing": (missing, "no such file"),
    "truncated": (truncated, "bytes"),
    "damaged": (damaged, "rows"),
    "zero bytes": (zero_bytes, "0 bytes"),
    "no image": (no_image, "GeoTIFF"),
    "all nodata": (all_nodata, "nodata everywhere"),
    "NaN": (with_nan, "1 NaN"),
    "band mismatch": (three_bands, "3 (blue, green, red)"),
    "TIFF bomb": (tiff_bomb, "1,000,000 x 1,000,000"),
    "picture bomb": (picture_bomb, "1000000000000 pixels"),
    "VRT outside": (outside_vrt, "test-2.tif"),
    "VRT remote": (remote_vrt, "/vsicurl/https://example.com"),
}


every_bad_scene = pytest.mark.parametrize(("spoil", "found"), BAD_SCENES.values(), ids=BAD_SCENES)


@every_bad_scene
def test_predict_refuses(run, copied_run, scene, tmp_path, unchanged, spoil, found):
    bad = tmp_path / "bad.tif"
    spoil(scene, bad)
    unchanged()
    run("predict", copied_run, bad, "--out", tmp_path / "new" / "maps").refused(str(bad), found)


@pytest.mark.parametrize("name", BAD_SCENES)
def test_train_refuses(run, own_job, own_scenes, scene, unchanged, name):
    _refuse_at_train(run, own_job, own_scenes, scene, unchanged, "train-0.tif", name)


@pytest.mark.parametrize(
    "name", ["truncated", "damaged", "all nodata", "NaN", "band mismatch", "VRT outside"]
)
def test_train_refuses_a_scene_for_validation(run, own_job, own_scenes, scene, unchanged, name):
    _refuse_at_train(run, own_job, own_scenes, scene, unchanged, "val-1.tif", name)


def _refuse_at_train(run, job, own_scenes, scene, unchanged, file_name, name):
    spoil, found = BAD_SCENES[name]
    bad = own_scenes / file_name
    if spoil is missing:
        job.write_text(job.read_text().replace("/train-*.tif", f"/{file_name}"))
    spoil(scene, bad)
    unchanged()
    run("train", job).refused(str(bad), found)


@pytest.mark.parametrize("name", ["truncated", "zero bytes", "VRT remote"])
def test_plan_refuses(run, own_job, own_scenes, scene, unchanged, name):
    spoil, found = BAD_SCENES[name]
    bad = own_scenes / "train-0.tif"
    spoil(scene, bad)
    unchanged()
    run("plan", own_job).refused(str(bad), found)


@pytest.mark.parametrize(
    "name",
    ["missing", "truncated"]
    + [
        pytest.param(each, marks=pytest.mark.long)
        for each in ("zero bytes", "band mismatch", "NaN", "VRT outside")
    ],
)
def test_verify_refuses(run, own_run, own_scenes, scene, unchanged, name):
    spoil, found = BAD_SCENES[name]
    bad = own_scenes / "test-2.tif"
    spoil(scene, bad)
    unchanged()
    run("verify", own_run).refused(str(own_scenes / "test-"), "no such file" if spoil is missing else found)


@pytest.mark.parametrize(
    "name",
    [
        "missing",
        "truncated",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("zero bytes", "picture bomb")),
    ],
)
@pytest.mark.parametrize("which", ["labels", "image", "map"])
def test_evaluate_refuses(run, own_run, own_scenes, scene, unchanged, which, name):
    spoil, found = BAD_SCENES[name]
    files = {
        "labels": own_scenes / "test-2_labels.tif",
        "image": own_scenes / "test-2.tif",
        "map": own_run / "predictions" / "test-2.tif",
    }
    spoil(files["map"] if which == "map" else scene, files[which])
    unchanged()
    if name == "missing" and which != "labels":
        run("evaluate", own_run).refused("test-2.tif" if which == "map" else "no such file")
    else:
        run("evaluate", own_run).refused(str(files[which]), found)


def test_an_outside_reference_is_read_when_allowed(run, copied_run, scene, tmp_path):
    outside_vrt(scene, tmp_path / "seen.vrt")
    done = run("predict", copied_run, tmp_path / "seen.vrt", "--set", "data.allow_references=true")
    assert done.code == 0, done.err
    assert (copied_run / "predictions" / "seen.tif").is_file()


def test_a_bad_scene_among_good_ones_is_refused_before_any_is_begun(
    run, copied_run, scene, tmp_path, unchanged
):
    truncated(scene, tmp_path / "bad.tif")
    unchanged()
    run("predict", copied_run, scene, tmp_path / "bad.tif").refused("bad.tif")


def test_a_failed_prediction_leaves_an_earlier_map_alone(run, own_run, scene, tmp_path, unchanged):
    bad = tmp_path / "test-2.tif"
    with_nan(scene, bad)
    assert (own_run / "predictions" / "test-2.tif").is_file()
    unchanged()
    run("predict", own_run, bad).refused(str(bad))


@pytest.mark.parametrize("size", [(1, 1), (5, 7), (3, 200)])
def test_a_scene_smaller_than_the_stride_is_predicted(run, copied_run, scene, tmp_path, size):
    rewritten(scene, tmp_path / "small.tif", lambda pixels: pixels[:, 80 : 80 + size[0], : size[1]])
    done = run("predict", copied_run, tmp_path / "small.tif")
    assert done.code == 0, done.err
    with rasterio.open(copied_run / "predictions" / "small.tif") as file:
        assert file.shape == size
        assert file.read(1).max() < 6


def test_a_core_larger_than_the_scene_is_padded(run, copied_run, scene, tmp_path):
    maps = []
    for tile_px in (64, 512):
        done = run(
            "predict",
            copied_run,
            scene,
            "--out",
            tmp_path / str(tile_px),
            "--set",
            f"limits.tile_px={tile_px}",
        )
        assert done.code == 0, done.err
        with rasterio.open(tmp_path / str(tile_px) / "test-2.tif") as file:
            maps.append(file.read(1))
    assert (maps[0] == maps[1]).mean() > 0.9999  # sums in another order may turn a tie


def test_a_training_window_larger_than_the_scene_is_padded(run, own_job):
    done = run("train", own_job, "--set", "train.tile_px=256", "--set", "train.samples_per_epoch=2")
    assert done.code == 0, done.err


def _other_values(pixels):
    pixels[0, 11, 13] = 77
    return pixels


BAD_LABELS = {
    "missing": (missing, ("train-0_labels.tif", "are missing")),
    "truncated": (truncated, ("train-0_labels.tif", "bytes")),
    "another size": (
        lambda good, path: rewritten(good, path, lambda p: p[:, :-1]),
        ("159 x 208", "160 x 208"),
    ),
    "outside the classes": (
        lambda good, path: rewritten(good, path, _other_values),
        ("train-0_labels.tif", "77 at row 11, column 13", "[0, 1, 2, 3, 4, 5]"),
    ),
    "out of range": (
        lambda good, path: rewritten(good, path, lambda p: p.astype(np.int16) - 300),
        ("train-0_labels.tif", " to -45"),
    ),
}


@pytest.mark.parametrize(("spoil", "found"), BAD_LABELS.values(), ids=BAD_LABELS)
@pytest.mark.parametrize("split", ["train", "val"])
def test_train_refuses_labels(run, own_job, own_scenes, unchanged, split, spoil, found):
    number = ["train", "val"].index(split)
    bad = own_scenes / f"{split}-{number}_labels.tif"
    good = Path(shutil.copy(bad, own_scenes / "good.tif"))
    spoil(good, bad)
    unchanged()
    run("train", own_job).refused(*(part.replace("train-0", bad.name.partition("_")[0]) for part in found))
