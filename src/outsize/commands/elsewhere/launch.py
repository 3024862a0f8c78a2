"""`outsize launch JOB --slurm`: a script that trains a job on several machines, written from its plan and submitted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from outsize.accounts import accounted
from outsize.errors import RanksError, explain
from outsize.files.beside import written_beside
from outsize.job import load_job
from outsize.job.naming import naming
from outsize.planning.asking import ask_for
from outsize.planning.slurm import allocate, slurm_script
from outsize.progress import Reporter
from outsize.runs import RunFolder


def launch(
    job_path: Path,
    *,
    overrides: Sequence[str],
    ranks: tuple[int, int],
    gpu: str | None,
    minutes: int | None,
    out: Path | None,
    submits: bool,
    reporter: Reporter,
) -> Path:
    """Write the script of a job beside its file, submit it unless it is for looking at, and return its path.

    `ranks` are those of (nodes, each node).
    """
    job, (nodes, per_node) = load_job(job_path, overrides), ranks
    if submits and shutil.which("sbatch") is None:
        need, remedy = (
            "sbatch on the PATH",
            "run this where Slurm is, or add --dry-run to write the script only",
        )
        raise RanksError(explain("no Slurm to submit to", "no sbatch", need, remedy))
    with accounted(RunFolder(Path(job.run)), "launch", reporter, begins=submits):
        with naming(job_path):
            request, _ = ask_for(job, nodes * per_node, gpu, reporter)
        asked = allocate(request, nodes, per_node, job.train.workers if request.gpus else 0, minutes)
        changes = [word for each in overrides for word in ("--set", each)]
        script = out or job_path.with_suffix(".slurm.sh")
        text = slurm_script(
            asked,
            ["train", str(job_path.resolve()), "--resume", *changes],
            name=job_path.stem,
            folder=Path.cwd(),
            log=script.resolve().with_suffix(".out"),
            python=sys.executable,
        )
        with written_beside(script, script.suffix) as partial:
            partial.write_text(text, encoding="utf-8")
        reporter.say(
            "script", f"written: {script}: {asked.text()}", script=str(script), num_ranks=asked.num_tasks
        )
        if submits:
            _submit(script, reporter)
    return script


def _submit(script: Path, reporter: Reporter) -> None:
    done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True, check=False)
    if done.returncode:
        need, remedy = "a job in the queue", f"mend it in {script}, and run sbatch {script}"
        raise RanksError(explain("sbatch refuses the script", done.stderr.strip(), need, remedy))
    number = done.stdout.strip().partition(";")[0]
    reporter.say("submitted", f"submitted: job {number}; squeue -j {number} shows it", job=number)
