"""Evaluation as a verb: scores, pictures, an area of interest, and runs that were moved."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import numpy as np
import pyogrio
import pytest
import rasterio
import shapely
import tomli_w
from PIL import Image
from rasterio.warp import transform_geom
from scipy import ndimage

from outsize.commands.predict import predict
from outsize.commands.results.evaluate import evaluate
from outsize.errors import DataError, RunError
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.tasks.subjects import short_names

QUIET = Reporter("quiet")


class _Heard(Reporter):
    """Keeps what was said."""

    def __init__(self) -> None:
        super().__init__("quiet")
        self.all: list[str] = []

    @property
    def text(self) -> str:
        """The last of it."""
        return self.all[-1]

    def say(self, event: str, text: str, **facts: object) -> None:
        self.all.append(text)


@pytest.fixture
def moved(predicted_run: Path, tmp_path: Path) -> RunFolder:
    """A predicted run that was moved since."""
    return RunFolder(Path(shutil.copytree(predicted_run, tmp_path / "moved")))


def _area(path: Path, scene: Path, rows: tuple[int, int], cols: tuple[int, int]) -> Path:
    """Write a rectangle of pixels in longitude and latitude."""
    with rasterio.open(scene) as file:
        corners = [file.transform @ at for at in ((cols[0], rows[0]), (cols[1], rows[1]))]
        box = shapely.box(*np.min(corners, axis=0), *np.max(corners, axis=0))
        degrees = transform_geom(file.crs, "EPSG:4326", shapely.segmentize(box, 5).__geo_interface__)
    shape = shapely.geometry.shape(degrees)
    pyogrio.raw.write(path, [shapely.to_wkb(shape)], [], [], geometry_type="Polygon", crs="EPSG:4326")
    return path


def _read(path: Path) -> np.ndarray:
    with rasterio.open(path) as file:
        return np.asarray(file.read(1))


def test_scores_places_and_reliability(moved: RunFolder, scenes: Path) -> None:
    result = evaluate(moved.path, split="test", reporter=QUIET)
    (scene,) = result["scenes"]
    assert scene["name"] == "test-2.tif"
    assert scene["mean_iou"] == result["mean_iou"]
    classes, truth = _read(moved.predictions / "test-2.tif"), _read(scenes / "test-2_labels.tif")
    confidence = _read(moved.predictions / "test-2_confidence.tif") / 250
    counted = (truth < 6) & (classes < 6)
    assert result["reliability"]["num_px"] == counted.sum()
    bins = np.minimum((confidence * 15 + 1e-9).astype(int), 14)
    error = sum(
        abs((classes == truth)[here].sum() - confidence[here].sum())
        for here in (counted & (bins == number) for number in range(15))
    )
    assert result["reliability"]["expected_calibration_error"] == pytest.approx(
        error / counted.sum(), abs=1e-5
    )
    (place,) = result["places"]  # a scene of 160 x 208 px is one place
    assert place["accuracy"] == result["pixel_accuracy"]
    with Image.open(moved.path / place["picture"]) as strip:
        assert strip.size == (4 * 208 + 24, 200)
    assert json.loads(moved.scores.read_text())["test"] == result


def test_pixels_without_an_answer_are_told(moved: RunFolder) -> None:
    heard = _Heard()
    assert "unanswered_px" not in evaluate(moved.path, split="test", reporter=heard)
    ledger = moved.predictions / "predict.json"
    held = json.loads(ledger.read_text())
    for entry in held["scenes"]:
        entry["unanswered_px"] = 1234
    ledger.write_text(json.dumps(held))
    result = evaluate(moved.path, split="test", reporter=heard)
    assert result["unanswered_px"] == result["scenes"][0]["unanswered_px"] == 1234
    assert any("1,234 pixels of test-2.tif got no class" in each for each in heard.all)
    ledger.write_text(json.dumps(held).replace("1234", '"many"'))
    with pytest.raises(RunError, match=r"predict\.json"):
        evaluate(moved.path, split="test", reporter=heard)


def test_outlines_are_scored(moved: RunFolder, scenes: Path) -> None:
    result = evaluate(moved.path, split="test", reporter=QUIET)
    classes, truth = _read(moved.predictions / "test-2.tif"), _read(scenes / "test-2_labels.tif")
    known = (truth < 6) & (classes < 6)
    tolerance_px = 0.0075 * np.hypot(*truth.shape)
    expected = {}
    for number, name in enumerate(result["classes"]):
        masks = [(each == number) & known for each in (classes, truth)]
        one, other = (mask & ~ndimage.binary_erosion(mask, border_value=1) for mask in masks)
        if not one.any() and not other.any():
            expected[name] = None
            continue
        shares = [
            np.mean(ndimage.distance_transform_edt(~there)[here] <= tolerance_px)
            if here.any() and there.any()
            else 0.0
            for here, there in ((one, other), (other, one))
        ]
        expected[name] = 2 * shares[0] * shares[1] / sum(shares) if sum(shares) else 0.0
    found = {name: row["bf"] for name, row in result["classes"].items()}
    assert found == {
        name: value if value is None else pytest.approx(value, abs=1e-6) for name, value in expected.items()
    }
    assert result["mean_bf"] == pytest.approx(
        np.mean([value for value in expected.values() if value is not None]), abs=1e-6
    )
    assert result["scenes"][0]["mean_bf"] == result["mean_bf"]
    assert list(result["boundary"]["pixels"]) == ["2", "5", "9", "12"]
    assert {name: row["num_scenes"] for name, row in result["classes"].items()} == {
        name: int((known & (truth == number)).any()) for number, name in enumerate(result["classes"])
    }


def test_a_published_result_is_printed_beside(moved: RunFolder) -> None:
    (name, *_) = evaluate(moved.path, split="test", reporter=QUIET)["classes"]
    cited = '[published]\nsource = "slides"\nscores = {mean_iou = 0.66822, weighted_iou = 0.83346}\n'
    cited += f"[published.classes.{name}]\niou = 0.90804\n"
    job = tomllib.loads(moved.job.read_text())
    job.pop("published", None)
    moved.job.write_text(tomli_w.dumps(job) + cited)
    heard = _Heard()
    result = evaluate(moved.path, split="test", reporter=heard)
    assert result["published"]["scores"]["mean_iou"] == 0.66822
    lines = [line.split() for line in heard.text.splitlines()]
    own = result["classes"][name]["iou"]
    assert [name, f"{own:.4f}", "0.9080"] in lines
    assert ["mean", "of", "classes", f"{result['mean_iou']:.4f}", "0.6682"] in lines
    assert ["mean", "of", "pixels", f"{result['weighted_iou']:.4f}", "0.8335"] in lines
    assert ["beside", "what", "was", "published:", "slides"] in lines


def test_pictures_of_an_earlier_evaluation_are_replaced(moved: RunFolder) -> None:
    moved.pictures.mkdir()
    for name in ("test-worst-3.png", "val-best-1.png"):
        (moved.pictures / name).write_bytes(b"old")
    evaluate(moved.path, split="test", reporter=QUIET)
    assert {path.name for path in moved.pictures.iterdir()} == {"test-best-1.png", "val-best-1.png"}


def test_only_an_area_is_scored(moved: RunFolder, scenes: Path, tmp_path: Path) -> None:
    area = _area(tmp_path / "area.gpkg", scenes / "test-2.tif", (20, 120), (30, 180))
    result = evaluate(moved.path, split="test", reporter=QUIET, aoi=area)
    classes, truth = _read(moved.predictions / "test-2.tif"), _read(scenes / "test-2_labels.tif")
    inside = np.zeros(truth.shape, bool)
    inside[20:120, 30:180] = True
    counted = inside & (truth < 6) & (classes < 6)
    assert result["num_px"] == counted.sum() < np.count_nonzero(truth < 6)
    assert result["pixel_accuracy"] == pytest.approx((classes == truth)[counted].mean(), abs=1e-6)
    assert result["reliability"]["num_px"] == counted.sum()
    assert result["aoi"] == str(area)


def test_only_an_area_is_predicted(moved: RunFolder, scenes: Path, tmp_path: Path) -> None:
    whole = _read(moved.predictions / "test-2.tif")
    area = _area(tmp_path / "area.geojson", scenes / "test-2.tif", (20, 60), (70, 180))
    elsewhere = Path(shutil.copy(scenes / "train-0.tif", tmp_path))
    with rasterio.open(elsewhere, "r+") as file:
        file.transform = rasterio.Affine.translation(50_000, 0) @ file.transform
    images = [scenes / "test-2.tif", elsewhere]
    found = predict(
        moved.path, images, out=tmp_path / "out", overrides=(), device_name="cpu", reporter=QUIET, aoi=area
    )
    assert [Path(each["scene"]).name for each in found] == ["test-2.tif"]  # the other is left out
    expected = np.full_like(whole, 255)
    expected[20:60, 70:180] = whole[20:60, 70:180]
    np.testing.assert_array_equal(_read(tmp_path / "out" / "test-2.tif"), expected)


def test_an_area_elsewhere_is_refused(moved: RunFolder, scenes: Path, tmp_path: Path) -> None:
    area = _area(tmp_path / "far.gpkg", scenes / "test-2.tif", (5000, 5100), (5000, 5100))
    with pytest.raises(DataError, match=r"far\.gpkg misses every scene"):
        evaluate(moved.path, split="test", reporter=QUIET, aoi=area)
    with pytest.raises(DataError, match=r"far\.gpkg misses every scene"):
        predict(
            moved.path,
            [scenes / "test-2.tif"],
            out=tmp_path / "out",
            overrides=(),
            device_name="cpu",
            reporter=QUIET,
            aoi=area,
        )
    assert not (tmp_path / "out").exists()
    assert not moved.scores.exists()


def test_a_map_that_is_gone_is_asked_for(moved: RunFolder) -> None:
    path = moved.predictions / "predict.json"
    ledger = json.loads(path.read_text())
    ledger["scenes"][0]["map"] = "/nowhere/test-2.tif"
    path.write_text(json.dumps(ledger))
    (moved.predictions / "test-2.tif").unlink()
    with pytest.raises(RunError, match=r"no map of test-2\.tif.*run `outsize predict"):
        evaluate(moved.path, split="test", reporter=QUIET)


def test_equal_names_are_told_apart() -> None:
    assert short_names([Path("/a/x.tif"), Path("/b/y.tif")]) == ["x.tif", "y.tif"]
    assert short_names([Path("/d/a/x.tif"), Path("/d/b/x.tif")]) == ["a/x.tif", "b/x.tif"]
