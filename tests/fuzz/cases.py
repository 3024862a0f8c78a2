"""Runs cases in forked processes, one after another, and says of each how it ended: `python -m tests.fuzz.cases`.

ok         exit code 0
refused    exit code 1 or 2, and one line that says why
many lines such an exit, and more on stderr than its line
traceback  what a user would see as one
crash      a signal ended the process: native code
hang       more than a minute of computing, or five minutes of waiting
memory     more than a gigabyte beyond what the process had
outside    a file written elsewhere than in the folder of the case, a network asked, a program run
malformed  a style that is no XML, or a table of maps that is no JSON
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.parsers import expat

from tests import preloaded
from tests.fuzz.subjects import SUBJECTS

MOST_BYTES = 2**30
_CPU_S, _WALL_S = 60, 300
_PER_PROCESS = 20
_GOOD = ("ok", "refused")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_RUNS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "socket.connect", "socket.getaddrinfo")


@dataclass(frozen=True)
class Ended:
    """How a case ended; `told` is its line, or the end of its traceback."""

    kind: str
    seed: int
    outcome: str
    told: str = ""

    @property
    def is_good(self) -> bool:
        """Whether a user may meet it."""
        return self.outcome in _GOOD


def run_cases(bases: Path, scratch: Path, cases: list[tuple[str, int]]) -> Iterator[Ended]:
    """Yield how each case (kind, seed) ended; a process that crashes or hangs is replaced by another one."""
    left = list(cases)
    while left:
        few = left[:_PER_PROCESS]
        done = 0
        for ended in _in_process(bases, scratch, few):
            done += 1
            yield ended
        left = left[done:]


def _in_process(bases: Path, scratch: Path, cases: list[tuple[str, int]]) -> Iterator[Ended]:
    back, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(back)
        code = 1
        try:
            _child(bases, scratch, cases, out)
            code = 0
        except BaseException:  # noqa: BLE001 (nothing of a child may get into the parent's stack)
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(out)
    text, done, last_cpu_s, since_s, moved_s = b"", 0, 0.0, time.monotonic(), _cpu_s(pid)
    outcome = ""
    with os.fdopen(back, "rb", buffering=0) as pipe:
        while True:
            ready, _, _ = select.select([pipe], [], [], 1.0)
            if ready:
                more = pipe.read(2**16)
                if not more:
                    break
                text += more
                *lines, text = text.split(b"\n")
                for line in lines:
                    done += 1
                    yield Ended(**json.loads(line))
                since_s, moved_s = time.monotonic(), _cpu_s(pid)
                continue
            last_cpu_s = _cpu_s(pid)
            if last_cpu_s - moved_s > _CPU_S or time.monotonic() - since_s > _WALL_S:
                outcome = "hang"
                os.kill(pid, signal.SIGKILL)
                break
    _, status = os.waitpid(pid, 0)
    if done < len(cases):
        kind, seed = cases[done]
        yield Ended(kind, seed, outcome or "crash", f"status {status}")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _child(bases: Path, scratch: Path, cases: list[tuple[str, int]], out: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    home = scratch / "home"
    for name, value in (("HOME", home), ("XDG_CACHE_HOME", home / "cache"), ("TMPDIR", scratch / "tmp")):
        Path(value).mkdir(parents=True, exist_ok=True)
        os.environ[name] = str(value)
    import tempfile

    tempfile.tempdir = os.environ["TMPDIR"]
    watch = _Watch(scratch)
    sys.addaudithook(watch.see)
    for kind, seed in cases:
        ended = _one(bases, scratch, kind, seed, watch)
        os.write(out, json.dumps(vars(ended)).encode() + b"\n")


class _Watch:
    """Sees what Python code opens for writing elsewhere, and what it runs."""

    def __init__(self, scratch: Path) -> None:
        self._inside = (str(scratch), "/dev/", "/proc/self", f"/proc/{os.getpid()}")
        self.seen: list[str] = []
        self.looks = False

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.looks:
            return
        if event in _RUNS:
            self.seen.append(f"{event} {args[:2]}")
        if event == "open" and isinstance(args[0], str | bytes) and (args[2] or 0) & _WRITES:
            path = os.path.realpath(os.fsdecode(args[0]))
            if not path.startswith(self._inside):
                self.seen.append(f"open {path}")


def _one(bases: Path, scratch: Path, kind: str, seed: int, watch: _Watch) -> Ended:
    folder = scratch / "case"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(bases / kind, folder)
    os.chdir(folder)
    before = set(scratch.iterdir())
    watch.seen.clear()
    errors = scratch / "stderr"
    Path("/proc/self/clear_refs").write_text("5")
    had_bytes = _peak_bytes()
    outcome, told = "ok", ""
    for words in SUBJECTS[kind].spoil(folder, random.Random(f"{kind} {seed}")):
        watch.looks = True
        outcome, told = _command(words, errors)
        watch.looks = False
        told = f"{' '.join(words)}: {told}"
        if outcome not in _GOOD:
            break
    if outcome in _GOOD and _peak_bytes() - had_bytes > MOST_BYTES:
        outcome, told = "memory", f"{(_peak_bytes() - had_bytes) / 2**20:.0f} MiB: {told}"
    new = [path.name for path in scratch.iterdir() if path not in before and path != errors]
    new += [path.name for path in (scratch / "tmp").iterdir() if path.name.startswith(("outsize-", "tmp"))]
    if outcome in _GOOD and (watch.seen or new):
        outcome, told = "outside", f"{watch.seen[:3]} {new[:3]} {told}"
    wrong = _malformed(folder) if outcome == "ok" else ""
    return Ended(kind, seed, "malformed" if wrong else outcome, (wrong or told)[-3000:])


def _command(words: list[str], errors: Path) -> tuple[str, str]:
    """Run a command line as `outsize` does, and say how it ended."""
    from outsize import cli

    sys.argv = ["outsize", *words]
    saved = os.dup(1), os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    told = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(nothing, 1)
    os.dup2(told, 2)
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    except MemoryError:
        code = "memory"
    except BaseException:  # noqa: BLE001 (what a user would see as a traceback)
        code = traceback.format_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for each in (*saved, nothing, told):
            os.close(each)
    lines = errors.read_text(errors="replace").splitlines()
    if code == "memory" or isinstance(code, str):
        return ("memory" if code == "memory" else "traceback"), str(code)[-2500:]
    if "Traceback (most recent call last)" in "\n".join(lines):
        return "traceback", "\n".join(lines)[-2500:]
    if code in (0, None):
        return "ok", lines[-1] if lines else ""
    is_one = len(lines) == 1 and code in (1, 2) and lines[0].startswith("outsize: ")
    return ("refused" if is_one else "many lines"), "\n".join(lines)[-1500:]


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def _malformed(folder: Path) -> str:
    for path in folder.rglob("*.qml"):
        try:
            expat.ParserCreate().Parse(path.read_bytes(), True)
        except expat.ExpatError as error:
            return f"{path}: {error}"
    return ""


def main() -> None:
    """Read bases, scratch and cases (kind, first, end) from the arguments; write a JSON line for each case."""
    bases, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    cases = [
        (kind, seed)
        for text in sys.argv[3:]
        for kind, first, end in [text.split(":")]
        for seed in range(int(first), int(end))
    ]
    scratch.mkdir(parents=True, exist_ok=True)
    preloaded.load()
    for ended in run_cases(bases, scratch, cases):
        sys.stdout.write(json.dumps(vars(ended)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
