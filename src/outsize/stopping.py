"""Ends a verb when SIGTERM or Ctrl-C asks for it: at once, or after what must not be left half done.

    signal    SIGTERM ...................................... a second one: the process ends
    main      step 7 ##########|save ####|Stopped ---> one line, exit 143
              held ------------------------|

A signal's handler runs between any two lines of Python, and Python drops what is raised in a callback or in `__del__`,
of which tracing a model leaves thousands. So a signal is remembered, and what was dropped is raised again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_MAIN = threading.main_thread().ident or 0
_AGAIN_S = 0.02
_AGAIN = b"\0"  # no signal has this number
_PR_SET_PDEATHSIG = 1  # of linux/prctl.h


class Stopped(BaseException):
    """A signal asked for the end; no Exception, so that nobody mistakes it for a failure."""

    def __init__(self, signum: signal.Signals) -> None:
        super().__init__(signum.name)
        self.signum = signum
        self.kept = ""  # what was saved, in words for the user
        self.is_saved = False  # so that a training can continue from it

    @property
    def exit_code(self) -> int:
        """What a shell makes of a process that a signal ended."""
        return 128 + self.signum


@dataclass
class _State:
    """What was asked of this process."""

    signum: signal.Signals | None = None  # the first one
    is_raised: bool = False  # and on its way up
    num_held: int = 0
    is_dropped: bool = False  # and to be raised once more
    watch: int | None = None  # file to the thread that watches

    def clear(self) -> None:
        self.signum, self.num_held, self.watch = None, 0, None
        self.is_raised, self.is_dropped = False, False


_now = _State()


def asked() -> bool:
    """Say whether a signal has asked for the end."""
    return _now.signum is not None


def stop() -> Stopped:
    """Return what to raise where `asked`, here or of another rank, once all is saved."""
    _now.signum = _now.signum or signal.SIGTERM
    _now.is_raised = True
    return Stopped(_now.signum)


def check() -> None:
    """Raise Stopped if a signal asked for the end and nothing is held; for places where nothing can be lost."""
    if (
        _now.signum is not None
        and not (_now.is_raised or _now.is_dropped or _now.num_held)
        and threading.current_thread() is threading.main_thread()
    ):
        raise stop()


@contextmanager
def held() -> Iterator[None]:
    """Keep a signal from ending the block in its middle; who is in it looks at `asked`."""
    _now.num_held += 1
    try:
        yield
    finally:
        _now.num_held -= 1
    check()


@contextmanager
def at_once() -> Iterator[None]:
    """Let a signal end this block in its middle, also inside of one that is held."""
    num_held, _now.num_held = _now.num_held, 0
    try:
        check()
        yield
    finally:
        _now.num_held = num_held


@contextmanager
def shielded() -> Iterator[None]:
    """Begin processes in this block: signals to the whole group, such as Ctrl-C, do not reach them.

    Some prepare what the step that is being done still needs; others would print where a signal met them. What is sent
    to this process meanwhile waits for the end of the block.
    """
    from multiprocessing import resource_tracker

    # its own beginning would let signals through again
    resource_tracker.ensure_running()
    with held():  # too: another thread may take what this one does not
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """Have the system end this process when the one that began it is gone; for the first line of a process."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def heed_terminate() -> None:
    """Let SIGTERM, and that alone, end a process that was begun in a `shielded` block."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@contextmanager
def listening() -> Iterator[None]:
    """Turn signals into Stopped while the block runs, in the main thread; a second one ends the process at once."""
    _now.clear()
    # one that is ignored, as by nohup or in the background of a script, stays so
    handled = [each for each in _SIGNALS if signal.getsignal(each) is not signal.SIG_IGN]
    before = {each: signal.getsignal(each) for each in handled}
    hook = sys.unraisablehook
    with _second_ends():
        for each in handled:
            signal.signal(each, _on_signal)
        sys.unraisablehook = _again_if_dropped
        try:
            yield
            if _now.signum is not None:  # it came too late to end anything, or somebody has caught it
                raise stop()
        finally:
            _now.is_raised = True  # from here on it would only disturb the end
            sys.unraisablehook = hook
            for each, handler in before.items():
                signal.signal(each, handler)
            _now.clear()


def _on_signal(signum: int, _: FrameType | None) -> None:
    if _now.signum is None:
        _now.signum = signal.Signals(signum)
    check()


def _again_if_dropped(dropped: Any) -> None:
    """Have what was raised where Python cannot pass it on raised once more."""
    if not isinstance(dropped.exc_value, Stopped) or _now.watch is None:
        sys.__unraisablehook__(dropped)
        return
    _now.is_dropped = True  # nothing may be raised in here: it would be dropped, too
    os.write(_now.watch, _AGAIN)
    _now.is_raised, _now.is_dropped = False, False


@contextmanager
def _second_ends() -> Iterator[None]:
    """Watch in a thread for a second signal: the main one may be deep in code that lets no handler run."""
    watched, sent = os.pipe()
    os.set_blocking(sent, False)
    before = signal.set_wakeup_fd(sent, warn_on_full_buffer=False)
    _now.watch = sent
    try:
        threading.Thread(target=_watch, args=(watched,), name="signals", daemon=True).start()
        yield
    finally:
        signal.set_wakeup_fd(before)
        _now.watch = None
        os.close(sent)  # which ends the thread


def _watch(watched: int) -> None:
    num_seen, num_own = 0, 0
    with open(watched, "rb", buffering=0) as file:
        while received := file.read(1):
            if received == _AGAIN:
                num_own += _send_again()
            elif received[0] in _SIGNALS and num_own:
                num_own -= 1
            elif received[0] in _SIGNALS:
                num_seen += 1
            if num_seen == 2:
                os._exit(128 + received[0])


def _send_again() -> int:
    """Send the main thread its signal until it is raised, and return how often; a real one wakes it from a wait."""
    num_sent = 0
    while _now.signum is not None and not _now.num_held and (_now.is_dropped or not _now.is_raised):
        signal.pthread_kill(_MAIN, _now.signum)
        num_sent += 1
        time.sleep(_AGAIN_S)
    return num_sent
