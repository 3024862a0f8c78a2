"""Fixtures that several rooms share: a small raster from an array, a tiny job on tiny drawn scenes."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import torch
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray
from tests.remembered import remembering

from outsize import stopping
from outsize.data.synthetic.scenes import CLASSES, draw_scene
from outsize.files.private import private_folder

# A shell that starts the tests in the background has Ctrl-C ignored by them; those about it send it themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something of the machine alone.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# What this machine can do is measured once, and remembered where nothing else is; what the tests remember of networks
# (remembered.py), all processes share that were started for them.
_begun = "OUTSIZE_TESTS" not in os.environ
os.environ["OUTSIZE_TESTS"] = os.environ.get("OUTSIZE_TESTS") or tempfile.mkdtemp(prefix="outsize-tests-")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=os.environ["OUTSIZE_TESTS"])
if _begun:
    atexit.register(shutil.rmtree, os.environ["OUTSIZE_TESTS"], ignore_errors=True)

# Tiny networks: on a busy machine a second thread costs a hundred times what it brings. Processes that tests start
# are told, too.
torch.set_num_threads(1)
os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# On some processors with AMX a transposed convolution of bfloat16 dies of an illegal instruction (torch 2.15, oneDNN).
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# A process that compiles beside this one takes longer to start than to compile.
if not torch.cuda.is_available():
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# What is compiled outlives a run of the tests, as torch would have it, where nobody else can write.
_CODE = Path(tempfile.gettempdir(), f"outsize-tests-code-{os.getuid()}")
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(private_folder(_CODE)))

# Processes that prepare batches, ranks and trials are copied from one server, which loads for all of them what each
# would take seconds to load.
forkserver.set_forkserver_preload(["tests.served"])
forkserver.set_forkserver_preload = lambda modules: None
_start_server = forkserver.ensure_running


def _shielded_server() -> None:
    """Start it as a training does, whoever is first: what is copied from it has the signals blocked that it has."""
    with stopping.shielded():
        _start_server()


forkserver._forkserver.ensure_running = forkserver.ensure_running = _shielded_server

WriteRaster = Callable[..., Path]


@pytest.fixture(scope="session")
def gang() -> Iterator[Any]:
    """Four processes that stay, for tests of ranks."""
    from tests.ranks.gang import Gang

    started = Gang(4)
    yield started
    started.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest test, so that not all wait for it at the end; leave a GPU to tests that run alone."""
    items.sort(key=lambda item: item.path.name != "test_resume.py")
    if "PYTEST_XDIST_WORKER" in os.environ:
        for item in items:
            if "tests/gpu" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason="needs a GPU for itself: make test-gpu"))


def pytest_collection_finish() -> None:
    """Keep the collector from going over all of torch's objects again and again: they stay to the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let what is left at the end be let go of as ever."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def _passed_over_by_the_collector() -> Iterator[None]:
    """Freeze what a file's tests leave behind, mostly caches of torch: each trial of a step collects."""
    yield
    gc.collect(1)
    gc.freeze()


@pytest.fixture(autouse=True)
def _planned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test take up a plan that another one made by what it had put in some function's place."""
    monkeypatch.setattr("outsize.planning.jobs.preparing.recall", lambda *_: None)


@pytest.fixture(autouse=True, scope="session")
def _networks_looked_at_once() -> Iterator[None]:
    with remembering():
        yield


_JOB = """
task = "segment"
seed = 3
run = "{run}"
[data]
train = ["train-*.tif"]
val = ["val-*.tif"]
test = ["test-*.tif"]
bands = ["blue", "green", "red", "nir"]
{classes}
[model]
name = "unet"
levels = 3
width = 4
[train]
epochs = 2
tile_px = 64
batch = 2
samples_per_epoch = 8
lr = 1e-3
[limits]
host_memory = "1GiB"
tile_px = 64
"""


@pytest.fixture
def write_raster(tmp_path: Path) -> WriteRaster:
    """Return the function that writes an array (band, row, column) or (row, column) as NAME in a new folder."""

    def write(name: str, pixels: NDArray[np.generic], names: tuple[str, ...] = (), **options: Any) -> Path:
        bands = pixels if pixels.ndim == 3 else pixels[None]
        shape = {"count": bands.shape[0], "height": bands.shape[1], "width": bands.shape[2]}
        place = {"crs": "EPSG:32632", "transform": rasterio.Affine(2, 0, 5e5, 0, -2, 5e6)}
        path = tmp_path / name
        with rasterio.open(path, "w", driver="GTiff", dtype=bands.dtype, **shape, **place, **options) as file:
            file.write(bands)
            if names:
                file.descriptions = names
        return path

    return write


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three small scenes and their labels."""
    folder = tmp_path_factory.mktemp("scenes")
    for number, split in enumerate(("train", "val", "test")):
        draw_scene(folder, f"{split}-{number}", 160, 208, seed=number, vectors=False)
        # so small a scene lacks some classes, and a class that is nowhere is refused
        with rasterio.open(folder / f"{split}-{number}_labels.tif", "r+") as labels:
            values = labels.read(1)
            values[80:86, 100] = [each.value for each in CLASSES]
            labels.write(values, 1)
    return folder


def write_job(path: Path, scenes: Path, **changes: str) -> Path:
    """Write a tiny job beside a run folder; `changes` replace lines by their first words."""
    tables = "".join(f'[[data.classes]]\nname = "{c.name}"\nvalue = {c.value}\n' for c in CLASSES)
    text = _JOB.format(run=(path.parent / "run").as_posix(), classes=tables)
    for split in ("train", "val", "test"):
        text = text.replace(f'["{split}-*.tif"]', f'["{scenes.as_posix()}/{split}-*.tif"]')
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)
    return path


@pytest.fixture
def job_path(tmp_path: Path, scenes: Path) -> Path:
    """A tiny job file."""
    return write_job(tmp_path / "job.toml", scenes)


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory, scenes: Path) -> Path:
    """A run folder that was trained for a moment."""
    from outsize.commands.train import train
    from outsize.progress import Reporter

    folder = tmp_path_factory.mktemp("trained")
    job = write_job(folder / "job.toml", scenes)
    run = train(job, overrides=(), device_name="cpu", mode="new", reporter=Reporter("quiet"))
    return run.path
