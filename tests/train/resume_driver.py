"""Trains the same job many times, killing or stopping each at another moment and resuming it; run by test_resume.

The moments are points in the program, so that every kind is met for sure: a step, a validation, and the write of a
checkpoint before, amid and after its bytes reach the disk. This process has no threads, so its children may fork.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from tests import preloaded

import outsize.card as card_module
import outsize.train.loop as loop_module
from outsize import stopping
from outsize.commands.train import train
from outsize.progress import Reporter

# the room shows a function of that name, which `import ... as` would take
validate_module = import_module("outsize.tasks.segment.scores.validate")


def run_child(
    job: Path,
    run: Path,
    mode: str,
    sabotage: Callable[[], None] | None = None,
    stop_after_s: float | None = None,
) -> int:
    """Train in a forked child and return its exit status; negative is the signal that ended it."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        if sabotage is not None:
            sabotage()
        try:
            with stopping.listening():
                train(job, overrides=[f"run={run}"], device_name="cpu", mode=mode, reporter=Reporter("quiet"))
        except stopping.Stopped as stopped:
            os._exit(stopped.exit_code)
        os._exit(0)
    if stop_after_s is not None:
        while not (run / "job.toml").exists():  # which is written when training begins
            time.sleep(0.001)
        time.sleep(stop_after_s)
        os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    signal.raise_signal(signal.SIGTERM)


def before_call(module: Any, name: str, number: int, end: Callable[[], None] = die) -> Callable[[], None]:
    """Return what makes a child die, or be stopped, when it is about to call a function for the nth time."""

    def sabotage() -> None:
        original, calls = getattr(module, name), iter(range(1, 10**6))

        def dying(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == number:
                end()
            return original(*args, **kwargs)

        setattr(module, name, dying)

    return sabotage


def amid_save(number: int) -> Callable[[], None]:
    """Return what makes a child die when half of the nth checkpoint file is written."""

    def sabotage() -> None:
        original, calls = card_module.save_file, iter(range(1, 10**6))

        def dying(tensors: Any, path: Path, **kwargs: Any) -> None:
            original(tensors, path, **kwargs)
            if next(calls) == number:
                os.truncate(path, Path(path).stat().st_size // 2)
                die()

        card_module.save_file = dying

    return sabotage


MOMENTS: dict[str, Callable[[], None]] = {
    **{f"step {n}": before_call(loop_module, "_where", n) for n in (1, 2, 4, 6, 7, 9)},
    **{f"validation, tile {n}": before_call(validate_module, "confusion", n) for n in (1, 5, 14, 20)},
    **{f"before checkpoint write {n}": before_call(card_module, "save_file", n) for n in (1, 2, 4, 6)},
    **{f"amid checkpoint write {n}": amid_save(n) for n in (1, 2, 3, 5, 7)},
    "before the epoch is closed": before_call(loop_module, "_close_epoch", 2),
}


STOPS: dict[str, Callable[[], None]] = {
    "stop in step 2": before_call(loop_module, "_where", 2, stop),
    "stop in step 4, the last of an epoch": before_call(loop_module, "_where", 4, stop),
    "stop in a validation": before_call(validate_module, "confusion", 14, stop),
}


def stop_at_random(job: Path, folder: Path) -> None:
    """Stop a training ten times, each time at another moment, and let it go on each time; then the same again."""
    preloaded.load()
    start_s = time.monotonic()
    outcomes: dict[str, Any] = {"undisturbed": run_child(job, folder / "undisturbed", "new")}
    takes_s = time.monotonic() - start_s
    expected, draws = fingerprint(folder / "undisturbed"), random.Random(7)
    num_stopped = 0
    for number in range(60):
        run = folder / f"stopped-{number}"
        stopped = run_child(job, run, "new", stop_after_s=draws.random() * takes_s)
        if stopped == 0:  # it had ended
            continue
        num_stopped += 1
        resumed = run_child(job, run, "resume")
        found = fingerprint(run)
        differing = [key for key in {*expected, *found} if found.get(key) != expected.get(key)]
        outcomes[f"random {number}"] = {"killed": stopped, "resumed": resumed, "differing": differing}
        if num_stopped == 10:
            break
    print(json.dumps(outcomes))


def main(job: Path, folder: Path) -> None:
    preloaded.load()
    undisturbed = folder / "undisturbed"
    outcomes: dict[str, Any] = {"undisturbed": run_child(job, undisturbed, "new")}
    expected = fingerprint(undisturbed)
    for number, (name, sabotage) in enumerate({**MOMENTS, **STOPS}.items()):
        run = folder / f"killed-{number}"
        killed = run_child(job, run, "new", sabotage)
        resumed = run_child(job, run, "resume")
        found = fingerprint(run)
        differing = [key for key in {*expected, *found} if found.get(key) != expected.get(key)]
        outcomes[name] = {"killed": killed, "resumed": resumed, "differing": differing}
    print(json.dumps(outcomes))


def fingerprint(run: Path) -> dict[str, Any]:
    """Return what must not differ by one bit: all checkpoint files, the metrics but for times, and hidden files.

    But for the state before the last one: whether there is one, and of which step, goes by where it stopped.
    """
    paths = sorted((run / "checkpoints").iterdir())
    files = {p.name: p.read_bytes().hex() for p in paths if p.name != "state-before.safetensors"}
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    untimed = [{name: value for name, value in line.items() if not name.endswith("_s")} for line in lines]
    left = sorted(path.name for path in run.rglob(".*"))
    return {**files, "metrics": untimed, "left": left}


if __name__ == "__main__":
    {"points": main, "random": stop_at_random}[sys.argv[3]](Path(sys.argv[1]), Path(sys.argv[2]))
