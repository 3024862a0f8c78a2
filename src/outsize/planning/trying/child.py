"""Runs a piece of work in a process of its own, for what leaves a process other than it was.

torch's profiler goes on slowing every kernel's launch after it has ended (CUPTI stays, up to torch 2.11 at least), and
a CUDA graph whose recording fails may leave torch in the middle of it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from outsize import stopping
from outsize.data.feeding import ended_by
from outsize.errors import OutsizeError, first_line
from outsize.plan.effort import PATIENCE_S
from outsize.units import format_seconds

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_TICK_S, _END_S = 1.0, 5
_LOADED = "torch"  # by the server that processes are copied from, so that each need not

_MISTAKES = (AssertionError, AttributeError, ImportError, LookupError, TypeError, ValueError)

Given = TypeVar("Given")
Result = TypeVar("Result")


class NoAnswer(Exception):
    """The work was not done; the text says why."""


class TookTooLong(NoAnswer):
    """The work was not done in time, and was ended."""


def run_in_child(
    work: Callable[[Given], Result],
    given: Given,
    *,
    patience_s: float = PATIENCE_S,
    tick: Callable[[], object] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Result:
    """Return work(given); a function of a module, for it is found by its name. `tick` is called about every second."""
    try:
        # as bytes: tensors would be sent by shared memory, which is scarce in containers and goes with its process
        sent = pickle.dumps((work, given))
    except (pickle.PicklingError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise NoAnswer(f"it cannot be sent to another process: {first_line(error)}") from error
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_LOADED])  # of no effect where the server runs already
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(sent, there), daemon=True)
    with stopping.shielded():  # this one ends it
        process.start()
    there.close()
    try:
        end_s = clock() + patience_s
        while not here.poll(max(0.0, min(_TICK_S, end_s - clock()))):
            if clock() >= end_s:
                raise TookTooLong(f"no answer from another process in {format_seconds(patience_s)}")
            tick()
        result, why_not = pickle.loads(here.recv_bytes())  # of our own function
    except EOFError as error:
        process.join(_END_S)
        how = "" if process.exitcode is None else f", {ended_by(process.exitcode)}"
        raise NoAnswer(f"another process ended without a word{how}") from error
    finally:
        process.kill()
        process.join()
    if why_not is not None:
        raise NoAnswer(why_not)
    found: Result = result
    return found


def _do(sent: bytes, back: Connection) -> None:
    answer: tuple[Any, str | None]
    stopping.end_with_parent()
    try:
        work, given = pickle.loads(sent)  # our own, a moment ago
        answer = work(given), None
    except (*_MISTAKES, OSError, RuntimeError, OutsizeError) as error:
        answer = None, first_line(error)  # of any other, whoever asked learns that this process has ended
    back.send_bytes(pickle.dumps(answer))
