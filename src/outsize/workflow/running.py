"""Runs stages as processes of their own, each when those before it are done and what it uses is free.

a:acquire ######                                network
b:acquire       ######
a:prepare       ######                          cores
b:prepare             ######
a:train               ############              device
b:train                           ############
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from outsize import stopping
from outsize.errors import RunError, explain
from outsize.progress import Reporter
from outsize.runs import output_errors
from outsize.units import format_seconds
from outsize.workflow.records import Records
from outsize.workflow.stages import WorkflowStage
from outsize.workflow.timeline import Lap

_LOOK_S = 0.05
_PATIENCE_S = 600.0  # for a training that saves before it ends
_LAST_BYTES = 2**14
# a stage ends with this process, however that ends
_MAIN = (
    "import sys; from outsize import stopping; stopping.end_with_parent(); sys.argv[0] = 'outsize'; "
    "from outsize.cli import main; main()"
)


@dataclass
class _Going:
    """A stage that runs."""

    stage: WorkflowStage
    process: subprocess.Popen[bytes]
    log: BinaryIO
    began_s: float


@dataclass
class _SoFar:
    """How far a workflow got."""

    laps: list[Lap] = field(default_factory=list)
    done: set[str] = field(default_factory=set)  # also what was skipped
    failed: dict[str, str] = field(default_factory=dict)  # the reason, by stage


def run_stages(
    stages: Sequence[WorkflowStage], records: Records, forced: Sequence[str], reporter: Reporter
) -> list[Lap]:
    """Run what is not as it should be; return what ran from when to when. Raises RunError where a stage failed.

    A stage that fails keeps only those after it from running.
    """
    run, origin_s = _SoFar(), time.time()
    going: list[_Going] = []
    try:
        while True:
            for each in [each for each in going if each.process.poll() is not None]:
                going.remove(each)
                _end(each, run, records, origin_s, reporter)
            going += _begin_next(stages, going, run, records, forced, reporter)
            if not going:
                break
            stopping.check()
            time.sleep(_LOOK_S)
    except BaseException:
        _stop(going)
        raise
    if run.failed:
        raise _failure(run.failed, records, stages)
    return run.laps


def _begin_next(
    stages: Sequence[WorkflowStage],
    going: Sequence[_Going],
    run: _SoFar,
    records: Records,
    forced: Sequence[str],
    reporter: Reporter,
) -> list[_Going]:
    """Begin each stage whose time has come, and pass over those that are as they should be."""
    begun: list[_Going] = []
    for stage in stages:
        known = run.done | run.failed.keys() | {each.stage.name for each in (*going, *begun)}
        used = {each.stage.uses for each in (*going, *begun)}
        if stage.name in known or not run.done.issuperset(stage.after) or stage.uses in used:
            continue
        why = "it is forced" if stage.name in forced else records.why(stage)
        if not why:
            reporter.say("skip", f"{stage.name}: as it was, skipped", stage=stage.name)
            run.done.add(stage.name)
            return begun + _begin_next(stages, [*going, *begun], run, records, forced, reporter)
        reporter.say("stage", f"{stage.name}: {why}", stage=stage.name, why=why)
        begun.append(_begin(stage, records))
    return begun


def _begin(stage: WorkflowStage, records: Records) -> _Going:
    goes_on = records.goes_on(stage)
    records.begin(stage)
    log = records.log(stage)
    with output_errors(log):
        log.parent.mkdir(parents=True, exist_ok=True)
        file = log.open("wb")
    command = [sys.executable, "-c", _MAIN, *words_of(stage, goes_on=goes_on)]
    # a session of its own: what Ctrl-C sends to all reaches it once, from here
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return _Going(stage, process, file, time.time())


def words_of(stage: WorkflowStage, *, goes_on: bool) -> tuple[str, ...]:
    """Return the words of a stage's command line: a training goes on with what it began, or starts over."""
    if stage.verb != "train":
        return stage.words
    return (*stage.words, "--resume" if goes_on and stage.run.state.is_file() else "--overwrite")


def _end(each: _Going, run: _SoFar, records: Records, origin_s: float, reporter: Reporter) -> None:
    each.log.close()
    code, seconds = each.process.returncode, time.time() - each.began_s
    if code == 0:
        records.finish(each.stage)
        run.done.add(each.stage.name)
        run.laps.append(Lap.of(each.stage, each.began_s - origin_s, seconds, records.log(each.stage)))
        reporter.say("done", f"{each.stage.name}: done in {format_seconds(seconds)}", stage=each.stage.name)
    else:
        run.failed[each.stage.name] = _last_line(records.log(each.stage)) or f"exit code {code}"
        reporter.say("failed", f"{each.stage.name}: {run.failed[each.stage.name]}", stage=each.stage.name)


def _stop(going: Sequence[_Going]) -> None:
    """Ask all that runs to end, and wait until it has saved what it saves."""
    for each in going:
        each.process.terminate()
    for each in going:
        try:
            each.process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            each.process.kill()
        each.log.close()


def _last_line(log: Path) -> str:
    """Return what a stage said last of why it ended."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LAST_BYTES))
        lines = [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("outsize: ") if lines else ""


def _failure(failed: dict[str, str], records: Records, stages: Sequence[WorkflowStage]) -> RunError:
    name, why = next(iter(failed.items()))
    log = next(records.log(each) for each in stages if each.name == name)
    more = f", and {', '.join([*failed][1:])}" if len(failed) > 1 else ""
    remedy = f"see {log}; repeated, the command runs only what is missing"
    return RunError(explain(f"stage {name} failed{more}", why, "exit code 0", remedy))
