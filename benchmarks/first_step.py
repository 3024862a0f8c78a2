"""What comes before the first step of a training, and whether the memory that is seen keeps to the limit.

    python benchmarks/first_step.py job.toml [--limits 4GiB,8GiB] [--gpu 0] [--device auto]

Each training runs twice in a folder of its own, for some steps: the first makes a plan, the second remembers it. The
clock runs from the start of `outsize train` to the first line of steps in metrics.jsonl, less the time of those steps.
Memory is that of the whole device by nvidia-smi, less what was used before, ten times a second, most of it for each
event that the training reports; contexts of CUDA, some 500 MiB a process, are in it and not in the limit.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

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


@dataclass
class Watched:
    """A training that is followed: its last event, and the largest memory during each."""

    event: str = "start"
    most_mib: dict[str, int] = field(default_factory=dict)
    first_s: float = 0.0

    def read(self, lines: IO[str]) -> None:
        """Pass on what the training says, and keep the name of its last event."""
        for line in lines:
            print(line, end="", file=sys.stderr)
            with suppress(ValueError, TypeError, KeyError):
                said = json.loads(line)
                self.event = said.get("title", said["event"])

    def see(self, mib: int) -> None:
        """Count what is held now."""
        self.most_mib[self.event] = max(self.most_mib.get(self.event, 0), mib)


def followed(asked: argparse.Namespace, run: Path, limit: str) -> Watched:
    """Train for some steps; memory and the time before the first."""
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
    watched, idle, began = Watched(), used_mib(asked.gpu), time.perf_counter()
    (run / "metrics.jsonl").unlink(missing_ok=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        threading.Thread(target=watched.read, args=(process.stdout,), daemon=True).start()
        while process.poll() is None:
            watched.see(used_mib(asked.gpu) - idle)
            steps = steps_of(run)
            if steps and not watched.first_s:
                watched.first_s = time.perf_counter() - began - steps[0]["step"] * steps[0]["step_s"]
            if steps and steps[-1]["step"] >= _STEPS:
                process.terminate()
                process.wait()
            time.sleep(_TICK_S)
    if process.returncode not in (0, _ENDED):
        sys.exit(f"training ended with {process.returncode}: {' '.join(command)}")
    return watched


def main() -> None:
    """Print one row for each limit, planned and remembered."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path)
    parser.add_argument("--limits", default="4GiB,8GiB")
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    print("| limit | plan | first step after | most MiB | over the limit | most MiB by event |")
    print("|---|---|---|---|---|---|")
    for limit in asked.limits.split(","):
        limit_mib = TypeAdapter(ByteSize).validate_python(limit) / 2**20
        with tempfile.TemporaryDirectory() as folder:
            for plan in ("made", "remembered"):
                watched = followed(asked, Path(folder) / "run", limit)
                most = max(watched.most_mib.values())
                over = f"{max(0.0, most - limit_mib):.0f} MiB"
                events = ", ".join(f"{event} {mib}" for event, mib in watched.most_mib.items())
                print(
                    f"| {limit} | {plan} | {watched.first_s:.1f} s | {most} | {over} | {events} |", flush=True
                )


if __name__ == "__main__":
    main()
