"""Within ever smaller limits of the address space a verb ends: done, or with one line; it never hangs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 2**20
LIMITS_MIB = (3000, 4600, 5120, 5400, 5800, 8192)
_PATIENCE_S = 300  # a hang lasts forever, and a job of this size half a minute on a busy machine
_CODE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({limit},) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from outsize.cli import main
sys.argv = ["outsize", *{words}]
main()
"""


def _outcome(limit_mib: int, words: list[str], cwd: Path) -> str:
    """Run a verb within a limit, and say in a line how it ended."""
    code = _CODE.format(limit=limit_mib * MIB, words=words)
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=cwd,
            env=environ,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"hang {str(error.stderr)[-2000:]}"
    if "Traceback" in done.stderr:
        return f"traceback {done.stderr[-2000:]}"
    if done.returncode < 0:
        return f"crash by {signal.Signals(-done.returncode).name} {done.stderr[-200:]}"
    if done.returncode == 0:
        return "done"
    last = (done.stderr.splitlines() or [""])[-1]
    return f"line {last}" if last.startswith("outsize: ") else f"native {last}"


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="limits of the address space are those of Linux")
@pytest.mark.parametrize("verb", ["predict", "train"])
def test_little_memory_is_a_line_and_never_a_hang(
    verb: str, trained_run: Path, scenes: Path, job_path: Path, tmp_path: Path
) -> None:
    words = {
        "predict": [str(trained_run), str(scenes / "test-2.tif"), "--out", str(tmp_path / "out")],
        "train": [str(job_path), "--overwrite"],
    }[verb]
    outcomes = {limit: _outcome(limit, [verb, *words, "--device", "cpu"], tmp_path) for limit in LIMITS_MIB}
    # a crash or an end in a library's own code cannot be caught: it is counted here
    print("", *(f"{verb} within {limit} MiB: {outcome}" for limit, outcome in outcomes.items()), sep="\n")
    bad = {limit: each for limit, each in outcomes.items() if each.startswith(("hang", "traceback"))}
    assert bad == {}
    for limit in LIMITS_MIB[:2]:
        assert outcomes[limit].startswith("line outsize: host memory is too little to begin"), outcomes[limit]
    assert outcomes[LIMITS_MIB[-1]] == "done"
