"""A process is known again by host, number and start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

from outsize.files.processes import me, owner_from, start_of


def test_a_process_is_known_again() -> None:
    mine = me("train")
    assert owner_from(json.loads(json.dumps(mine.as_dict()))) == mine
    assert mine.is_near
    assert mine.runs
    assert mine.is_me_or_above_me
    assert f"`outsize train`, process {os.getpid()} on {mine.host}, since " in str(mine)


def test_a_number_given_again_is_another_process() -> None:
    mine = me("train")
    for other in (replace(mine, start="1"), replace(mine, boot="another start of the machine")):
        assert other.is_near
        assert not other.runs
        assert not other.is_me_or_above_me
    assert not replace(mine, host="elsewhere").is_near
    assert not replace(mine, space="pid:[1]").is_near  # a container beside this one


def test_one_that_ended_and_was_not_counted_yet_does_not_run() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert start_of(child.pid)
        child.communicate(b"\n")
        assert not start_of(child.pid)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it is a zombie from here on
    assert not start_of(pid)
    os.waitpid(pid, 0)


def test_a_parent_is_above_its_child() -> None:
    mine = me("train")
    code = (
        "import json, sys; from outsize.files.processes import owner_from;"
        "sys.exit(not owner_from(json.loads(sys.argv[1])).is_me_or_above_me)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(mine.as_dict())], env=environment, check=False
    )
    assert done.returncode == 0


def test_what_describes_no_process_is_none() -> None:
    tree = me("train").as_dict()
    for spoilt in (None, [], {}, {**tree, "pid": "1"}, {**tree, "pid": True}, {**tree, "host": "a\nb"}):
        assert owner_from(spoilt) is None
