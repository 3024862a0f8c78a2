"""The script of a Slurm job, to the letter, and that a shell can read it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from outsize.plan.request import HostMemory, Request
from outsize.planning.slurm import Allocation, allocate, slurm_script

_GOLDEN = """\
#!/bin/bash
# streets on 4 nodes, each with 8 GPUs, 5 CPUs a task, 60 GiB; 01:31 h. Submit with sbatch; written by outsize launch.
#SBATCH --job-name=streets
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=5
#SBATCH --mem=60G
#SBATCH --time=01:31:00
#SBATCH --signal=TERM@120
#SBATCH --output='/jobs/my streets.out'
#SBATCH --requeue
#SBATCH --open-mode=append

cd '/my jobs' || exit 2
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"
export OUTSIZE_LOCAL_SIZE=8

# each task finds out its rank by itself; those of a lost node are not waited for
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\
    /env/bin/python -m outsize train '/my jobs/streets.toml' --resume
code=$?
if [ "$code" -eq 143 ]; then  # stopped by SIGTERM, and all is saved: go on from there
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
"""


def _request(gpus: int, hours: float | None = 1.51) -> Request:
    return Request(gpus, 40, "a100-40", 240, HostMemory(1, 0, 0, 0, 0), 10, hours)


def _script(allocation: Allocation) -> str:
    words = ["train", "/my jobs/streets.toml", "--resume"]
    place = {"folder": Path("/my jobs"), "log": Path("/jobs/my streets.out")}
    return slurm_script(allocation, words, name="streets", python="/env/bin/python", **place)


def test_the_script_to_the_letter() -> None:
    assert _script(allocate(_request(32), nodes=4, per_node=8, num_workers=4)) == _GOLDEN


def test_a_node_has_its_share_of_the_memory_of_all_gpus_and_a_task_on_a_cpu_all_of_its_own() -> None:
    assert allocate(_request(32), 4, 8, 4) == Allocation(4, 8, 8, 5, 60, 91)
    assert allocate(_request(0), 4, 2, 0) == Allocation(4, 2, 0, 1, 480, 91)


@pytest.mark.parametrize(
    ("minutes", "lines"),
    [
        (None, []),
        (1, ["--time=00:01:00", "--signal=TERM@12"]),
        (600, ["--time=10:00:00", "--signal=TERM@120"]),
    ],
)
def test_the_time_limit_and_when_tasks_hear_of_it(minutes: int | None, lines: list[str]) -> None:
    script = _script(allocate(_request(0, None), 1, 1, 0, minutes))
    found = [line.split()[1] for line in script.splitlines() if "--time" in line or "--signal" in line]
    assert found == lines


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize("gpus", [0, 8])
def test_a_shell_can_read_it(gpus: int) -> None:
    script = _script(allocate(_request(gpus), 2, 4, 0))
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stderr) == (0, "")
