"""A file is written beside its name under one that nobody can guess, and that tells who writes it."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from outsize.errors import OutputError
from outsize.files.beside import Writer, clear_left, folder_beside, machine, writer_of, written_beside
from outsize.files.processes import start_of
from outsize.raster.disk import replacing
from outsize.runs import write_beside

WRITERS = [write_beside, replacing, written_beside]


@pytest.mark.parametrize("write", WRITERS)
def test_a_link_at_a_name_that_is_known_is_not_followed(
    write: Callable[[Path], AbstractContextManager[Path]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    target = tmp_path / "out" / "map.tif"
    target.parent.mkdir()
    # names of earlier versions, and that of today should its random part be known
    monkeypatch.setattr(secrets, "token_hex", lambda _: "0" * 16)
    here = f"{machine()}-{os.getpid()}-{start_of(os.getpid())}-{'0' * 16}"
    pid = os.getpid()
    for name in (
        f".map.tif.{pid}.part",
        f".map.{pid}.partial.tif",
        f".map.tif.{here}.part",
        f".map.tif.{here}.part.tif",
    ):
        (target.parent / name).symlink_to(mine)
    with pytest.raises((OSError, OutputError)), write(target) as temporary:
        temporary.write_text("theirs")
    assert mine.read_text() == "mine"
    assert not target.exists()


def test_two_of_one_process_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    with written_beside(target) as one, written_beside(target) as other:
        one.write_text("1")
        other.write_text("2")
    assert target.read_text() == "1"
    assert list(tmp_path.iterdir()) == [target]


def test_a_name_as_long_as_names_may_be_is_written(tmp_path: Path) -> None:
    target = tmp_path / ("ä" * 127)
    with written_beside(target, ".tif") as temporary:
        temporary.write_text("whole")
    assert target.read_text() == "whole"


def test_a_failure_leaves_the_old_file_and_nothing_beside(tmp_path: Path) -> None:
    target = tmp_path / "[a]*.txt"
    target.write_text("old")

    def fail() -> None:
        with written_beside(target) as temporary:
            temporary.with_name(temporary.name + "-journal").write_text("half")
            raise OSError(errno.ENOSPC, "no")

    with pytest.raises(OSError, match="no"):
        fail()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_dead_process_left_is_known(tmp_path: Path) -> None:
    mine = Writer(machine(), os.getpid(), start_of(os.getpid()))
    with written_beside(tmp_path / "a.tif", ".tif") as temporary:
        assert writer_of(temporary) == mine
        assert not mine.is_gone
        assert writer_of(temporary.with_name(temporary.name + "-journal")) is not None
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    assert replace(mine, pid=int(child.stdout)).is_gone
    assert replace(mine, start="1").is_gone  # its number is another's now
    assert not replace(mine, pid=int(child.stdout), machine="0" * 8).is_gone
    for name in (".a.part", "a.part", ".a.tif.12.part", f"a.{'0' * 8}-1-1-{'0' * 16}.part", "b.tif"):
        assert writer_of(tmp_path / name) is None


def test_the_next_process_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code = (
        "import os, sys; from pathlib import Path; from outsize.files.beside import written_beside\n"
        "with written_beside(Path(sys.argv[1]) / 'map.tif', '.tif') as temporary:\n"
        "    temporary.with_name(temporary.name + '-journal').touch()\n"
        "    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    folder.mkdir()
    subprocess.run([sys.executable, "-c", code, str(folder)], env=environment, check=False)
    left = sorted(folder.iterdir())
    assert len(left) == 2
    elsewhere = folder / left[0].name.replace(machine(), "0" * 8)
    kept = [folder / ".mine.1.part", folder / "mine.part", elsewhere]
    for each in kept:
        each.touch()
    with written_beside(folder / "a.json") as running:
        clear_left(folder)
        assert running.exists()
    assert sorted(folder.iterdir()) == sorted([*kept, folder / "a.json"])
    clear_left(folder, is_alone=True)
    assert not elsewhere.exists()


def test_a_folder_that_a_killed_process_left_half_full_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from outsize.files.beside import folder_beside\n"
        "with folder_beside(Path(sys.argv[1])) as new:\n"
        "    (new / 'half').write_text('done')\n"
        "    os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "job")], env=environment, check=False)
    (left,) = tmp_path.iterdir()
    assert [each.name for each in left.iterdir()] == ["half"]
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "data").touch()
    link = tmp_path / left.name.replace(".job.", ".link.")
    link.symlink_to(theirs)
    with folder_beside(tmp_path / "job") as new:
        (new / "whole").touch()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["job", "theirs"]
    assert [each.name for each in (tmp_path / "job").iterdir()] == ["whole"]
    assert (theirs / "data").exists()


def test_files_have_the_mode_that_the_user_gives_new_ones(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    with written_beside(tmp_path / "ours") as temporary:
        temporary.write_text("")
    assert (tmp_path / "ours").stat().st_mode == plain.stat().st_mode
