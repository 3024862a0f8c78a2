"""What each verb took of a person's time: one line of accounts.jsonl in the run folder, whatever the verb.

verb ---- accounted(run, "train", reporter) ----> accounts.jsonl ----> read_accounts ----> report, workflows
           reporter.doing("validate"), bars        one line for each time that a verb ran
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outsize.errors import OutputError, RunError, explain, first_line
from outsize.files.append import append_whole
from outsize.files.ownership import mark
from outsize.progress import Activity, Reporter
from outsize.runs import RunFolder, as_written, is_own, output_errors, read_json_lines
from outsize.stopping import Stopped

VERSION = 1


@dataclass(frozen=True)
class Account:
    """One time that a verb ran: how long, and what it did."""

    verb: str
    began_s: float  # since 1970
    seconds: float
    cpu_s: float  # of this process, and of those it has started and seen end
    activities: tuple[
        Activity, ...
    ]  # none at the same time as another; what is left of `seconds` has no name
    outcome: str = "done"  # "stopped" by a signal, "failed"
    error: str = ""  # why it failed: the kind of error and its line
    goes_on: bool = False  # with what an earlier time left unfinished
    command: str = ""
    host: str = ""

    @property
    def rest_s(self) -> float:
        """What is in no activity: loading libraries, opening files."""
        return max(0.0, self.seconds - sum(each.seconds for each in self.activities))


@contextmanager
def accounted(
    run: RunFolder, verb: str, reporter: Reporter, *, goes_on: bool = False, begins: bool = False
) -> Iterator[None]:
    """Write down in a run what the block took; where it fails, only in a run that has more to tell.

    `begins`: a run that is not there yet begins with this account, for a report tells of what came before training.
    A full disk does not undo what the verb has done: that its account could not be kept is a warning.
    """
    began_s, cpu_s = time.time(), _cpu_s()

    def keep(outcome: str, error: str = "") -> None:
        seconds, activities = noted.found()
        name, *arguments = sys.argv
        command = shlex.join([Path(name).name, *arguments])
        taken = round(began_s, 3), round(seconds, 3), round(_cpu_s() - cpu_s, 3)
        _append(run, Account(verb, *taken, activities, outcome, error, goes_on, command, platform.node()))

    with reporter.noting() as noted:
        try:
            yield
        except BaseException as error:
            if noted.any and run.job.is_file():  # what came to nothing leaves nothing
                with suppress(OutputError):  # the error itself says more
                    if isinstance(error, Stopped | KeyboardInterrupt):
                        keep("stopped")
                    else:
                        keep("failed", first_line(error))
            raise
        try:
            if begins and not run.path.exists():
                with output_errors(run.accounts):
                    run.path.mkdir(parents=True)
                    mark(run.path)
            keep("done")
        except OutputError as error:
            reporter.say("warning", f"warning: what {verb} took is not kept: {error}")


def read_accounts(run: RunFolder) -> list[Account]:
    """Return what is known of the times that verbs ran, in the order in which they ended."""
    if not run.accounts.is_file():
        return []
    lines = read_json_lines(run.accounts, "train")
    with as_written(run.accounts, "train"):
        return [_parsed(line, run.accounts) for line in lines]


def _parsed(line: dict[str, Any], path: Path) -> Account:
    values = dict(line)
    version = values.pop("schema")
    if not isinstance(version, int) or version > VERSION:
        need, remedy = f"version {VERSION} or older", "read it with the outsize that wrote it, or a newer one"
        raise RunError(explain(f"{path} has a newer schema of accounts", repr(version), need, remedy))
    activities = tuple(
        Activity(
            str(each["name"]),
            int(each["parallel"]),
            tuple((float(start), float(end)) for start, end in each["spans"]),
            float(each["seconds"]),
        )
        for each in values.pop("activities")
    )
    return Account(**values, activities=activities)


def _append(run: RunFolder, account: Account) -> None:
    # a verb that leaves nothing there leaves no account, nor one that may only read it
    if not is_own(run) or not os.access(run.path, os.W_OK):
        return
    with output_errors(run.accounts):
        append_whole(run.accounts, (json.dumps({"schema": VERSION, **asdict(account)}) + "\n").encode())


def _cpu_s() -> float:
    taken = os.times()
    return taken.user + taken.system + taken.children_user + taken.children_system
