"""What comes before the first step of a training, and whether the memory that is seen keeps to the limit.

    python benchmarks/first_step.py job.toml [--limits 4GiB,8GiB] [--gpu 0] [--device auto]

Each training runs twice in a folder of its own, for some steps: the first makes a plan, the second remembers it. The
clock runs from the start of `outsize train` to the first line of steps in metrics.jsonl, less the time of those steps.
Memory is that of the whole device by nvidia-smi, less what was used before, ten times a second; the context of CUDA,
some 500 MiB, is in it and not in the limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter

_TICK_S, _STEPS = 0.1, 20
_ENDED = 143  # by SIGTERM, saved


def used_mib(gpu: int) -> int:
    """Return what nvidia-smi says is used on a GPU; 0 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 0
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0])


def steps_of(run: Path) -> list[dict[str, Any]]:
    """Return the lines that a run has written about its steps."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("}")]
    return [each for each in records if each["kind"] == "step"]


def followed(asked: argparse.Namespace, run: Path, limit: str) -> tuple[float, int, int]:
    """Train and return seconds before the first step, and the largest memory before it and in all."""
    command = [
        sys.executable,
        "-m",
        "outsize",
        "train",
        str(asked.job),
        "--overwrite",
        "--device",
        asked.device,
    ]
    for setting in (f"run={run}", f"limits.gpu_memory={limit}"):
        command += ["--set", setting]
    idle, began, first_s, before, most = used_mib(asked.gpu), time.perf_counter(), 0.0, 0, 0
    (run / "metrics.jsonl").unlink(missing_ok=True)
    with subprocess.Popen(command) as process:
        while process.poll() is None:
            most = max(most, used_mib(asked.gpu) - idle)
            steps = steps_of(run)
            if steps and not first_s:
                first_s = time.perf_counter() - began - steps[0]["step"] * steps[0]["step_s"]
                before = most
            if steps and steps[-1]["step"] >= _STEPS:
                process.terminate()
                process.wait()
            time.sleep(_TICK_S)
    if process.returncode not in (0, _ENDED):
        sys.exit(f"training ended with {process.returncode}: {' '.join(command)}")
    return first_s, before, most


def main() -> None:
    """Print one row for each limit, planned and remembered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--limits", default="4GiB,8GiB")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    print("| limit | plan | first step after | most MiB until steps are logged | most MiB | over the limit |")
    print("|---|---|---|---|---|---|")
    for limit in asked.limits.split(","):
        limit_mib = TypeAdapter(ByteSize).validate_python(limit) / 2**20
        with tempfile.TemporaryDirectory() as folder:
            for plan in ("made", "remembered"):
                first_s, before, most = followed(asked, Path(folder) / "run", limit)
                over = f"{max(0.0, most - limit_mib):.0f} MiB"
                print(f"| {limit} | {plan} | {first_s:.1f} s | {before} | {most} | {over} |", flush=True)


if __name__ == "__main__":
    main()
