"""A scene predicted by several ranks: the same pixels, also after kills and by another number of them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from tests.ranks.gang import Gang
from tests.ranks.started import free_port, rank_of, run, start

from outsize import cli
from outsize.commands.predict import predict
from outsize.progress import Reporter
from outsize.ranks import World
from outsize.raster.writing.write import TileStore

_TILES = ("limits.tile_px=16",)  # 130 of them in a scene of 160 x 208 px
_ALL = ("predict.confidence=true", "predict.probabilities=true", *_TILES)
_LIMIT_S = 240


def _predict(
    world: World | None, run_path: Path, images: list[Path], out: Path, overrides: tuple[str, ...], **how: Any
) -> list[dict[str, Any]]:
    reporter = Reporter("quiet")
    return predict(
        run_path,
        images,
        out=out,
        overrides=overrides,
        device_name="cpu",
        reporter=reporter,
        world=world,
        **how,
    )


def _maps(folder: Path) -> dict[str, NDArray[Any]]:
    found = {}
    for path in sorted(folder.glob("*.tif")):
        with rasterio.open(path) as file:
            found[path.name] = file.read()
    return found


def _assert_same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]]) -> None:
    assert one.keys() == other.keys()
    assert one
    for name, pixels in one.items():
        np.testing.assert_array_equal(pixels, other[name], err_msg=name)


def _vectors(folder: Path) -> int:
    import pyogrio

    return sum(int(pyogrio.read_info(path)["features"]) for path in folder.glob("*.gpkg"))


@pytest.fixture(scope="module")
def expected(trained_run: Path, scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("expected")
    _predict(None, trained_run, [scenes / "test-2.tif"], out, _ALL)
    return out


def test_ranks_make_one_map_of_the_same_pixels(
    gang: Gang, trained_run: Path, scenes: Path, expected: Path, tmp_path: Path
) -> None:
    for size in (2, 3):
        out = tmp_path / f"{size}"
        told = gang.run(size, _predict, trained_run, [scenes / "test-2.tif"], out, _ALL)
        _assert_same(_maps(out), _maps(expected))
        assert _vectors(out) == _vectors(expected) > 0
        [entry] = json.loads((out / "predict.json").read_text())["scenes"]
        assert entry["num_tiles"] == 130
        assert [len(each) for each in told] == [1] * size
        names = {path.name for path in out.iterdir()}
        assert names == {path.name for path in expected.iterdir()}, "nothing else is left"


def test_small_scenes_go_to_one_rank_each(
    gang: Gang, trained_run: Path, scenes: Path, tmp_path: Path
) -> None:
    images = [scenes / f"{name}.tif" for name in ("train-0", "val-1", "test-2")]
    whole = ("limits.tile_px=256",)
    one = _predict(None, trained_run, images, tmp_path / "1", whole)
    two, _ = gang.run(2, _predict, trained_run, images, tmp_path / "2", whole)
    _assert_same(_maps(tmp_path / "1"), _maps(tmp_path / "2"))
    assert [each["scene"] for each in two] == [each["scene"] for each in one]
    assert len(json.loads((tmp_path / "2" / "predict.json").read_text())["scenes"]) == 3


def test_an_area_of_interest_holds_for_all_ranks(
    gang: Gang, trained_run: Path, scenes: Path, tmp_path: Path
) -> None:
    image, aoi = scenes / "test-2.tif", tmp_path / "aoi.geojson"
    with rasterio.open(image) as file:
        left, top = file.transform @ (30, 40)
        right, bottom = file.transform @ (140, 100)
        crs = file.crs.to_string()
    ring = [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
    feature = {"type": "Feature", "properties": {}, "geometry": {"type": "Polygon", "coordinates": [ring]}}
    named = {"type": "name", "properties": {"name": crs}}
    tree = {"type": "FeatureCollection", "crs": {"type": "name", **named}, "features": [feature]}
    aoi.write_text(json.dumps(tree))
    _predict(None, trained_run, [image], tmp_path / "1", _TILES, aoi=aoi)
    gang.run(2, partial(_predict, aoi=aoi), trained_run, [image], tmp_path / "2", _TILES)
    _assert_same(_maps(tmp_path / "1"), _maps(tmp_path / "2"))


def _verb(words: list[str], hold_at: int | None = None, only: int | None = None) -> None:
    """Be one rank that runs a command line; it stands still when so many tiles are done, or `only` that rank does."""
    if hold_at is not None and only in (None, int(os.environ["RANK"])):
        write, out = TileStore.write, Path(words[4])

        def held(*args: Any, **kwargs: Any) -> None:
            if _num_done(out) >= hold_at:
                Event().wait()
            write(*args, **kwargs)

        TileStore.write = held  # type: ignore[method-assign]
    sys.argv = ["outsize", *words]
    cli.main()


def _words(trained_run: Path, scenes: Path, out: Path) -> list[str]:
    changes = [word for change in _ALL for word in ("--set", change)]
    return ["predict", str(trained_run), str(scenes / "test-2.tif"), "--out", str(out), *changes]


def _num_done(out: Path) -> int:
    marks = out / ".test-2.work" / "tiles.done"
    try:
        return sum(map(bool, marks.read_bytes()))
    except FileNotFoundError:
        return 0


def _kill_at(num_done: int, folder: Path, words: list[str], size: int, *, only: int | None = None) -> int:
    """Kill the ranks when so many tiles are done, and return how many are kept."""
    out, port = Path(words[4]), free_port()
    ranks = [rank_of(rank, size, port) for rank in range(size)]
    started = start(folder, *ranks, work=partial(_verb, words, num_done + size, only))
    until_s = time.monotonic() + _LIMIT_S
    while _num_done(out) < num_done and all(each.is_alive() for each in started):
        assert time.monotonic() < until_s, [path.read_text() for path in folder.glob("*.txt")]
        time.sleep(0.0005)
    for rank, process in enumerate(started):
        assert process.pid is not None
        if only in (None, rank):
            os.kill(process.pid, signal.SIGKILL)
    for process in started:
        process.join()
    return _num_done(out)


@pytest.mark.parametrize(
    ("num_done", "before", "after"),
    [
        (60, 3, 1),
        pytest.param(5, 2, 3, marks=pytest.mark.long),
        *(pytest.param(at, *sizes, marks=pytest.mark.long)
          for at, sizes in zip((1, 16, 30, 45, 75, 90, 105, 125), [(2, 4), (4, 2), (1, 2), (2, 1)] * 2, strict=True)),
    ],
)  # fmt: skip
def test_killed_ranks_are_taken_up_by_another_number_of_them(
    num_done: int, before: int, after: int, trained_run: Path, scenes: Path, expected: Path, tmp_path: Path
) -> None:
    words = _words(trained_run, scenes, tmp_path / "out")
    kept = _kill_at(num_done, tmp_path, words, before)
    assert num_done <= kept < 130, "killed in the middle"
    port = free_port()
    said = run(tmp_path, *(rank_of(rank, after, port) for rank in range(after)), work=partial(_verb, words))
    bar = next(json.loads(line) for line in said[0].splitlines() if '"progress"' in line)
    assert bar["done"] >= kept, "what was kept is not done again"
    _assert_same(_maps(tmp_path / "out"), _maps(expected))
    assert not list((tmp_path / "out").glob(".*"))


def test_a_rank_that_dies_is_named_in_one_line(trained_run: Path, scenes: Path, tmp_path: Path) -> None:
    words = _words(trained_run, scenes, tmp_path / "out")
    kept = _kill_at(20, tmp_path, words, 2, only=1)
    lines = [line for line in (tmp_path / "0.txt").read_text().splitlines() if not line.startswith("{")]
    [line] = [each for each in lines if each.startswith("outsize:")]
    assert line.startswith("outsize: another rank was lost: found rank 1 in the tiles of test-2.tif"), lines
    assert 20 <= kept < 130, "what is done is kept for the next attempt"
    assert not (tmp_path / "out" / "test-2.tif").exists()


def test_what_is_wrong_is_told_once(trained_run: Path, tmp_path: Path) -> None:
    port, words = free_port(), ["predict", str(trained_run), str(tmp_path / "missing.tif")]
    said = run(tmp_path, *(rank_of(rank, 2, port) for rank in range(2)), work=partial(_verb, words))
    assert "missing.tif" in said[0]
    assert said[1] == ""
