"""What `launch` writes runs under a real Slurm of one node: time is up, all is saved, the job is queued again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import write_job

from outsize.commands.elsewhere import launch
from outsize.errors import RanksError
from outsize.progress import Reporter
from outsize.runs import RunFolder

_ONE_NODE = Path(__file__).with_name("one_node.sh")
_LIMIT_S = 300
_NEEDED = ("slurmctld", "slurmd", "munged", "sbatch")

_ASKED: dict[str, Any] = {"gpu": None, "out": None, "reporter": Reporter("quiet")}


def test_the_script_is_written_and_not_submitted(job_path: Path) -> None:
    changes = ["train.lr=0.01"]
    script = launch(job_path, overrides=changes, ranks=(1, 2), minutes=90, submits=False, **_ASKED)
    assert script == job_path.with_suffix(".slurm.sh")
    text = script.read_text()
    assert "#SBATCH --ntasks-per-node=2" in text
    assert "#SBATCH --time=01:30:00" in text
    assert f"-m outsize train {job_path} --resume --set train.lr=0.01" in text
    subprocess.run(["bash", "-n", script], check=True)


def test_what_cannot_be_launched_is_refused(job_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RanksError, match="no Slurm to submit to: found no sbatch"):
        launch(job_path, overrides=(), ranks=(1, 1), minutes=None, submits=True, **_ASKED)


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([_ONE_NODE, "start", folder], check=True, timeout=600)
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    # as it is here: the interpreter of the tests, and the source under test
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    yield
    subprocess.run(["scancel", "--user=root"], check=False)
    subprocess.run([_ONE_NODE, "stop", folder], check=True)


def _until(is_so: Callable[[], bool], log: Path) -> None:
    until_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < until_s, log.read_text() if log.is_file() else "no log"
        time.sleep(0.5)


@pytest.mark.long
@pytest.mark.skipif(
    os.getuid() != 0 or not all(map(shutil.which, _NEEDED)),
    reason="needs slurm-wlm and munge, and root: apt-get install slurm-wlm munge",
)
@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize("num_tasks", [2])
def test_a_training_saves_before_its_time_is_up_and_goes_on(
    num_tasks: int, tmp_path: Path, scenes: Path
) -> None:
    job = write_job(tmp_path / "job.toml", scenes, **{"epochs = 2": "epochs = 100000"})
    script = launch(job, overrides=(), ranks=(1, num_tasks), minutes=2, submits=True, **_ASKED)
    log, state = script.with_suffix(".out"), RunFolder(tmp_path / "run").state

    def logged(*words: str) -> bool:
        text = log.read_text() if log.is_file() else ""
        return all(word in text for word in words)

    _until(lambda: logged("stopped by SIGTERM", "to continue: outsize train"), log)
    assert state.is_file()
    _until(lambda: logged('"event": "resume"', "resuming at step"), log)
    shown = subprocess.run(["scontrol", "show", "job"], capture_output=True, text=True, check=True).stdout
    assert "Restarts=1" in shown, shown
