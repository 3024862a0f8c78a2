"""One owner at a time, and a lock that was left is taken over only where its owner is surely gone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from outsize.errors import InUseError
from outsize.files.locks import holder_of, holding, refuse_held
from outsize.files.processes import Owner, me

_HOLDER = """
import sys
from pathlib import Path
from outsize.files.locks import holding

with holding(Path(sys.argv[1]), "the run", "train"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def _held_by_another(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", _HOLDER, str(path)], env=environment, **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def _leave(path: Path, owner: Owner) -> None:
    """Write a lock file as a process that was killed leaves it."""
    path.write_text("")
    path.write_text(json.dumps({**owner.as_dict(), "file": path.stat().st_ino}))


def _no_kernel_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "no locks")


def test_the_second_is_told_of_the_first_and_comes_in_after_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with _held_by_another(path) as child:
        match = "the run is in use: found `outsize train`, process"
        with pytest.raises(InUseError, match=match) as refused, holding(path, "the run", "train"):
            pytest.fail("both are in")
        assert f"process {child.pid} on {platform.node()}" in str(refused.value)
        assert f"process {child.pid}" in str(holder_of(path))
        with pytest.raises(InUseError, match=f"the run is in use: found .*process {child.pid}"):
            refuse_held(path, "the run")
        child.communicate(b"\n")
    assert not path.exists()
    assert holder_of(path) is None
    with holding(path, "the run", "train"):
        assert holder_of(path) is None  # nobody else
    assert not path.exists()


@pytest.mark.parametrize("kernel", [True, False])
def test_a_lock_of_a_killed_process_is_taken_over_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: bool
) -> None:
    path = tmp_path / ".lock"
    with _held_by_another(path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert path.exists()
    assert holder_of(path) is None
    if not kernel:
        monkeypatch.setattr(fcntl, "lockf", _no_kernel_locks)
    told: list[str] = []
    with holding(path, "the run", "train", tell=told.append):
        pass
    assert len(told) == 1
    assert f"left locked by `outsize train`, process {child.pid}" in told[0]
    assert not path.exists()


def test_without_locks_of_the_kernel_the_number_of_the_process_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    with _held_by_another(path):
        monkeypatch.setattr(fcntl, "lockf", _no_kernel_locks)
        with pytest.raises(InUseError, match="in use"), holding(path, "the run", "train"):
            pytest.fail("both are in")


def test_what_another_host_left_is_taken_over_only_when_a_user_says_so(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    far = replace(me("train"), host="elsewhere", space="pid:[7]", boot="other")
    _leave(path, far)
    match = r"left locked on another host: found .* on elsewhere"
    with pytest.raises(InUseError, match=match) as refused, holding(path, "the run", "train"):
        pytest.fail("taken over without a word")
    assert f"say --take-over or remove {path}" in str(refused.value)
    told: list[str] = []
    with holding(path, "the run", "train", take_over=True, tell=told.append):
        pass
    assert len(told) == 1


def test_a_container_that_ended_on_this_kernel_is_known_to_be_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    beside = replace(me("train"), host="a1b2c3", space="pid:[7]")
    _leave(path, beside)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "lockf", _no_kernel_locks)
        with pytest.raises(InUseError, match="another host"), holding(path, "the run", "train"):
            pytest.fail("nobody knows")
    with holding(path, "the run", "train"):
        pass


def test_the_same_thread_comes_in_again_and_another_one_does_not(tmp_path: Path) -> None:
    path, caught = tmp_path / ".lock", []

    def other() -> None:
        try:
            with holding(path, "the run", "train"):
                pass
        except InUseError as error:
            caught.append(error)

    with holding(path, "the run", "demo"):
        with holding(path, "the run", "train"):
            pass
        assert path.exists()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert len(caught) == 1
    assert "`outsize demo`" in str(caught[0])


def test_a_child_of_the_owner_comes_in_and_leaves_the_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with holding(path, "the run", "train"):
        command = [sys.executable, "-c", _HOLDER, str(path)]
        done = subprocess.run(command, env=environment, input=b"\n", capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        child = os.fork()
        if child == 0:
            with holding(path, "the run", "train"):
                pass
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert path.exists()
        with pytest.raises(AssertionError), _held_by_stranger(path):
            pass


@contextmanager
def _held_by_stranger(path: Path) -> Iterator[None]:
    """Have a process take the lock that init has adopted, and that is so no child of ours any more."""
    code = "import os, time; above = os.getpid(); os.fork() and os._exit(0)\n"
    code += "while os.getppid() == above: time.sleep(0.01)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code + _HOLDER, str(path)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield


def test_one_who_only_looks_at_a_lock_that_was_left_keeps_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".lock"
    _leave(path, replace(me("train"), start="1"))
    looks = iter([True, True, False])
    lockf = fcntl.lockf

    def looked_at(handle: int, how: int) -> None:
        if next(looks, False):
            raise OSError(errno.EAGAIN, "held for a moment")
        lockf(handle, how)

    monkeypatch.setattr(fcntl, "lockf", looked_at)
    with holding(path, "the run", "train"):
        assert next(looks, None) is None


def test_a_lock_that_was_copied_with_its_folder_holds_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / ".lock", tmp_path / "copy"
    with _held_by_another(path):
        copy.write_bytes(path.read_bytes())
        with holding(copy, "the copy", "train"):
            pass
    assert not copy.exists()


def test_a_lock_of_a_moment_is_waited_for(tmp_path: Path) -> None:
    path, order = tmp_path / ".lock", []
    with _held_by_another(path) as child:

        def second() -> None:
            with holding(path, "the list", "predict", wait=True):
                order.append("second")

        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
        child.communicate(b"\n")
        thread.join()
    assert order == ["first", "second"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"file": 1}', '{"pid": 1}', "\x00" * 100, "[" * 4096])
def test_a_broken_lock_is_free(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".lock"
    path.write_text(text)
    with holding(path, "the run", "train"):
        pass
    assert not path.exists()


def test_a_lock_that_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        with pytest.raises(OSError), holding(tmp_path / name, "the run", "train"):  # noqa: PT011
            pass
    assert (tmp_path / "mine").read_text() == "mine"
