"""A signal ends what can be ended, waits where it must, and is never forgotten."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from outsize import stopping
from outsize.progress import Reporter
from outsize.stopping import Stopped

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_goes_up_at_once(signum: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in SIGNALS]

    def verb() -> None:
        with stopping.listening():
            signal.raise_signal(signum)
            pytest.fail("went on")

    with pytest.raises(Stopped) as found:
        verb()
    assert found.value.exit_code == 128 + signum
    assert str(found.value) == signum.name
    assert [signal.getsignal(each) for each in SIGNALS] == before
    assert not stopping.asked()


def test_what_is_held_is_done_first() -> None:
    done = []

    def verb() -> None:
        with stopping.listening(), stopping.held():
            signal.raise_signal(signal.SIGTERM)
            assert stopping.asked()
            Reporter("quiet").say("step", "one more")
            done.append("step")

    with pytest.raises(Stopped):
        verb()
    assert done == ["step"]


def test_a_part_of_what_is_held_may_end_at_once() -> None:
    done = []

    def verb() -> None:
        with stopping.listening(), stopping.held():
            with stopping.at_once():
                done.append("begun")
                signal.raise_signal(signal.SIGTERM)
                done.append("validated")
            done.append("went on")

    with pytest.raises(Stopped):
        verb()
    assert done == ["begun"]


def test_one_that_came_while_held_ends_that_part_at_its_beginning() -> None:
    def verb() -> None:
        with stopping.listening(), stopping.held():
            signal.raise_signal(signal.SIGTERM)
            with stopping.at_once():
                pytest.fail("begun")

    with pytest.raises(Stopped):
        verb()


class _Silent:
    """Python drops what is raised here."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_one_that_python_drops_is_raised_again(capfd: pytest.CaptureFixture[str]) -> None:
    def verb() -> None:
        with stopping.listening():
            each: _Silent | None = _Silent()
            assert each is not None
            each = None
            time.sleep(300)
            pytest.fail("forgotten")

    with pytest.raises(Stopped):
        verb()
    assert capfd.readouterr().err == ""


def test_one_that_somebody_caught_ends_the_verb_all_the_same() -> None:
    done = []

    def verb() -> None:
        with stopping.listening():
            try:
                signal.raise_signal(signal.SIGINT)
            except Stopped:
                Reporter("quiet").say("figures", "of what was measured before")
                done.append("told")

    with pytest.raises(Stopped):
        verb()
    assert done == ["told"]


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stopping.listening():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


_SECOND = """
import os, signal, time
from outsize import stopping
with stopping.listening(), stopping.held():
    os.kill(os.getpid(), signal.{first})
    while not stopping.asked():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.{second})
    time.sleep(600)
"""


@pytest.mark.parametrize("first", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("second", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_the_process_at_once(first: str, second: str) -> None:
    code = _SECOND.format(first=first, second=second)
    done = subprocess.run([sys.executable, "-c", code], timeout=300, check=False)
    assert done.returncode == 128 + signal.Signals[second]


def _masked(back: Connection) -> None:
    stopping.end_with_parent()
    held = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    stopping.heed_terminate()
    back.send((set(SIGNALS) <= held, signal.SIGTERM in signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_processes_begun_under_a_shield_are_not_met_by_signals_to_the_group() -> None:
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_masked, args=(there,))
    with stopping.shielded():
        process.start()
    assert not set(SIGNALS) & signal.pthread_sigmask(signal.SIG_BLOCK, [])
    assert here.recv() == (True, False)
    process.join()


def test_a_signal_under_a_shield_waits_for_its_end() -> None:
    done = []

    def verb() -> None:
        with stopping.listening():
            with stopping.shielded():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("begun")
            pytest.fail("went on")

    with pytest.raises(Stopped):
        verb()
    assert done == ["begun"]


@pytest.mark.skipif(sys.platform != "linux", reason="what other systems have for it is not used")
def test_a_process_ends_with_the_one_that_began_it() -> None:
    code = (
        "import os, signal, sys, time\n"
        "from outsize import stopping\n"
        "if os.fork() == 0:\n"
        "    stopping.end_with_parent()\n"
        "    print(os.getpid(), flush=True)\n"
        "    time.sleep(600)\n"
        "sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        assert parent.stdout.read() == ""  # until the child has let go of it, too
    while not _has_ended(child):
        time.sleep(0.01)


def _has_ended(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] == "Z"  # nobody may have asked yet how
