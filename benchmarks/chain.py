"""Commands one after the other with a clock for each, as a user would type them; the first that fails ends them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path


def run_chain(
    name: str, steps: Mapping[str, Sequence[str]], log: Path
) -> tuple[dict[str, float], dict | None]:
    """Return the seconds of each step, and what is told of the one that failed: its last lines."""
    seconds: dict[str, float] = {}
    with log.open("w") as file:
        for step, words in steps.items():
            start_s = time.perf_counter()
            command = [sys.executable, "-m", "outsize", *words]
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, check=False)
            seconds[step] = round(time.perf_counter() - start_s, 1)
            print(f"{name}: {step} in {seconds[step]} s", flush=True)
            if done.returncode:
                tail = log.read_text().splitlines()[-5:]
                return seconds, {"failed": step, "said": tail, "seconds": seconds, "reached": False}
    return seconds, None
