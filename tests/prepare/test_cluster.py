"""A real Dask cluster makes the bytes that processes make; what is lost with a worker is made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.prepare.pieces import copying

from outsize import __version__
from outsize.data.synthetic.scenes import draw_scene
from outsize.errors import RunError
from outsize.job import PrepareSection
from outsize.prepare.batches import make_all
from outsize.prepare.folder import prepare_folder
from outsize.prepare.piece import Piece
from outsize.prepare.scenes import RawScene, SceneSettings, scene_piece
from outsize.prepare.workers import workers
from outsize.progress import Reporter

pytestmark = pytest.mark.long
_ONE_NODE = Path(__file__).parents[1] / "commands" / "elsewhere" / "one_node.sh"
_SLURM = ("slurmctld", "slurmd", "munged", "sbatch")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Two worker processes of one thread each, and their scheduler."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    how = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**how) as started:
        yield started


def _scenes(folder: Path, num: int) -> list[Piece]:
    settings = SceneSettings(dict.fromkeys(range(6), (0, 0, 0)))
    found = []
    for number in range(num):
        image = draw_scene(folder, f"s{number:03}", 64, 96, seed=number, vectors=False)
        raw = RawScene(image.stem, image, labels=image.with_name(f"{image.stem}_labels.tif"))
        found.append(scene_piece(raw, settings, __version__))
    return found


def _bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def _fill(pieces: list[Piece], to: Path, **section: Any) -> dict[str, bytes]:
    how = PrepareSection(**section)
    prepare_folder(pieces, to, how, version=__version__, reporter=Reporter("quiet"))
    return _bytes(to)


def test_two_hundred_scenes_are_the_same_by_one_process_by_two_and_by_a_cluster(
    cluster: Any, tmp_path: Path
) -> None:
    pieces = _scenes(tmp_path / "raw", 200)
    one = _fill(pieces, tmp_path / "one", workers=1)
    assert len(one) == 401
    assert _fill(pieces, tmp_path / "two", workers=2) == one
    assert _fill(pieces, tmp_path / "dask", scheduler=cluster.scheduler_address) == one


def test_a_worker_of_a_cluster_that_is_killed_loses_nothing(cluster: Any, tmp_path: Path) -> None:
    once = str(tmp_path / "once")
    names = [str(number) for number in range(40)]
    pieces = copying(tmp_path / "from", names, kills="7", once=once, takes_s=0.05)
    with workers(1, cluster.scheduler_address) as by:
        made = list(make_all(pieces, by, tmp_path / "to", __version__))
    assert Path(once).exists()
    assert sorted(each.name for each in made if not each.why) == sorted(names)


def test_one_that_kills_every_worker_is_set_aside(cluster: Any, tmp_path: Path) -> None:
    pieces = copying(tmp_path / "from", "abc", kills="b")
    with workers(1, cluster.scheduler_address) as by:
        made = list(make_all(pieces, by, tmp_path / "to", __version__))
    assert [(each.name, bool(each.why)) for each in sorted(made, key=lambda each: each.name)] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


def _make_and_lose(scheduler: subprocess.Popen[bytes], pieces: list[Piece], address: str, to: Path) -> None:
    with workers(1, address, timeout_s=30) as by:
        for number, _ in enumerate(make_all(pieces, by, to, __version__)):
            if number == 5:
                scheduler.kill()


def test_a_scheduler_that_is_gone_is_one_line_and_what_is_made_stays(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    address = "tcp://127.0.0.1:18786"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    ways = {"env": environment, "stderr": subprocess.DEVNULL}
    scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "18786", "--no-dashboard"]
    worker = [
        sys.executable,
        "-m",
        "distributed.cli.dask_worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
    ]
    begun = [subprocess.Popen(scheduler, **ways), subprocess.Popen(worker, **ways)]
    pieces = copying(tmp_path / "from", [str(number) for number in range(400)], takes_s=0.1)
    to = tmp_path / "to"
    try:
        with pytest.raises(RunError, match=f"scheduler {address} is gone"):
            _make_and_lose(begun[0], pieces, address, to)
        assert len(list(to.iterdir())) >= 5
    finally:
        for process in begun:
            process.kill()
            process.wait()


@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, _SLURM)),
    reason="needs slurm-wlm and munge, and root: apt-get install slurm-wlm munge",
)
def test_workers_that_slurm_starts_make_the_same(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobqueue = pytest.importorskip("dask_jobqueue")
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([_ONE_NODE, "start", folder], check=True, timeout=600)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    try:
        pieces = _scenes(tmp_path / "raw", 6)
        one = _fill(pieces, tmp_path / "one", workers=1)
        asked = {"cores": 1, "processes": 1, "memory": "1GB", "python": sys.executable, "interface": "lo"}
        asked["scheduler_options"] = {"dashboard_address": None, "interface": "lo"}
        with jobqueue.SLURMCluster(**asked, log_directory=str(tmp_path / "logs")) as started:
            started.scale(jobs=2)
            assert _fill(pieces, tmp_path / "slurm", scheduler=started.scheduler_address) == one
    finally:
        subprocess.run(["scancel", "--user=root"], check=False)
        time.sleep(1)
        subprocess.run([_ONE_NODE, "stop", folder], check=True)
