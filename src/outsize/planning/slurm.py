"""A script for Slurm that trains a job on several machines: what its plan asks for, and what happens when time is up.
sbatch --> srun, a task for each GPU --> time nearly up: SIGTERM --> all save, exit 143 --> queued again, --resume
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from outsize.plan.request import Request
from outsize.units import format_count

STOPPED = 143  # how a training ends that SIGTERM has made save its state
_SAVE_S = 120  # before the time limit, for the step that is being done and the checkpoint
_SHORT_S = 600  # a job that is shorter gives a fifth of its time


@dataclass(frozen=True)
class Allocation:
    """What of a cluster a job runs on."""

    nodes: int
    tasks_per_node: int
    gpus_per_node: int  # 0: on CPUs
    cpus_per_task: int
    memory_gib: int  # of each node
    minutes: int | None  # None: as long as the cluster lets jobs run

    @property
    def num_tasks(self) -> int:
        """Ranks in all."""
        return self.nodes * self.tasks_per_node

    def text(self) -> str:
        """Say it for a person."""
        time = (
            "no time limit" if self.minutes is None else f"{self.minutes // 60:02d}:{self.minutes % 60:02d} h"
        )
        what = (
            format_count(self.gpus_per_node, "GPU")
            if self.gpus_per_node
            else f"{format_count(self.tasks_per_node, 'task')} on its CPU"
        )
        nodes, cpus = format_count(self.nodes, "node"), format_count(self.cpus_per_task, "CPU")
        return f"{nodes}, each with {what}, {cpus} a task, {self.memory_gib} GiB; {time}"


def allocate(
    request: Request, nodes: int, per_node: int, num_workers: int, minutes: int | None = None
) -> Allocation:
    """Spread what a plan asks for over nodes; `request` is for all GPUs, on a CPU for each task."""
    on_gpus = request.gpus > 0
    memory_gib = math.ceil(request.host_gib / nodes) if on_gpus else request.host_gib * per_node
    if minutes is None and request.hours is not None:
        minutes = math.ceil(60 * request.hours)
    return Allocation(nodes, per_node, per_node if on_gpus else 0, 1 + num_workers, memory_gib, minutes)


def slurm_script(
    allocation: Allocation, words: Sequence[str], *, name: str, folder: Path, log: Path, python: str
) -> str:
    """Return the text of a script that runs `python -m outsize WORDS` as the tasks of a Slurm job, in `folder`."""
    asked = {
        "job-name": name,
        "nodes": allocation.nodes,
        "ntasks-per-node": allocation.tasks_per_node,
        **({"gpus-per-node": allocation.gpus_per_node} if allocation.gpus_per_node else {}),
        "cpus-per-task": allocation.cpus_per_task,
        "mem": f"{allocation.memory_gib}G",
        **_time(allocation.minutes),
        "output": str(log),
    }
    heads = [f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in asked.items()]
    command = shlex.join([python, "-m", "outsize", *words])
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {name} on {allocation.text()}. Submit with sbatch; written by outsize launch.",
            *heads,
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            "",
            f"cd {shlex.quote(str(folder))} || exit 2",
            'export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"',
            f"export OUTSIZE_LOCAL_SIZE={allocation.tasks_per_node}",
            "",
            "# each task finds out its rank by itself; those of a lost node are not waited for",
            'srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" \\',
            f"    {command}",
            "code=$?",
            f'if [ "$code" -eq {STOPPED} ]; then  # stopped by SIGTERM, and all is saved: go on from there',
            '    scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
            "",
        ]
    )


def _time(minutes: int | None) -> dict[str, str]:
    """Return the time limit, and how long before it the tasks hear of it."""
    if minutes is None:
        return {}
    save_s = _SAVE_S if 60 * minutes >= _SHORT_S else max(10, 60 * minutes // 5)
    return {"time": f"{minutes // 60:02d}:{minutes % 60:02d}:00", "signal": f"TERM@{save_s}"}
