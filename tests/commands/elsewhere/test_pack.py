"""`outsize pack` and `outsize unpack`: a training goes on elsewhere to the same bits; what is not well is one line."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.commands.conftest import Run, contents
from tests.conftest import write_job

from outsize.commands.elsewhere import pack, unpack
from outsize.commands.train import train
from outsize.errors import DataError, InUseError, OutputError, RunError
from outsize.progress import Reporter
from outsize.runs import RunFolder
from outsize.session.saving import Saving
from outsize.stopping import Stopped

QUIET = Reporter("quiet")
_HOW: dict[str, Any] = {"overrides": (), "ranks": (1, 1), "gpu": None, "minutes": None, "out": None}
_TRAIN: dict[str, Any] = {"overrides": (), "device_name": "cpu", "reporter": QUIET}


def _packed(job: Path, **changes: Any) -> Path:
    return pack(job, reporter=QUIET, **{**_HOW, **changes})


def _unpacked(path: Path, to: Path | None, root: Path | None = None) -> Any:
    return unpack(path, to=to, data_root=root, reporter=QUIET)


@pytest.fixture
def stopped_job(tmp_path: Path, scenes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job whose training was stopped in its first epoch, with data that this machine alone has."""
    folder = tmp_path / "here"
    own = Path(shutil.copytree(scenes, folder / "scenes"))
    job = write_job(folder / "job.toml", own, **{"batch = 2": "batch = 2\ncheckpoint_steps = 1"})
    save = Saving.state

    def save_and_stop(saving: Saving, tensors: Any, where: Any) -> None:
        save(saving, tensors, where)
        if where["total_steps"] == 3:
            raise Stopped(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Saving, "state", save_and_stop)
        with pytest.raises(Stopped):
            train(job, mode="new", **_TRAIN)
    return job


def _undisturbed(tmp_path: Path, scenes: Path) -> bytes:
    """Train the same job in one go and return the weights of its last epoch."""
    job = write_job(tmp_path / "whole.toml", scenes, **{"batch = 2": "batch = 2\ncheckpoint_steps = 1"})
    run = train(job, mode="new", **{**_TRAIN, "overrides": [f"run={(tmp_path / 'whole').as_posix()}"]})
    return _weights(run)


def _weights(run: RunFolder) -> bytes:
    """The tensors of the last epoch; the card in the header tells of machines."""
    data = run.last.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little") :]


@pytest.mark.parametrize(
    "name", ["job.tar.gz", *(pytest.param(each, marks=pytest.mark.long) for each in ("job.tar", "packed"))]
)
def test_a_training_goes_on_elsewhere_to_the_same_bits(
    stopped_job: Path, tmp_path: Path, scenes: Path, name: str
) -> None:
    path = _packed(stopped_job, out=tmp_path / name, data=name != "job.tar.gz")
    shutil.move(stopped_job.parent, tmp_path / "gone")
    root = scenes if name == "job.tar.gz" else None
    there = _unpacked(path, tmp_path / "there" / "mine", root)
    assert there.head["step"] == 3
    assert there.root == (scenes if root else there.folder / "data")
    run = train(there.folder / "job.toml", mode="resume", **_TRAIN)
    assert run.path == there.folder / "run"
    assert _weights(run) == _undisturbed(tmp_path, scenes)


def test_a_pack_holds_what_a_person_and_a_cluster_need(job_path: Path, tmp_path: Path) -> None:
    path = _packed(job_path, ranks=(2, 1), minutes=90)
    assert path == job_path.with_suffix(".tar")
    with tarfile.open(path) as archive:
        names = archive.getnames()
        assert {(each.uid, each.uname, each.mtime) for each in archive} == {(0, "", 0)}
    assert names[:4] == ["pack.json", "manifest.jsonl", "data.jsonl", "job.toml"]
    assert not [each for each in names if each.startswith(("run/", "data/"))]
    folder = _unpacked(path, tmp_path / "there").folder
    script = (folder / "train.slurm.sh").read_text()
    subprocess.run(["bash", "-n", folder / "train.slurm.sh"], check=True)
    assert "--nodes=2" in script
    assert "--time=01:30:00" in script
    assert f"train {folder}/job.toml --resume" in script
    assert "torch==" in (folder / "environment.txt").read_text()
    head = json.loads((folder / "pack.json").read_text())
    assert head["request"]["host_gib"] > 0
    assert head["data"]["files"] == 6
    for name in ("Dockerfile", "apptainer.def"):
        assert "environment.txt" in (folder / name).read_text()
    # a folder is bound again to data elsewhere
    other = Path(shutil.copytree(head["data"]["root"], tmp_path / "moved"))
    assert _unpacked(folder, None, other).root == other
    assert tomllib.loads((folder / "job.toml").read_text())["data"]["root"] == str(other)


def test_weights_to_begin_from_come_along(job_path: Path, trained_run: Path, tmp_path: Path) -> None:
    path = _packed(job_path, overrides=[f"train.init={trained_run.as_posix()}"])
    folder = _unpacked(path, tmp_path / "there").folder
    assert tomllib.loads((folder / "job.toml").read_text())["train"]["init"] == str(folder / "start/run")
    began = RunFolder(folder / "start/run")
    assert began.best.read_bytes() == RunFolder(trained_run).best.read_bytes()
    run = train(folder / "job.toml", mode="new", **{**_TRAIN, "overrides": ["train.epochs=1"]})
    assert run.init.is_file()


def test_a_plan_says_what_differs(run_here: Run, job_path: Path, tmp_path: Path) -> None:
    folder = _unpacked(_packed(job_path), tmp_path / "there").folder
    said = _moved(run_here("plan", folder / "job.toml").out)
    assert "to the last bit" not in said
    head = json.loads((folder / "pack.json").read_text())
    head["machine"] |= {"gpu": "NVIDIA H200", "gpu_bytes": 150 * 2**30, "num_cores": 16}
    head["versions"]["torch"] = "2.11.0"
    (folder / "pack.json").write_text(json.dumps(head))
    said = _moved(run_here("plan", folder / "job.toml").out)
    for text in (
        "packed on NVIDIA H200",
        "GPU memory: none instead of 150",
        "instead of 2.11.0",
        "to the last bit",
    ):
        assert text in said, said


def _moved(out: str) -> str:
    (text,) = [each["text"] for each in map(json.loads, out.splitlines()) if each["event"] == "moved"]
    return str(text)


def test_data_that_is_elsewhere_is_checked(job_path: Path, own_scenes: Path, tmp_path: Path) -> None:
    job = write_job(tmp_path / "own.toml", own_scenes)
    path = _packed(job)
    away = own_scenes.rename(tmp_path / "away")
    found = _unpacked(path, tmp_path / "there")
    assert len(found.missing) == 6
    assert found.root == found.folder / "data"
    image = away / "train-0.tif"
    image.write_bytes(image.read_bytes()[:-1] + b"x")
    with pytest.raises(DataError, match=r"1 of 6 files not there as packed: train-0\.tif"):
        _unpacked(path, tmp_path / "second", away)
    assert not (tmp_path / "second").exists()
    with pytest.raises(DataError, match="6 of 6 files"):
        _unpacked(path, tmp_path / "second", tmp_path / "nowhere")


def test_what_cannot_be_packed_is_refused(stopped_job: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"cannot be resumed: found train\.batch = 3"):
        _packed(stopped_job, overrides=["train.batch=3"])
    with pytest.raises(OutputError, match=r"no such kind of pack: found job\.tar\.zst"):
        _packed(stopped_job, out=tmp_path / "job.tar.zst")
    (tmp_path / "mine.tar").write_text("mine")
    with pytest.raises(OutputError, match="would be written over"):
        _packed(stopped_job, out=tmp_path / "mine.tar")
    with pytest.raises(OutputError, match="a new or empty folder"):
        _packed(stopped_job, out=stopped_job.parent)
    run = RunFolder(stopped_job.parent / "run")
    script = "import sys, time; from pathlib import Path; from outsize.files.locks import holding\n"
    script += "with holding(Path(sys.argv[1]), 'run', 'train'): print('held', flush=True); time.sleep(3600)"
    with subprocess.Popen([sys.executable, "-c", script, str(run.lock)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        try:
            assert other.stdout.readline() == b"held\n"
            with pytest.raises(InUseError):
                _packed(stopped_job)
        finally:
            other.kill()


@pytest.mark.parametrize("limit_bytes", [1000, 600_000])
def test_a_full_disk_leaves_nothing(run: Run, job_path: Path, tmp_path: Path, limit_bytes: int) -> None:
    before = contents(tmp_path)
    run("pack", job_path, limit_bytes=limit_bytes).refused("job.tar")
    assert {name for name in contents(tmp_path) if "__pycache__" not in name} == set(before)
    path = _packed(job_path)
    run("unpack", path, "--to", tmp_path / "there", limit_bytes=limit_bytes).refused("there")
    assert set(contents(tmp_path)) == {*before, "job.tar"}


@pytest.mark.long
@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, ("useradd", "setpriv"))),
    reason="makes a user, which takes root",
)
def test_another_user_goes_on_to_the_same_bits(stopped_job: Path, tmp_path: Path, scenes: Path) -> None:
    user, home = "outsize-test", Path("/tmp/outsize-test-home")
    path = _packed(stopped_job, data=True, out=tmp_path / "job.tar")
    shutil.rmtree(stopped_job.parent)  # nothing is left of the machine before
    subprocess.run(["useradd", "--create-home", "--home-dir", home, user], check=True)
    try:
        about = pwd.getpwnam(user)
        shutil.copy(path, home / "job.tar")
        environ = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")}
        environ["PYTHONPATH"] = str(Path(__file__).parents[3] / "src")
        # of root's rights one stays: the interpreter of the tests may lie in root's home, and must be read
        keep = "+dac_read_search"
        as_user = ["setpriv", f"--reuid={about.pw_uid}", f"--regid={about.pw_gid}", "--clear-groups"]
        as_user += [f"--inh-caps={keep}", f"--ambient-caps={keep}"]
        for words in (["unpack", "job.tar"], ["train", "job/job.toml", "--resume", "--device", "cpu"]):
            command = [*as_user, sys.executable, "-m", "outsize", *words]
            done = subprocess.run(command, cwd=home, env=environ, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        run = RunFolder(home / "job" / "run")
        assert run.last.stat().st_uid == about.pw_uid
        assert _weights(run) == _undisturbed(tmp_path, scenes)
    finally:
        subprocess.run(["userdel", "--remove", user], check=False, capture_output=True)
