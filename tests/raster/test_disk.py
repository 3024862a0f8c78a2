import os
import subprocess
import sys

import numpy as np
import pytest
import rasterio

from outsize.errors import OutputError
from outsize.raster.disk import replacing

# Limits on the size of a file stand in for a full disk. They hold for a process, hence the child; and GDAL tells of
# some of them only, hence limits from almost nothing to almost enough.
CHILD = """
import resource, sys
from pathlib import Path
from outsize.errors import OutputError
from outsize.raster.writing import make_cog
from outsize.raster.vectors import write_polygons

source, folder = Path(sys.argv[1]), Path(sys.argv[2])
folder.mkdir()
makers = {
    "map.tif": lambda path: make_cog(source, path, resampling="nearest"),
    "map.gpkg": lambda path: write_polygons(source, None, path, class_names={}),
    "map.geojson": lambda path: write_polygons(source, None, path, class_names={}),
}
for name, make in makers.items():
    target = folder / name
    make(target)
    full_bytes = target.stat().st_size
    target.unlink()
    for limit_bytes in (full_bytes // 20, full_bytes // 2, full_bytes * 97 // 100, full_bytes - 50):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, -1))
        try:
            make(target)
        except OutputError as error:
            assert str(target) in str(error), error
        else:
            sys.exit(f"{name}: no error at {limit_bytes} of {full_bytes} bytes")
        left = list(folder.iterdir())
        assert not left, left
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
"""


def test_a_full_disk_is_never_silent_and_leaves_nothing(tmp_path):
    classes = np.random.default_rng(0).integers(0, 6, (1, 600, 600), dtype=np.uint8)
    classes[:, :560] = 255  # few polygons, but some blocks that do not compress
    grid = {
        "crs": "EPSG:32632",
        "transform": rasterio.Affine(10, 0, 500_000, 0, -10, 5_000_000),
        "nodata": 255,
    }
    source = tmp_path / "classes.tif"
    shape = {"count": 1, "height": 600, "width": 600, "dtype": "uint8"}
    with rasterio.open(source, "w", driver="GTiff", **shape, **grid) as file:
        file.write(classes)
    command = [sys.executable, "-c", CHILD, str(source), str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_replacing_keeps_the_old_file_when_the_new_one_fails(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def fail():
        with replacing(target) as partial:
            partial.write_text("half")
            partial.with_name(partial.name + "-journal").write_text("half")
            raise OutputError("no")

    with pytest.raises(OutputError):
        fail()
    assert target.read_text() == "old"
    with replacing(target) as partial:
        partial.write_text("new")
    assert target.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]
