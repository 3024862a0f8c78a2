import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st

from outsize.errors import OutputError
from outsize.raster import disk
from outsize.raster.georef import NO_PLACE, GeoRef
from outsize.raster.reading import SceneInfo
from outsize.raster.writing import Layer, TileStore
from outsize.raster.writing import write as write_module
from outsize.raster.writing.layout import lay_out
from outsize.tiles.window import Window

RNG = np.random.default_rng(0)
WKT = rasterio.crs.CRS.from_epsg(32632).to_wkt()
ROTATED = GeoRef(WKT, (10.0, 0.5, 500_000.0, 0.25, -10.0, 5_000_000.0))
CLASSES = (Layer("classes", "uint8", 1, 255),)


def scene(height, width, georef=ROTATED):
    return SceneInfo(Path("a.tif"), height, width, 1, "uint8", None, ("",), (64, 64), georef)


def cores_of(height, width, step):
    return [Window(row, col, step, step) for row in range(0, height, step) for col in range(0, width, step)]


def read(path):
    with rasterio.open(path) as file:
        return file.read()


@pytest.mark.parametrize("step", [64, 128, 50])  # one block, four blocks, cores that share blocks
def test_cores_of_several_layers_come_back(tmp_path, step):
    classes = RNG.integers(0, 6, (150, 210), dtype=np.uint8)
    shares = RNG.random((3, 150, 210), dtype=np.float32)
    layers = (*CLASSES, Layer("shares", "float32", 3, float("nan")))
    cores = cores_of(150, 210, step)
    with TileStore.open(tmp_path / "s", scene(150, 210), layers, len(cores), "k", block_px=64) as store:
        for index, core in enumerate(cores):
            arrays = {"classes": classes[core.slices], "shares": shares[:, *core.slices]}
            store.write(index, core, arrays)
        assert store.num_done == len(cores)
        paths = [store.path("classes"), store.path("shares")]
    np.testing.assert_array_equal(read(paths[0])[0], classes)
    np.testing.assert_array_equal(read(paths[1]), shares)
    with rasterio.open(paths[0]) as file:
        assert file.nodata == 255
        assert file.crs.to_wkt() == WKT
        assert tuple(file.transform)[:6] == ROTATED.transform
        assert file.block_shapes == [(64, 64)]
    with rasterio.open(paths[1]) as file:
        assert np.isnan(file.nodata)


def test_core_given_whole_is_clipped_to_the_scene(tmp_path):
    core = Window(64, 64, 64, 64)
    whole = RNG.integers(0, 6, (64, 64), dtype=np.uint8)
    with TileStore.open(tmp_path / "s", scene(100, 90), CLASSES, 1, "k", block_px=64) as store:
        store.write(0, core, {"classes": whole})
    np.testing.assert_array_equal(read(store.path("classes"))[0, 64:, 64:], whole[:36, :26])
    with TileStore.open(tmp_path / "s", scene(100, 90), CLASSES, 1, "k", block_px=64) as store:
        with pytest.raises(ValueError, match="fit"):
            store.write(0, core, {"classes": whole[:10]})
        with pytest.raises(ValueError, match="fit"):
            store.write(0, core, {"classes": whole.astype(np.int16)})


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    bands=st.integers(1, 3),
    dtype=st.sampled_from(["uint8", "uint16", "int16", "float32"]),
)
def test_gdal_understands_every_layout(tmp_path_factory, height, width, bands, dtype):
    layout = lay_out((height, width), bands, dtype, 32, NO_PLACE, 7)
    path = tmp_path_factory.mktemp("layout") / "a.tif"
    blocks = np.arange(bands * layout.grid[0] * layout.grid[1] * 32 * 32).astype(dtype)
    path.write_bytes(layout.header + blocks.tobytes())
    assert path.stat().st_size == layout.file_bytes
    grid = blocks.reshape(bands, layout.grid[0], layout.grid[1], 32, 32).transpose(0, 1, 3, 2, 4)
    expected = grid.reshape(bands, layout.grid[0] * 32, layout.grid[1] * 32)[:, :height, :width]
    np.testing.assert_array_equal(read(path), expected)


def test_same_key_resumes_and_another_key_starts_anew(tmp_path):
    core, ones = Window(0, 0, 64, 64), np.ones((64, 64), np.uint8)
    with TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k", block_px=64) as store:
        store.write(2, core, {"classes": ones})
    with TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k", block_px=64) as store:
        assert [store.is_done(index) for index in range(4)] == [False, False, True, False]
    assert read(tmp_path / "classes.tif").sum() == 64 * 64
    with TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "other", block_px=64) as store:
        assert store.num_done == 0
    assert read(tmp_path / "classes.tif").sum() == 0


def test_after_a_crash_of_the_machine_only_synced_tiles_count(tmp_path, monkeypatch):
    core, ones = Window(0, 0, 64, 64), np.ones((64, 64), np.uint8)
    store = TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k", block_px=64)
    monkeypatch.setattr(write_module, "_SYNC_INTERVAL_S", 0.0)
    store.write(0, core, {"classes": ones})  # synced at once
    monkeypatch.setattr(write_module, "_SYNC_INTERVAL_S", 1e9)
    store.write(1, core, {"classes": ones})  # written only; the store is never closed
    again = TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k", block_px=64)
    assert (again.is_done(0), again.is_done(1)) == (True, True)
    monkeypatch.setattr(write_module, "_boot_id", lambda: "another boot")
    rebooted = TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k", block_px=64)
    assert (rebooted.is_done(0), rebooted.is_done(1)) == (True, False)


def test_marks_are_honest_after_sigkill(tmp_path):
    script = textwrap.dedent(
        f"""
        import numpy as np
        from pathlib import Path
        from outsize.raster.georef import NO_PLACE
        from outsize.raster.reading import SceneInfo
        from outsize.raster.writing import Layer, TileStore
        from outsize.tiles.window import Window
        info = SceneInfo(Path("a.tif"), 1024, 1024, 1, "uint8", None, ("",), (64, 64), NO_PLACE)
        layers = (Layer("classes", "uint8", 1, 255),)
        store = TileStore.open(Path({str(tmp_path)!r}), info, layers, 256, "k", block_px=64)
        print("ready", flush=True)
        for index in range(256):
            core = Window(index // 16 * 64, index % 16 * 64, 64, 64)
            store.write(index, core, {{"classes": np.full((64, 64), index % 250 + 1, np.uint8)}})
            if index == 100:
                print("enough", flush=True)
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.stdout.readline() == b"enough\n"
        child.send_signal(signal.SIGKILL)
    info = SceneInfo(Path("a.tif"), 1024, 1024, 1, "uint8", None, ("",), (64, 64), NO_PLACE)
    store = TileStore.open(tmp_path, info, CLASSES, 256, "k", block_px=64)
    assert store.num_done > 100
    pixels = read(store.path("classes"))[0]
    for index in range(256):
        block = pixels[index // 16 * 64 :, index % 16 * 64 :][:64, :64]
        assert not store.is_done(index) or (block == index % 250 + 1).all()


def test_full_disk_is_told_and_leaves_nothing(tmp_path):
    # A limit on the size of files stands in for a full disk; it holds for a process, hence the child.
    script = textwrap.dedent(
        f"""
        import resource, sys
        from pathlib import Path
        from outsize.errors import OutputError
        from outsize.raster.georef import NO_PLACE
        from outsize.raster.reading import SceneInfo
        from outsize.raster.writing import Layer, TileStore
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        info = SceneInfo(Path("a.tif"), 1024, 1024, 1, "uint8", None, ("",), (64, 64), NO_PLACE)
        try:
            TileStore.open(Path({str(tmp_path / "s")!r}), info, (Layer("classes", "uint8", 1, 255),), 4, "k")
        except OutputError as error:
            sys.exit(str(error))
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert "cannot be written" in done.stderr
    assert "free space" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_tiles_done_before_the_disk_was_full_are_kept(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    ones = {"classes": np.ones((64, 64), np.uint8)}
    with TileStore.open(tmp_path / "s", scene(100, 90), CLASSES, 4, "k", block_px=64) as store:
        store.write(0, Window(0, 0, 64, 64), ones)
        with monkeypatch.context() as patch:
            patch.setattr(write_module, "_write_at", refuse)
            with pytest.raises(OutputError, match="No space left"):
                store.write(1, Window(0, 64, 64, 64), ones)
        assert store.num_done == 1
        assert store.num_bytes >= 64 * 64
    with TileStore.open(tmp_path / "s", scene(100, 90), CLASSES, 4, "k", block_px=64) as store:
        assert [store.is_done(index) for index in range(4)] == [True, False, False, False]
    store.discard()
    assert list(tmp_path.iterdir()) == []


def test_too_little_space_is_told_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(OutputError, match="1000 B free"):
        TileStore.open(tmp_path / "s", scene(100, 90), CLASSES, 4, "k")
    assert list(tmp_path.iterdir()) == []


def test_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="another output folder"):
        TileStore.open(tmp_path / "file" / "s", scene(100, 90), CLASSES, 4, "k")


def test_files_of_others_survive_discard(tmp_path):
    (tmp_path / "mine.txt").touch()
    TileStore.open(tmp_path, scene(100, 90), CLASSES, 4, "k").discard()
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_working_folder_is_nobody_elses(tmp_path, monkeypatch):
    folder = tmp_path / "s"
    folder.mkdir(mode=0o777)
    with TileStore.open(folder, scene(64, 64), CLASSES, 1, "k"):
        assert folder.stat().st_mode & 0o777 == 0o700
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(OutputError, match="is no folder"):
        TileStore.open(tmp_path / "link", scene(64, 64), CLASSES, 1, "k")
    assert list(mine.iterdir()) == []
    monkeypatch.setattr("outsize.files.private.os.geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OutputError, match="belongs to another user"):
        TileStore.open(folder, scene(64, 64), CLASSES, 1, "k")


def test_several_processes_fill_one_store(tmp_path, monkeypatch):
    monkeypatch.setattr(write_module, "_SYNC_INTERVAL_S", 0.0)  # at every mark, which writes marks again
    classes = RNG.integers(0, 6, (192, 192), dtype=np.uint8)
    cores = cores_of(192, 192, 64)
    arguments = (tmp_path / "s", scene(192, 192), CLASSES, len(cores), "k", 64)
    with TileStore.open(*arguments) as first, TileStore.open(*arguments, joins=True) as second:
        for index in range(len(cores) - 1):
            store = (first, second)[index % 2]
            store.write(index, cores[index], {"classes": classes[cores[index].slices]})
        for store in (first, second):
            assert store.num_done == (len(cores) - 1) // 2, "each knows of its own"
            store.refresh()
            assert store.num_done == len(cores) - 1
    marks = (tmp_path / "s" / "tiles.done").read_bytes()
    assert marks == bytes([2] * (len(cores) - 1) + [0]), "nobody has erased another's mark"
    with TileStore.open(*arguments) as third:  # another number of processes goes on
        assert [third.is_done(index) for index in range(len(cores))] == [True] * (len(cores) - 1) + [False]
        third.write(len(cores) - 1, cores[-1], {"classes": classes[cores[-1].slices]})
        path = third.path("classes")
    np.testing.assert_array_equal(read(path)[0], classes)


def test_of_another_machine_only_what_is_synced_is_marked(tmp_path, monkeypatch):
    classes = RNG.integers(0, 6, (128, 128), dtype=np.uint8)
    cores = cores_of(128, 128, 64)
    arguments = (tmp_path / "s", scene(128, 128), CLASSES, len(cores), "k", 64)
    with TileStore.open(*arguments) as first:
        monkeypatch.setattr(write_module, "_boot_id", lambda: "another machine")
        with TileStore.open(*arguments, joins=True) as second:
            for index, store in enumerate((first, second)):
                store.write(index, cores[index], {"classes": classes[cores[index].slices]}, index + 1)
            assert (tmp_path / "s" / "tiles.done").read_bytes() == bytes([1, 0, 0, 0])
            assert second.is_done(1)
        assert (tmp_path / "s" / "tiles.done").read_bytes() == bytes([1, 2, 0, 0]), "closed, and so synced"
        first.refresh()
        assert first.num_unanswered == 3, "of both, each in notes of its own"
        first.discard()
    assert not (tmp_path / "s").exists()


def test_a_store_that_nobody_has_begun_cannot_be_joined(tmp_path):
    arguments = (tmp_path / "s", scene(64, 64), CLASSES, 1)
    with pytest.raises(OutputError, match="found no store, needed the same key in"):
        TileStore.open(*arguments, "k", joins=True)
    TileStore.open(*arguments, "k").close()
    with pytest.raises(OutputError, match="found k, needed the same key in"):
        TileStore.open(*arguments, "other", joins=True)
