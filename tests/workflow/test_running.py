"""What is missing or has changed runs, in order; what failed is named; killed and repeated, only the rest runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.workflow.lines import MAIN, chain, run, stage

from outsize.errors import RunError
from outsize.workflow import running
from outsize.workflow.running import words_of


@pytest.fixture(autouse=True)
def _lines_for_verbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_MAIN", MAIN)


def test_repeated_nothing_runs_that_is_as_it_was(tmp_path: Path) -> None:
    stages = chain(tmp_path, a="", b="", c="")
    assert run(tmp_path, stages)[0] == "abc"
    assert (tmp_path / "c.out").read_text() == "cba"
    assert run(tmp_path, stages)[0] == ""


def test_a_change_runs_what_it_reaches_and_no_more(tmp_path: Path) -> None:
    stages = chain(tmp_path, a="", b="", c="")
    run(tmp_path, stages)
    os.utime(tmp_path / "a.in", (1, 1))  # the same bytes
    assert run(tmp_path, stages)[0] == ""
    (tmp_path / "b.in").write_text("B")
    assert run(tmp_path, stages)[0] == "bc"
    (tmp_path / "b.out").write_text("spoilt")
    assert run(tmp_path, stages)[0] == "b"  # which leaves what it left before
    (tmp_path / "c.out").unlink()
    assert run(tmp_path, stages)[0] == "c"
    assert run(tmp_path, [stages[0], replace(stages[1], settings="lr"), stages[2]])[0] == "b"


def test_what_is_forced_runs_and_others_only_if_it_left_something_else(tmp_path: Path) -> None:
    stages = chain(tmp_path, a="", b="", c="")
    run(tmp_path, stages)
    assert run(tmp_path, stages, ("b",))[0] == "b"


def test_a_stage_that_fails_is_named_with_its_line_and_others_go_on(tmp_path: Path) -> None:
    bad = chain(tmp_path, a="", b="sys.exit('outsize: no luck: found 1, needed 2; mend it')", c="")
    other = stage(tmp_path, "d", "open(here / 'ran', 'a').write('d'); (here / 'd.out').touch()")
    with pytest.raises(RunError, match="stage b failed: found no luck: found 1, needed 2; mend it") as caught:
        run(tmp_path, [*bad, other])
    assert "records/logs/b.log" in str(caught.value)
    assert sorted((tmp_path / "ran").read_text()) == ["a", "b", "d"]
    good = chain(tmp_path, a="", b="", c="")
    assert run(tmp_path, [*good, other])[0] == "bc"


def test_stages_that_use_different_things_run_side_by_side(tmp_path: Path) -> None:
    """Each waits for the other to begin: one after the other they would wait forever."""
    meet = "(here / '{0}.here').touch(); [time.sleep(0.01) for _ in iter((here / '{1}.here').exists, True)]"
    pair = [
        stage(tmp_path, one, meet.format(one, other) + f"; (here / '{one}.out').touch()", verb=verb)
        for one, other, verb in (("a", "b", "acquire"), ("b", "a", "prepare"))
    ]
    assert {lap.name for lap in run(tmp_path, pair)[1]} == {"a", "b"}


def test_stages_that_use_the_same_wait_for_one_another(tmp_path: Path) -> None:
    code = "assert not (here / 'busy').exists(); (here / 'busy').touch(); time.sleep(0.05); (here / 'busy').unlink()"
    stages = [stage(tmp_path, name, f"{code}; (here / '{name}.out').touch()") for name in "ab"]
    assert len(run(tmp_path, stages)[1]) == 2


_KILLED = """
import sys
from pathlib import Path
from outsize.workflow import running
from tests.workflow.lines import MAIN, chain, run
running._MAIN = MAIN
folder = Path(sys.argv[1])
run(folder, chain(folder, a="", b="time.sleep(600)", c=""))
"""


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_killed_it_takes_its_stages_along_and_repeated_runs_the_rest(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", _KILLED, tmp_path], cwd=Path(__file__).parents[2])
    try:
        while not ((tmp_path / "ran").exists() and "b" in (tmp_path / "ran").read_text()):
            assert process.poll() is None
            time.sleep(0.01)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    while not all(_is_gone(int(pid)) for pid in children):
        time.sleep(0.01)
    code = chain(tmp_path, a="", b="", c="")
    slept = chain(tmp_path, a="", b="time.sleep(600)", c="")
    assert run(tmp_path, [slept[0], code[1], slept[2]])[0] == "bc"


def test_a_training_goes_on_with_what_it_began_or_begins_anew(tmp_path: Path) -> None:
    train = stage(tmp_path, "t", "", verb="train")
    assert words_of(train, goes_on=True)[-1] == "--overwrite"  # nothing was saved
    train.run.state.parent.mkdir(parents=True)
    train.run.state.touch()
    assert words_of(train, goes_on=True)[-1] == "--resume"
    assert words_of(train, goes_on=False)[-1] == "--overwrite"
    assert words_of(stage(tmp_path, "p", ""), goes_on=True)[0] == "evaluate"
