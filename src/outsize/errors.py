"""Every error a user can meet, in one tree.

OutsizeError                what a user can mend: one line, exit code 2
|-- JobError                the job file: broken TOML, unknown key, value out of range
|-- DataError               images and labels: missing, corrupt, mismatched
|   `-- UnsafeFileError     a file that asks for more than its own pixels: remote or outside references, bombs
|-- ModelError              unknown model, options that do not fit, weights that do not match
|   |-- DivergedError       a training whose losses or weights are no numbers any more
|   `-- TraceError          a model whose graph cannot be read, or an operation whose reach is not known
|-- PlanError               nothing fits the limit, or only an approximate plan does
|-- RunError                a run folder that lacks what a command needs
|   `-- InUseError          another process works on it
|-- RanksError              processes of one job: missing, lost, or of another job
|   `-- ReportedElsewhere   another process of the job has reported the error: nothing more is printed
|-- OutputError             no space, no permission, output in the way, or not ours to write over
`-- VerifyError             a proof of equality failed (exit code 1: the program ran, the answer is no)

Each message says four things: what went wrong, the value found, what was needed, what to do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LONG = 1000  # letters, of one of four parts: what a file holds may have any length
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class OutsizeError(Exception):
    """Base of every error that a user can mend."""

    exit_code = 2


class JobError(OutsizeError):
    """The job file cannot be used as written."""


class DataError(OutsizeError):
    """An image or label file cannot be used."""


class UnsafeFileError(DataError):
    """A file asks for more than its own pixels and is refused."""


class ModelError(OutsizeError):
    """A model cannot be built, loaded or fed as asked."""


class DivergedError(ModelError):
    """A training led to losses or weights that are no numbers."""


class TraceError(ModelError):
    """A model's graph cannot be read, or an operation's reach is not known."""


class PlanError(OutsizeError):
    """No plan satisfies the limits."""


class RunError(OutsizeError):
    """A run folder lacks what the command needs."""


class InUseError(RunError):
    """Another process works on a run or an output."""


class RanksError(OutsizeError):
    """The processes of a job do not find each other, or one is lost."""


class ReportedElsewhere(RanksError):
    """Another process of the job has reported the error; this one ends with the same exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("another rank has reported why it ended")
        self.exit_code = exit_code


class OutputError(OutsizeError):
    """A result cannot be written where it was asked for."""


class VerifyError(OutsizeError):
    """A proof of equality failed."""

    exit_code = 1


def explain(problem: str, found: object, needed: str, remedy: str) -> str:
    """Join the four parts of a message into its one line."""
    parts = (_UNSEEN.sub(_as_seen, str(part)) for part in (problem, found, needed, remedy))
    problem, found, needed, remedy = (part if len(part) <= _LONG else f"{part[:_LONG]}..." for part in parts)
    return f"{problem}: found {found}, needed {needed}; {remedy}"


def _as_seen(found: re.Match[str]) -> str:
    """Write what ends lines, moves the cursor or cannot be printed as Python would: names of files hold that."""
    return found[0].encode("unicode_escape").decode()


def found_in(message: str) -> str:
    """Return of a message's four parts the second; all of it where it has none."""
    return message.partition(": found ")[2].partition(", needed ")[0] or message


def needed_in(message: str) -> str:
    """Return of a message's four parts the third; nothing where it has none."""
    return message.partition(", needed ")[2].partition("; ")[0]


def one_line(error: BaseException) -> str:
    """Return an error's text without line breaks."""
    return " ".join(str(error).split())


def first_line(error: BaseException) -> str:
    """Put an error of somebody else's code into one line: its kind, and the beginning of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def listed(names: Sequence[object], num_shown: int = 4) -> str:
    """Name the first few of many."""
    more = len(names) - num_shown
    return ", ".join(str(name) for name in names[:num_shown]) + (f" and {more} more" if more > 0 else "")
